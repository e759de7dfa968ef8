"""The applications of a torture of followers: numbered messages beside the parcels, and all that work together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from leveret.testing.applications.applications import AppConsumer, AppPublisher, DirectMessage
from leveret.testing.applications.books import Books, read_book
from tests.e2e.site import PATIENCE_S

SIDE_RATE: Final = 60
_BODY_BYTES: Final = 1000
_WINDOW: Final = 200


def body_of(number: int) -> bytes:
    """The number, and more."""
    return f"{number} ".encode().ljust(_BODY_BYTES, b"x")


class Side:
    """Numbered messages to one queue, beside the parcels."""

    def __init__(self, queue: str, folder: Path) -> None:
        self._queue = queue
        self._count = 0
        self._books = Books(folder / queue)

    def publisher(self, port: int) -> AppPublisher:
        """The next publisher; not yet running."""
        return AppPublisher(port, "/", self._messages(), self._books, window=_WINDOW, rate=SIDE_RATE)

    def _messages(self) -> Iterator[DirectMessage]:
        while True:
            self._count += 1
            yield DirectMessage(self._count, self._queue, body_of(self._count))

    def confirmed(self) -> set[int]:
        """Numbers that were confirmed."""
        return {number for number, _ in read_book(self._books.confirmed)}


class Crew:
    """Applications that run together at one node."""

    def __init__(self, *applications: AppPublisher | AppConsumer) -> None:
        self.applications = applications
        self._threads = [threading.Thread(target=each.run, daemon=True) for each in applications]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop in order, everything confirmed; or, when the node is gone, notice it."""
        for each in self.applications:
            each.stop()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "an application does not end: is it blocked, or a confirm missing?"

    @property
    def disordered(self) -> int:
        """What consumers got out of order."""
        return sum(each.disordered for each in self.applications if isinstance(each, AppConsumer))
