"""The lag of a vhost's transfer behind its upstream, in records and in time, also while the upstream is silent.

Lag in time is the longest possible time since this node had every record of the upstream. No node here knows the
records that a silent upstream accepts: so from its last report on, lag in time grows by the clock, and lag in
records keeps its last value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

HEARD_MS: Final = 5_000
"""A healthy upstream reports its position about every second; a large batch may take longer."""


class LogLag:
    """The lag of one log. `now_s` is from a monotonic clock, `now_ms` from this node's.

    Other times are the upstream's.

    Attributes:
        transferred: the offset up to which the upstream's log is transferred.
        newest_ms: the time at which the upstream received the newest transferred record; None without records.
        is_read: whether the archive's content is known, even if it is empty.
    """

    def __init__(self, now_s: float) -> None:
        """Begin without reports on the archive and the upstream."""
        self.transferred = 0
        self.is_read = False
        self.newest_ms: int | None = None
        self._since_s = now_s
        self._whole_s: float | None = None
        self.forget_upstream()

    def forget_upstream(self) -> None:
        """Forget the upstream's reports, because it may be another one from now on."""
        self._heard_s: float | None = None
        self._committed = self._committed_ms = 0

    @property
    def is_known(self) -> bool:
        """Whether the upstream has reported."""
        return self._heard_s is not None

    def heard(self, committed: int, committed_ms: int, now_s: float) -> None:
        """Take a report of the upstream: the end of its log, and the time of the log's last record."""
        self._committed, self._committed_ms, self._heard_s = committed, committed_ms, now_s
        self._note_whole()

    def stored(self, transferred: int, newest_ms: int | None = None) -> None:
        """Note the offset up to which the log is transferred, and the time of its newest transferred record."""
        self.is_read = True
        self.transferred = max(self.transferred, transferred)
        self.newest_ms = self.newest_ms if newest_ms is None else newest_ms
        self._note_whole()

    def _note_whole(self) -> None:
        if self._heard_s is not None and not self.records:
            self._whole_s = self._heard_s

    @property
    def records(self) -> int:
        """The number of records in the upstream's last report that are not transferred."""
        return max(0, self._committed - self.transferred)

    def heard_ago_ms(self, now_s: float) -> int | None:
        """Return the time since the upstream's last report; None without one."""
        return None if self._heard_s is None else round((now_s - self._heard_s) * 1000)

    def newest_age_ms(self, now_s: float, now_ms: int) -> int | None:
        """Return the age of the newest transferred record, by both sites' clocks.

        By the upstream's clock alone, the age is at least the time from the record to the upstream's last record,
        plus the time since its last report. So a slow clock of this node causes a bounded error only.
        """
        if self.newest_ms is None:
            return None
        by_theirs_ms = self._committed_ms - self.newest_ms + (self.heard_ago_ms(now_s) or 0)
        return max(0, now_ms - self.newest_ms, by_theirs_ms)

    def time_ms(self, now_s: float, now_ms: int) -> int:
        """Return the longest possible time since this node had every record of the upstream.

        0 while this node has them and receives reports.

        The time counts from the last report whose records are all transferred. During the transfer of a backlog, and
        after a start, it counts from the upstream's receipt of the newest transferred record. Without any transferred
        record, it is the time of waiting.
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


class LagOfLogs:
    """The joint lag of several logs of one vhost, with the interface of LogLag."""

    def __init__(self, logs: Sequence[LogLag]) -> None:
        """Join the lags of these logs, at least one."""
        self._logs = logs

    @property
    def is_known(self) -> bool:
        """Whether the upstream has reported on all of them."""
        return all(each.is_known for each in self._logs)

    @property
    def is_read(self) -> bool:
        """See LogLag."""
        return all(each.is_read for each in self._logs)

    @property
    def newest_ms(self) -> int | None:
        """See LogLag."""
        return max((each.newest_ms for each in self._logs if each.newest_ms is not None), default=None)

    @property
    def records(self) -> int:
        """See LogLag."""
        return sum(each.records for each in self._logs)

    def heard_ago_ms(self, now_s: float) -> int | None:
        """Return the time since the oldest of the logs' last reports; None if a log has none."""
        agos = [each.heard_ago_ms(now_s) for each in self._logs]
        return None if None in agos else max(ago for ago in agos if ago is not None)

    def newest_age_ms(self, now_s: float, now_ms: int) -> int | None:
        """See LogLag."""
        ages = [each.newest_age_ms(now_s, now_ms) for each in self._logs]
        return min((age for age in ages if age is not None), default=None)

    def time_ms(self, now_s: float, now_ms: int) -> int:
        """See LogLag; of the log with the greatest lag."""
        return max(each.time_ms(now_s, now_ms) for each in self._logs)
