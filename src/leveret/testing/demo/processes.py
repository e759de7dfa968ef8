"""The processes of a demo's applications: their start, progress and end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from leveret.testing.applications.applications import WINDOW
from leveret.testing.applications.books import Books, count_entries
from leveret.testing.demo.flights import QUEUES
from leveret.testing.demo.report import Bar
from leveret.testing.network.ports import wait_until

PATIENCE_S: Final = 300.0
_END_S: Final = 30.0
_RATE: Final = 2000
_WINDOW: Final = 500
_CONSUMED: Final = 0.7

Process = subprocess.Popen[bytes]


class Applications:
    """Publishers and consumers, each with books of its own below one folder."""

    def __init__(self, folder: Path, vhost: str) -> None:
        """Prepare; nothing runs yet."""
        self.publishers: list[Process] = []
        self.consumers: list[Process] = []
        self.books: list[Books] = []
        self._folder = folder
        self._vhost = vhost

    def publish(
        self,
        ports: Sequence[int],
        count: int,
        *,
        rate: int,
        window: int = WINDOW,
        queue: str | None = None,
    ) -> Books:
        """Start a publisher of the first `count` flights, or of those for one queue; return its books."""
        chosen = ["--count", str(count), "--window", str(window), *(["--queue", queue] if queue else [])]
        return self._launch(self.publishers, "publish", ports, rate, *chosen)

    def consume(self, ports: Sequence[int], seed: int, *, rate: int, tx: bool = False) -> Books:
        """Start a consumer of all queues; return its books."""
        return self._launch(
            self.consumers, "consume", ports, rate, "--seed", str(seed), *(["--tx"] if tx else [])
        )

    def start_at_each(self, ports: Sequence[int], count: int, seed: int) -> list[Books]:
        """Start a publisher of one queue's flights and a consumer of all queues at each node; both may move.

        Return the publishers' books, in the order of the nodes' `ports`.
        """
        books: list[Books] = []
        rate = _RATE // len(QUEUES)
        for number, queue in enumerate(QUEUES):
            turned = [*ports[number:], *ports[:number]]
            books.append(self.publish(turned, count, rate=rate, window=_WINDOW, queue=queue))
            self.consume(turned, seed + number, rate=int(rate * _CONSUMED), tx=True)
        return books

    def _launch(
        self, processes: list[Process], role: str, ports: Sequence[int], rate: int, *more: str
    ) -> Books:
        folder = self._folder / f"{role}-{len(processes) + 1}"
        argv = [sys.executable, "-m", "leveret.testing.demo.clients", role]
        entries = ["--ports", *(str(port) for port in ports), "--vhost", self._vhost]
        work = ["--rate", str(rate), "--books", str(folder)]
        processes.append(subprocess.Popen([*argv, *entries, *work, *more], stdin=subprocess.DEVNULL))
        self.books.append(Books(folder))
        return self.books[-1]

    def confirmed(self) -> int:
        """Return the number of flights that publishers know to be confirmed."""
        return sum(count_entries(books.confirmed) for books in self.books)

    def wait_confirmed(self, count: int, bar: Bar) -> None:
        """Wait until so many flights are confirmed, or all are published: some may never be confirmed.

        Raises:
            RuntimeError: an application ended with work left.
            NotReady: it takes too long.
        """

        def reached() -> bool:
            confirmed = self.confirmed()
            bar(confirmed)
            if confirmed >= count or all(one.poll() == 0 for one in self.publishers):
                return True
            if any(one.poll() for one in self.publishers) or any(
                one.poll() is not None for one in self.consumers
            ):
                raise RuntimeError("an application of the demo ended before its time")
            return False

        wait_until(reached, f"{count} confirms", PATIENCE_S)

    def end(self, bar: Bar) -> None:
        """Wait until everything is published, then have the consumers end in order; held messages are requeued.

        Raises:
            RuntimeError: an application ended with an error, which it has printed.
            NotReady: it takes too long.
        """

        def published() -> bool:
            bar(self.confirmed())
            return all(one.poll() is not None for one in self.publishers)

        wait_until(published, "the publishers to end", PATIENCE_S)
        for one in self.consumers:
            one.terminate()
        self.wait_gone()

    def wait_gone(self) -> None:
        """Wait until all applications have ended by themselves; errors as with `end`."""
        for one in (*self.publishers, *self.consumers):
            if one.wait(_END_S):
                raise RuntimeError(f"an application of the demo failed: {one.args!r}")

    def close(self) -> None:
        """End all remaining processes."""
        for one in (*self.publishers, *self.consumers):
            one.kill()
            one.wait()
