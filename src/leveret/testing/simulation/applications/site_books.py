"""The books of a run with two sites: which promises a promoted site has to keep, and which it may not know of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

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

    def fail_over(
        self, covered_s: float, unsure: Collection[str] = (), *, settled_s: float | None = None
    ) -> tuple[int, int]:
        """Note that another site takes over, which has all that was promised before a moment, and perhaps more.

        Later confirmed messages may be lost, unless the confirm waited for that site; messages that were settled since
        `settled_s`, if that is earlier, or since that moment may be back; whatever is delivered once more is marked. Of
        the queues in `unsure` all is in doubt.

        Returns:
            The numbers of confirms and of settlements that the site may lack.
        """
        self.doubtful, back = [], 0
        back_since_s = covered_s if settled_s is None else min(covered_s, settled_s)
        for message in self.messages.values():
            confirmed_s = self._confirmed_s.pop(id(message), None)
            settled_at_s = self._settled_s.pop(id(message), 0.0)
            is_unsure = message.queue in unsure
            waited = confirmed_s is not None and message.queue in self.confirmed_at_both
            is_late = is_unsure or ((confirmed_s or 0.0) >= covered_s and not waited)
            if message.is_confirmed and is_late:
                message.is_confirmed = False
                self.doubtful.append(message)
            if message.is_settled and (is_unsure or settled_at_s >= back_since_s):
                # It stays tried: it may be there, and need not.
                message.is_settled = False
                back += 1
        self.confirmed -= len(self.doubtful)
        self.settled -= back
        return len(self.doubtful), back
