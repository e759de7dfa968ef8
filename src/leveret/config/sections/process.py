"""The node as a process of its machine: its name, its files, its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leveret.config.kinds import Duration, LocalPath
from leveret.config.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The name, the files and the end of the process."""

    pid_file: Path | None = setting(
        "pid_file", LocalPath(), "none", "File that holds the process id while the node runs."
    )
    shutdown_timeout_ms: int = setting(
        "shutdown_timeout",
        Duration(0),
        "10s",
        "On SIGTERM, clients have this long to receive their confirms and to close their "
        "connections. A second SIGTERM ends the node at once.",
    )
