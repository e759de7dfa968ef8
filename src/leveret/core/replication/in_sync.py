"""The followers that a promise waits for, and the position up to which everything is promised.

A promise (a confirm, an answer to a declare) that was made at a position of the node may be kept once
the leader has that position on its own disk and `committed()` has reached it. Positions are octets of
changes since the node started. A follower goes through these steps, in this order:

1. The follower *joins*: it is live from a position on, and everything before was sent while it caught up. Nothing
   waits for it yet: the changes that it wrote last may still be on their way to its disk.
2. The follower acks its join position, and from now on *holds back* `committed()`. It may lack changes that were
   promised in between, when other followers were faster. While it lacks them `committed()` stands still, which
   lasts one round trip. Without that pause a follower of a busy leader would never become a member: the
   promised end would run before its acks forever.
3. The follower has acked every promised change and is a *member*: it may take over at any time.
4. The follower *left*, or owed an ack for too long and is dropped: nothing waits for it any more.

**When the set is recorded elsewhere** (etcd), for an election to read, a follower in the record may
win at any moment. So the record may never name a follower that lacks a kept promise:

- Growing: promises wait first, then the name is recorded. In the other order the follower could win in between.
- Shrinking: the record changes first, then promises stop waiting. In the other order the dropped follower
  could win, without the promises made meanwhile.
- A write in flight counts as done and as not done, until its outcome is known: from `writing` on,
  promises wait for all names in the record and in the write. Otherwise a follower that leaves while it is being
  added would be in the record with no promise waiting for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from leveret.model.errors import PeerError

_SAMPLES_MAX: Final = 4096


class Lag(NamedTuple):
    """The lag of a follower behind the shipped changes: octets, and the age of the oldest unacked change."""

    lag_bytes: int
    lag_s: float


class _LagSample(NamedTuple):
    """Everything up to `position` was shipped by `at_ms`."""

    position: int
    at_ms: int


class _Live:
    """A follower that gets every frame from `joined` on, since `joined_ms`."""

    __slots__ = ("acked", "in_sync_from_ms", "joined", "joined_ms")

    def __init__(self, joined: int, joined_ms: int) -> None:
        self.joined = joined
        self.joined_ms = joined_ms
        self.in_sync_from_ms = joined_ms
        """Since when promises wait for it, if they do."""
        self.acked = -1
        """Below `joined` it says nothing of what the follower has."""

    @property
    def holds_back(self) -> bool:
        return self.acked >= self.joined

    @property
    def owes_from(self) -> int:
        """What was shipped behind this position is to be acked yet."""
        return max(self.acked, self.joined)


class InSync:
    """The followers in sync with a leader; told of what was shipped and acked, asked what is promised.

    Positions and times are integers that never fall.

    Args:
        ack_timeout_ms: a follower that has not acked what was shipped this long ago is dropped.
        min_in_sync: fewer members than this are short.
        records_shrink: the set is recorded elsewhere before promises stop waiting for one that left.
        recorded: the followers that the record names at the start, this node itself left out. Nothing is
            promised before they have joined again, or the record has changed.
    """

    def __init__(
        self,
        *,
        ack_timeout_ms: int,
        min_in_sync: int,
        records_shrink: bool = False,
        recorded: Iterable[str] = (),
    ) -> None:
        """Nobody has joined, nothing is shipped."""
        self._min_in_sync = min_in_sync
        self._ack_timeout_ms = ack_timeout_ms
        self._records = records_shrink
        self._recorded = frozenset(recorded)
        self._maybe_recorded = self._surely_recorded = self._recorded
        """All that the record may name, and all that it names whatever becomes of a write under way."""
        self._is_writing = False
        self._live: dict[str, _Live] = {}
        self._gone: dict[str, int] = {}
        """Up to where those have everything that the record may name and that hold nothing back by acks."""
        self._end = 0
        self._committed = 0
        self._confirmable = 0
        # Fine enough that a mark which is merged for want of room is past every timeout already.
        self._grain_ms = 1 + ack_timeout_ms // (_SAMPLES_MAX // 2)
        self._samples: deque[_LagSample] = deque()
        self._sample_from_ms = 0

    # What happens.

    def joined(self, follower: str, position: int, now_ms: int) -> None:
        """The follower gets every frame from `position` on; an earlier link of the follower ends with this."""
        self.left(follower)
        self._live[follower] = _Live(position, now_ms)
        if position < self._end and not self._samples:
            self._sample(self._end, now_ms)

    def shipped(self, position: int, now_ms: int) -> None:
        """Frames up to `position` have been cut, whether or not there is a follower to have them.

        Raises:
            ValueError: the position is before the last one.
        """
        if position < self._end:
            raise ValueError(f"shipped up to position {position}, which is before {self._end}")
        if position == self._end:
            return
        self._end = position
        if self._live:
            self._sample(position, now_ms)
        self._advance()

    def acked(self, follower: str, position: int, now_ms: int) -> None:
        """The follower has everything up to `position` on its disk; a late ack of a follower that left is ignored.

        Raises:
            PeerError: that was not shipped yet; the link is to be ended.
        """
        live = self._live.get(follower)
        if live is None or position <= live.acked:
            return
        if position > max(self._end, live.joined):
            raise PeerError(
                f"follower {follower} acks position {position}, but the last one shipped is {self._end}"
            )
        if not live.holds_back:
            live.in_sync_from_ms = now_ms
        live.acked = position
        self._prune()
        self._advance()

    def left(self, follower: str) -> None:
        """Its link is gone, or it is dropped; nothing happens when it was not live."""
        live = self._live.pop(follower, None)
        if live is None:
            return
        if live.holds_back and follower in self._maybe_recorded:
            self._gone[follower] = live.acked
        self._prune()
        self._advance()

    def tick(self, now_ms: int) -> list[str]:
        """Drop those that owe an ack since `ack_timeout_ms` or longer, and tell who they are.

        What counts is the oldest that was not acked, not when the last ack came: one that acks all the
        time and falls ever further behind is dropped too. One that has not reached its join position
        delays nobody and stays; its time runs from there.
        """
        long_ago_ms = now_ms - self._ack_timeout_ms
        due = self._shipped_by(long_ago_ms)
        late = [
            name
            for name, live in self._live.items()
            if live.holds_back and live.in_sync_from_ms <= long_ago_ms and live.acked < due
        ]
        for name in late:
            self.left(name)
        return late

    # What follows from it.

    def committed(self) -> int:
        """The position up to which every member has everything, the shipped end without any; never falls."""
        return self._committed

    def confirmable(self) -> int:
        """The position up to which publishes may be confirmed: as `committed`, but it rests while short.

        When a member leaves, `committed` may jump over what nobody has but the leader. That is what
        `min_in_sync` forbids: such a publish waits for a new member, or is nacked.
        """
        return self._confirmable

    @property
    def members(self) -> frozenset[str]:
        """Followers that have everything that was promised, and that promises wait for."""
        committed = self._committed
        return frozenset(
            name for name, live in self._live.items() if live.holds_back and live.acked >= committed
        )

    @property
    def is_short(self) -> bool:
        """Whether fewer than `min_in_sync` could take over; of those a record does not name, none could."""
        members = self.members
        return len(members & self._surely_recorded if self._records else members) < self._min_in_sync

    def lag(self, follower: str, now_ms: int) -> Lag | None:
        """The follower's lag; None when it is not live."""
        live = self._live.get(follower)
        if live is None:
            return None
        owes_from = live.owes_from
        since_ms = self._owed_since_ms(owes_from, now_ms) if live.holds_back else live.joined_ms
        return Lag(max(0, self._end - owes_from), (now_ms - since_ms) / 1000)

    # The record.

    @property
    def recorded(self) -> frozenset[str]:
        """The followers that the record names, as far as is known."""
        return self._recorded

    @property
    def wanted(self) -> frozenset[str] | None:
        """The set that the record should name; None when it does, or when there is no record.

        Also what the record named last is wanted again after a write with an unknown outcome.
        """
        members = self.members
        return members if self._records and (self._is_writing or members != self._recorded) else None

    def writing(self, members: frozenset[str]) -> None:
        """The record is about to be changed to `members`, as `wanted` told; call `written` when it has been.

        A write that fails, or whose outcome is not known, is followed by another one. Each must be made on
        condition that the record is still as the one before left it, so that a late one changes nothing.

        Raises:
            ValueError: one of them lacks what was promised.
        """
        missing = members - self.members
        if missing:
            raise ValueError(f"to be recorded as in sync, but not members: {', '.join(sorted(missing))}")
        self._maybe_recorded |= members
        self._surely_recorded &= members
        self._is_writing = True

    def written(self, members: frozenset[str]) -> None:
        """The record names `members`, and no write before this one can change it any more.

        Raises:
            ValueError: `writing` was not told of one of them.
        """
        unknown = members - self._maybe_recorded
        if unknown:
            raise ValueError(f"recorded as in sync without `writing`: {', '.join(sorted(unknown))}")
        self._recorded = self._maybe_recorded = self._surely_recorded = members
        self._is_writing = False
        self._gone = {name: acked for name, acked in self._gone.items() if name in members}
        self._advance()

    def _advance(self) -> None:
        """Let the promised end follow what it waits for."""
        end = min((live.acked for live in self._live.values() if live.holds_back), default=self._end)
        for name in self._maybe_recorded:
            live = self._live.get(name)
            if live is None or not live.holds_back:
                end = min(end, self._gone.get(name, 0))
        self._committed = max(self._committed, min(end, self._end))
        if not self.is_short:
            self._confirmable = self._committed

    # When what was shipped.

    def _sample(self, position: int, now_ms: int) -> None:
        """Note the time. What is merged gets the later time: nobody is dropped early."""
        samples = self._samples
        if samples and now_ms - self._sample_from_ms < self._grain_ms:
            samples[-1] = _LagSample(position, now_ms)
            return
        samples.append(_LagSample(position, now_ms))
        self._sample_from_ms = now_ms
        if len(samples) > _SAMPLES_MAX:
            # Only of one that has not reached its join position, or is a member and due at the next tick.
            samples[1] = _LagSample(samples[1].position, samples[0].at_ms)
            samples.popleft()

    def _prune(self) -> None:
        """Forget the marks that everyone has acked."""
        slowest = min((live.owes_from for live in self._live.values()), default=self._end)
        while self._samples and self._samples[0].position <= slowest:
            self._samples.popleft()

    def _shipped_by(self, at_ms: int) -> int:
        """A position up to which everything had been shipped then, 0 when nothing that is still owed was."""
        index = bisect_right(self._samples, at_ms, key=lambda sample: sample.at_ms)
        return self._samples[index - 1].position if index else 0

    def _owed_since_ms(self, position: int, now_ms: int) -> int:
        """When what is behind `position` was shipped, at the latest; now when nothing is."""
        index = bisect_right(self._samples, position, key=lambda sample: sample.position)
        return self._samples[index].at_ms if index < len(self._samples) else now_ms
