"""The followers in sync with a leader, and the position up to which everything is promised to clients. Pure.

A position is the number of a cut: the octets of all changes that the node has cut since it started. Which followers
promises wait for, and in which order they are recorded in etcd, is said in `core.replication.replica_set`. This class
adds the policy of a whole node: promises wait for each follower from its join on, a follower that owes an ack for too
long is dropped, and with fewer than `min_in_sync` members publishes are not confirmed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from leveret.core.replication.replica_set import Acks, Phase, ReplicaSet
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


@dataclass(slots=True)
class _Times:
    """Of a follower that gets every frame: since when, and since when promises wait for it, if they do."""

    joined_ms: int
    in_sync_from_ms: int


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
        self._live: dict[str, _Times] = {}
        self._replicas = ReplicaSet()
        self._end = 0
        self._confirmable = 0
        # Fine enough that a mark which is merged for want of room is past every timeout already.
        self._grain_ms = 1 + ack_timeout_ms // (_SAMPLES_MAX // 2)
        self._samples: deque[_LagSample] = deque()
        self._sample_from_ms = 0

    # What happens.

    def joined(self, follower: str, position: int, now_ms: int) -> None:
        """The follower gets every frame from `position` on; an earlier link of the follower ends with this."""
        self.left(follower)
        self._live[follower] = _Times(now_ms, now_ms)
        self._replicas.joined(follower, Acks(), position)
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
        acks = self._replicas.acks(follower)
        if acks is None or position <= acks.cut:
            return
        end = max(self._end, self._replicas.owes_from(follower))
        if position > end:
            raise PeerError(
                f"follower {follower} acks position {position}, but the last one shipped is {end}"
            )
        if not self._holds_back(follower):
            self._live[follower].in_sync_from_ms = now_ms
        acks.cut = position
        self._prune()
        self._advance()

    def left(self, follower: str) -> None:
        """Its link is gone, or it is dropped; nothing happens when it was not live."""
        if self._live.pop(follower, None) is None:
            return
        self._replicas.left(follower)
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
            for name, times in self._live.items()
            if self._holds_back(name)
            and times.in_sync_from_ms <= long_ago_ms
            and self._replicas.owes_from(name) < due
        ]
        for name in late:
            self.left(name)
        return late

    # What follows from it.

    def committed(self) -> int:
        """The position up to which every member has everything, the shipped end without any; never falls."""
        return self._replicas.promised

    def confirmable(self) -> int:
        """The position up to which publishes may be confirmed: as `committed`, but it rests while short.

        When a member leaves, `committed` may jump over what nobody has but the leader. That is what
        `min_in_sync` forbids: such a publish waits for a new member, or is nacked.
        """
        return self._confirmable

    @property
    def members(self) -> frozenset[str]:
        """Followers that have everything that was promised, and that promises wait for."""
        return self._replicas.in_phase(Phase.MEMBER)

    @property
    def is_short(self) -> bool:
        """Whether fewer than `min_in_sync` could take over; of those a record does not name, none could."""
        members = self.members
        return len(members & self._surely_recorded if self._records else members) < self._min_in_sync

    def lag(self, follower: str, now_ms: int) -> Lag | None:
        """The follower's lag; None when it is not live."""
        times = self._live.get(follower)
        if times is None:
            return None
        owes_from = self._replicas.owes_from(follower)
        since_ms = self._owed_since_ms(owes_from, now_ms) if self._holds_back(follower) else times.joined_ms
        return Lag(max(0, self._end - owes_from), (now_ms - since_ms) / 1000)

    def _holds_back(self, follower: str) -> bool:
        return self._replicas.phase(follower) is not Phase.JOINING

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
        self._advance()

    def _advance(self) -> None:
        """Let the promised end follow what it waits for."""
        holding = self._replicas.in_phase(Phase.HOLDING_BACK, Phase.MEMBER)
        self._replicas.wait_for([self._maybe_recorded | holding])
        self._replicas.advance(self._end)
        if not self.is_short:
            self._confirmable = self._replicas.promised

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
        slowest = min(map(self._replicas.owes_from, self._live), default=self._end)
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
