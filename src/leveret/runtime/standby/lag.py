"""The lag of a vhost's transfer behind its upstream, in records and in time, also while the upstream is silent.

Lag in time is the longest possible time since this node had every record of the upstream. No node here knows the
records that a silent upstream takes: so from its last report on, lag in time grows by the clock, and lag in
records keeps its last value.
"""

from __future__ import annotations

from typing import Final

HEARD_MS: Final = 5_000
"""An upstream that is well says where it is every second or so; a large batch may take longer."""


class VhostLag:
    """One vhost. `now_s` is by a clock that nobody sets; stamps in ms are the upstream's, and this node's for `now_ms`.

    Attributes:
        transferred: all before this offset of the upstream's log is here.
        newest_ms: when the newest record that is here came to the upstream; None if nothing is here.
        is_read: whether it was said what is here, be it nothing.
    """

    def __init__(self, now_s: float) -> None:
        """It is not known what is here, and nothing was heard."""
        self.transferred = 0
        self.is_read = False
        self.newest_ms: int | None = None
        self._since_s = now_s
        self._whole_s: float | None = None
        self.forget_upstream()

    def forget_upstream(self) -> None:
        """It may be another one from now on."""
        self._heard_s: float | None = None
        self._committed = self._committed_ms = 0

    @property
    def is_known(self) -> bool:
        """Whether the upstream was heard."""
        return self._heard_s is not None

    def heard(self, committed: int, committed_ms: int, now_s: float) -> None:
        """The upstream says that it has all before an offset, and when the last of that came."""
        self._committed, self._committed_ms, self._heard_s = committed, committed_ms, now_s
        self._note_whole()

    def stored(self, transferred: int, newest_ms: int | None = None) -> None:
        """All before an offset is here, with the stamp of its newest record."""
        self.is_read = True
        self.transferred = max(self.transferred, transferred)
        self.newest_ms = self.newest_ms if newest_ms is None else newest_ms
        self._note_whole()

    def _note_whole(self) -> None:
        if self._heard_s is not None and not self.records:
            self._whole_s = self._heard_s

    @property
    def records(self) -> int:
        """So many records that the upstream had when it was last heard are not here."""
        return max(0, self._committed - self.transferred)

    def heard_ago_ms(self, now_s: float) -> int | None:
        """For how long the upstream was not heard; None if it never was."""
        return None if self._heard_s is None else round((now_s - self._heard_s) * 1000)

    def newest_age_ms(self, now_s: float, now_ms: int) -> int | None:
        """How old the newest record is that is here, by both sites' clocks.

        By the upstream's alone it is so old at least as what came there until it was heard last, and the time since:
        so where this node's clock is behind, the age is too small by no more than that leaves open.
        """
        if self.newest_ms is None:
            return None
        by_theirs_ms = self._committed_ms - self.newest_ms + (self.heard_ago_ms(now_s) or 0)
        return max(0, now_ms - self.newest_ms, by_theirs_ms)

    def time_ms(self, now_s: float, now_ms: int) -> int:
        """How long ago, at most, this node had all that the upstream had; 0 while that is heard and all is here.

        All was here when the upstream was heard last of which all is here now. It was, too, when the newest record that
        is here came to the upstream: that tells while a backlog comes, and after a start. Where nothing is here and
        nothing ever was, it is how long this has been waited for.
        """
        heard_ago_ms, newest_age_ms = self.heard_ago_ms(now_s), self.newest_age_ms(now_s, now_ms)
        if heard_ago_ms is not None and heard_ago_ms < HEARD_MS and not self.records:
            return 0
        ages_ms: list[float] = []
        if self._whole_s is not None:
            ages_ms.append((now_s - self._whole_s) * 1000)
        if newest_age_ms is not None:
            ages_ms.append(newest_age_ms)
        return round(min(ages_ms, default=(now_s - self._since_s) * 1000))
