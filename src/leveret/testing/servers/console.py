"""A console as a process, started as an operator starts it.

with ConsoleProcess({"eu": "http://127.0.0.1:15672"}) as console:
    visit.page.goto(console.url)
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers import warm_start
from leveret.testing.servers.process import Server, ServerProcess

_START_S: Final = 60.0
_STOP_S: Final = 10.0
_READY: Final = re.compile(r"leveret console ready (\S+)")


class ConsoleProcess(Server):
    """See the module.

    Attributes:
        url: the URL of its page; empty before the start.
    """

    def __init__(self, sites: Mapping[str, str], arguments: Sequence[str] = (), port: int = 0) -> None:
        """Prepare a console of these sites, URLs by name; nothing runs yet."""
        self._home = Path(tempfile.mkdtemp(prefix="leveret-console-"))
        self._arguments = [f"--site={name}={url}" for name, url in sites.items()]
        self._arguments += ["--listen", f"{LOOPBACK}:{port}", *arguments]
        self.server = ServerProcess(self._home / "output.log")
        self.url = ""

    def start(self) -> Self:
        """Start the console, and wait until it serves its page.

        Raises:
            NotReady: the console ended or took too long.
        """
        self.server.launch_own(warm_start.NODE, ["console", *self._arguments], dict(os.environ))

        def ready() -> bool:
            found = _READY.search(self.server.log_text())
            self.url = found[1] if found else ""
            return bool(found)

        self.server.wait(ready, "the console", _START_S)
        return self

    def log_text(self) -> str:
        """Return the whole output of the console."""
        return self.server.log_text()

    def close(self) -> None:
        """End the console, and remove its files."""
        if self.server.alive:
            self.server.terminate(_STOP_S)
        self.server.close()
        shutil.rmtree(self._home, ignore_errors=True)
