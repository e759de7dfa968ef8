"""The applications of a torture of followers: numbered messages beside the parcels, and all that work together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from leveret.testing.applications.applications import AppConsumer, AppPublisher, ReceivedMessage
from leveret.testing.applications.books import Books, read_book
from leveret.testing.applications.mixed_messages import MixedMessage, mixed_message
from tests.e2e.site import PATIENCE_S

SIDE_RATE: Final = 60
_WINDOW: Final = 200


class Side:
    """Numbered messages to one queue, beside the parcels."""

    def __init__(self, queue: str, folder: Path) -> None:
        self._queue = queue
        self._count = 0
        self._books = Books(folder / queue)

    def publisher(self, port: int) -> AppPublisher:
        """The next publisher; not yet running."""
        return AppPublisher(port, "/", self._messages(), self._books, window=_WINDOW, rate=SIDE_RATE)

    def _messages(self) -> Iterator[MixedMessage]:
        while True:
            self._count += 1
            yield self._message(self._count)

    def _message(self, number: int) -> MixedMessage:
        return mixed_message(number, self._queue, seed=self._queue, exchange="")

    def altered(self, found: Iterable[ReceivedMessage], is_same: Callable[[Any, Any], bool]) -> list[int]:
        """Numbers of those that are not as they were published, as `is_same` compares properties."""
        return [
            each.number
            for each in found
            for published in [self._message(each.number)]
            if each.body != published.body or not is_same(vars(published.properties), vars(each.properties))
        ]

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
