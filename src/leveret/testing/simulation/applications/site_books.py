"""The books of a run with two sites: which promises a promoted site has to keep, and which it may not know of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from leveret.testing.applications.run_books import BookedMessage, RunBooks


class SiteBooks(RunBooks):
    """RunBooks that know when each promise arrived.

    Attributes:
        clock: returns the present time in seconds.
        confirmed_at_both: the queues whose confirms wait for the other site.
    """

    def __init__(self) -> None:
        """Begin without messages."""
        super().__init__()
        self.clock: Callable[[], float] = float
        self.confirmed_at_both: set[str] = set()
        self._confirmed_s: dict[int, float] = {}
        self._settled_s: dict[int, float] = {}

    def confirm(self, copies: Iterable[BookedMessage]) -> None:
        """See RunBooks."""
        copies = list(copies)
        for message in copies:
            self._confirmed_s.setdefault(id(message), self.clock())
        super().confirm(copies)

    def settle(self, message: BookedMessage) -> None:
        """See RunBooks."""
        self._settled_s.setdefault(id(message), self.clock())
        super().settle(message)

    def fail_over(self, covered_s: float) -> tuple[int, int]:
        """Note that another site takes over, which has all that was promised before a moment, and perhaps more.

        Later confirmed messages may be lost, unless the confirm waited for that site; later settled ones may be back;
        and all may be delivered once more without a mark.

        Returns:
            The numbers of confirms and of settlements that the site may lack.
        """
        unconfirmed = unsettled = 0
        for message in self.messages.values():
            message.is_first_delivered = False
            is_late = self._confirmed_s.pop(id(message), 0.0) >= covered_s
            if message.is_confirmed and is_late and message.queue not in self.confirmed_at_both:
                message.is_confirmed = False
                unconfirmed += 1
            if message.is_settled and self._settled_s.pop(id(message), 0.0) >= covered_s:
                # It stays tried: it may be there, and need not.
                message.is_settled = False
                unsettled += 1
        self.confirmed -= unconfirmed
        self.settled -= unsettled
        return unconfirmed, unsettled
