"""The console of a demo, open on its sites. If one of them is a standby, the user promotes it there."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

from leveret.testing.demo import report
from leveret.testing.network.ports import accepts
from leveret.testing.servers.console import ConsoleProcess

_PORT: Final = 15680
_LOOK_S: Final = 0.5


class DemoConsole:
    """A console beside the sites of a demo; `has_promoted` is true once the user has promoted the downstream in it."""

    def __init__(self, sites: Mapping[str, str]) -> None:
        """Prepare the console; `sites` are URLs by name."""
        self.has_promoted = False
        # The port that the documents name, unless it is in use.
        self._console = ConsoleProcess(sites, port=0 if accepts(_PORT) else _PORT)

    def __enter__(self) -> Self:
        """Start nothing yet: `open` starts the console."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the console."""
        self._console.close()

    def open(self) -> None:
        """Start the console, and print its address."""
        self._console.start()
        report.detail(f"open the console in your browser: {self._console.url} (user guest, password guest)")

    def wait_promoted(self, is_promoted: Callable[[], bool]) -> None:
        """Wait until the downstream is promoted on the page, or a user presses Enter on the terminal."""
        report.detail(f"your turn, at {self._console.url}:")
        report.detail("  Am I safe? says what would be lost now; Do rehearses and promotes site us")
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            report.detail("  or press Enter here, and the demo promotes it")
        while not self.has_promoted:
            if is_terminal and select.select([sys.stdin], [], [], 0)[0]:
                sys.stdin.readline()
                return
            time.sleep(_LOOK_S)
            self.has_promoted = is_promoted()

    def stay_open(self) -> None:
        """Return at Ctrl-C."""
        report.say(f"the console stays open at {self._console.url} until Ctrl-C")
        try:
            while True:
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            report.say("")
