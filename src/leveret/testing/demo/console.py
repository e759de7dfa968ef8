"""The console of the demo: open on both sites, and the promotion is yours."""

from __future__ import annotations

import select
import sys
import time
from types import TracebackType
from typing import Final, Self

from leveret.testing.demo import report
from leveret.testing.network.ports import LOOPBACK, accepts
from leveret.testing.servers.console import ConsoleProcess
from leveret.testing.sites.standby_pair import StandbyPair

_PORT: Final = 15680
_LOOK_S: Final = 0.5


class DemoConsole:
    """A console beside the two sites; `has_promoted` once somebody promoted the downstream in it."""

    def __init__(self, pair: StandbyPair) -> None:
        """Prepare it."""
        self.has_promoted = False
        self._pair = pair
        sites = {
            "eu": f"http://{LOOPBACK}:{pair.upstream.management_port}",
            "us": f"http://{LOOPBACK}:{pair.downstream.management_port}",
        }
        # The port that the documents name, unless something listens there.
        self._console = ConsoleProcess(sites, port=0 if accepts(_PORT) else _PORT)

    def __enter__(self) -> Self:
        """Nothing to do: `open` starts it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._console.close()

    def open(self) -> None:
        """Start it, and say where it is."""
        self._console.start()
        report.detail(f"the console of both sites: {self._console.url} (user guest, password guest)")

    def wait_promoted(self) -> None:
        """Wait until the downstream is promoted at the page, or somebody at a terminal presses Enter."""
        report.detail(
            f"your turn: {self._console.url}#safety says what would be lost, {self._console.url}#do promotes us"
        )
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            report.detail("or press Enter, and the demo promotes it")
        while not self.has_promoted:
            if is_terminal and select.select([sys.stdin], [], [], 0)[0]:
                sys.stdin.readline()
                return
            time.sleep(_LOOK_S)
            self.has_promoted = self._pair.status()["operating_mode"] == "upstream"

    def stay_open(self) -> None:
        """Return at Ctrl-C."""
        report.say(f"the console stays open at {self._console.url} until Ctrl-C")
        try:
            while True:
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            report.say("")
