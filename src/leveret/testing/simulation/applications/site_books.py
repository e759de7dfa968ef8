"""The books of a run with two sites: which promises a promoted site has to keep, and which it may not know of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf

from leveret.testing.applications.run_books import BookedMessage, RunBooks


class SiteBooks(RunBooks):
    """RunBooks that know when each promise arrived.

    Attributes:
        clock: returns the present time in seconds.
        confirmed_at_both: the queues whose confirms wait for the other site.
        doubtful: the messages whose confirms the last fail-over has put in doubt.
    """

    def __init__(self) -> None:
        """Begin without messages."""
        super().__init__()
        self.clock: Callable[[], float] = float
        self.confirmed_at_both: set[str] = set()
        self.doubtful: list[BookedMessage] = []
        self._rejected_s: dict[int, float] = {}
        self._confirmed_s: dict[int, float] = {}
        self._settled_s: dict[int, float] = {}

    def confirm(self, copies: Iterable[BookedMessage]) -> None:
        """See RunBooks."""
        copies = list(copies)
        for message in copies:
            self._confirmed_s.setdefault(id(message), self.clock())
        super().confirm(copies)

    def reject(self, message: BookedMessage, dead_queue: str) -> None:
        """See RunBooks."""
        self._rejected_s[id(message)] = self.clock()
        super().reject(message, dead_queue)

    def settle(self, message: BookedMessage) -> None:
        """See RunBooks."""
        self._settled_s.setdefault(id(message), self.clock())
        super().settle(message)

    def fail_over(
        self, covered_s: float, unsure: Collection[str] = (), *, rejected_since_s: float = inf
    ) -> tuple[int, int]:
        """Note that another site takes over, which has all that was promised before a moment, and perhaps more.

        Later confirmed messages may be lost, unless the confirm waited for that site; later settled ones may be back;
        and all may be delivered once more without a mark. Of the queues in `unsure` all is in doubt, and so is each
        message that was rejected since `rejected_since_s`.

        Returns:
            The numbers of confirms and of settlements that the site may lack.
        """
        self.doubtful, back = [], 0
        for message in self.messages.values():
            message.is_first_delivered = False
            confirmed_s = self._confirmed_s.pop(id(message), None)
            settled_s = self._settled_s.pop(id(message), 0.0)
            is_rejected = self._rejected_s.pop(id(message), -inf) >= rejected_since_s
            is_unsure = message.queue in unsure or is_rejected
            waited = confirmed_s is not None and message.queue in self.confirmed_at_both
            is_late = is_unsure or ((confirmed_s or 0.0) >= covered_s and not waited)
            if message.is_confirmed and is_late:
                message.is_confirmed = False
                self.doubtful.append(message)
            if message.is_settled and (is_unsure or settled_s >= covered_s):
                # It stays tried: it may be there, and need not.
                message.is_settled = False
                back += 1
        self.confirmed -= len(self.doubtful)
        self.settled -= back
        return len(self.doubtful), back
