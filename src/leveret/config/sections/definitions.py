"""Definitions that are imported when the node starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leveret.config.kinds import Choice, Flag, LocalPath
from leveret.config.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionsSettings:
    """The definitions that every start imports before the first client; None for none."""

    load: Path | None = setting(
        "load_definitions",
        LocalPath(),
        "none",
        "A definitions file, or a directory of `*.json` files, that every start imports. An "
        "import adds and overwrites, and deletes nothing. An error in a file stops the start.",
    )
    backend: str = setting(
        "definitions.import_backend",
        Choice(("local_filesystem", "none")),
        "none",
        "With `local_filesystem`, `definitions.local.path` is imported. The newer form of `load_definitions`.",
    )
    path: Path | None = setting(
        "definitions.local.path",
        LocalPath(),
        "none",
        "The definitions file, or the directory of them, for `definitions.import_backend = local_filesystem`.",
    )
    skip_if_unchanged: bool = setting(
        "definitions.skip_if_unchanged",
        Flag(),
        "false",
        "Skip an import if the definitions have the SHA-256 of the last import.",
    )
