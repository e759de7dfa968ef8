"""The followers in sync with a leader, and the position up to which everything is promised to clients. Pure.

A position is the number of a cut: the octets of all changes that the node has cut since it started.
`core.replication.replica_set` defines the followers that promises wait for, and the order of their record in etcd.
This class adds the policy of a whole node: promises wait for each follower from its join on, a follower that owes an
ack for too long is dropped, and with fewer than `min_in_sync` members publishes are not confirmed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from leveret.core.replication.replica_set import Acks, Phase, ReplicaSet
from leveret.model.errors import PeerError

_SAMPLES_MAX: Final = 4096


class _LagSample(NamedTuple):
    """Everything up to `position` was shipped by `at_ms`."""

    position: int
    at_ms: int


class InSync:
    """The followers in sync with a leader: computes the promised position from shipped and acked positions.

    Positions and times are integers that never fall.

    Args:
        ack_timeout_ms: a follower is dropped if it has not acked a change that was shipped this long ago.
        min_in_sync: with fewer members, publishes are not confirmed.
        records_shrink: the set is recorded elsewhere before promises stop waiting for a follower that left.
        recorded: the followers that the record names at the start, without this node. Nothing is promised before
            they have joined again, or the record has changed.
    """

    def __init__(
        self,
        *,
        ack_timeout_ms: int,
        min_in_sync: int,
        records_shrink: bool = False,
        recorded: Iterable[str] = (),
    ) -> None:
        """Start without followers at position 0."""
        self._min_in_sync = min_in_sync
        self._ack_timeout_ms = ack_timeout_ms
        self._records = records_shrink
        self._recorded = frozenset(recorded)
        self._maybe_recorded = self._surely_recorded = self._recorded
        """The followers that the record may name, and those that it names whatever the result of a write in flight."""
        self._is_writing = False
        self._live: dict[str, int] = {}
        """The live followers, with the times from which promises wait for them, if they do; else of their joins."""
        self._replicas = ReplicaSet()
        self._end = 0
        self._confirmable = 0
        # So fine that a sample is past every timeout before it is merged for lack of room.
        self._grain_ms = 1 + ack_timeout_ms // (_SAMPLES_MAX // 2)
        self._samples: deque[_LagSample] = deque()
        self._sample_from_ms = 0

    # Events.

    def joined(self, follower: str, position: int, now_ms: int) -> None:
        """Note that the follower gets every frame from `position` on; its earlier link ends with this."""
        self.left(follower)
        self._live[follower] = now_ms
        self._replicas.joined(follower, Acks(), position)
        if position < self._end and not self._samples:
            self._sample(self._end, now_ms)

    def shipped(self, position: int, now_ms: int) -> None:
        """Note that frames up to `position` have been cut, with or without a follower that gets them.

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
        """Take an ack: the follower has everything up to `position` on its disk.

        A late ack of a follower that left is ignored.

        Raises:
            PeerError: that position was not shipped yet; the caller ends the link.
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
            self._live[follower] = now_ms
        acks.cut = position
        self._prune()
        self._advance()

    def left(self, follower: str) -> None:
        """Note that a follower's link ended, or that it is dropped; no effect on a follower that is not live."""
        if self._live.pop(follower, None) is None:
            return
        self._replicas.left(follower)
        self._prune()
        self._advance()

    def tick(self, now_ms: int) -> list[str]:
        """Drop and return the followers that have owed an ack for `ack_timeout_ms` or longer.

        The age of the oldest unacked change counts, not that of the last ack: a follower that acks all the time and
        falls ever further behind is dropped too. A follower that has not reached its join position delays no promise
        and stays; its time runs from that position.
        """
        long_ago_ms = now_ms - self._ack_timeout_ms
        due = self._shipped_by(long_ago_ms)
        late = [
            name
            for name, in_sync_from_ms in self._live.items()
            if self._holds_back(name)
            and in_sync_from_ms <= long_ago_ms
            and self._replicas.owes_from(name) < due
        ]
        for name in late:
            self.left(name)
        return late

    # Results.

    def committed(self) -> int:
        """Return the position up to which every member has everything; without members the shipped end. Never falls."""
        return self._replicas.promised

    def confirmable(self) -> int:
        """Return the position up to which publishes may be confirmed: `committed`, but unchanged while short.

        When a member leaves, `committed` may jump over changes that only the leader has. `min_in_sync` forbids to
        confirm those: such a publish waits for a new member, or is nacked.
        """
        return self._confirmable

    @property
    def members(self) -> frozenset[str]:
        """The followers that have every promised change, and that promises wait for."""
        return self._replicas.in_phase(Phase.MEMBER)

    @property
    def is_short(self) -> bool:
        """Whether fewer than `min_in_sync` members could take over; a member that a record does not name could not."""
        members = self.members
        return len(members & self._surely_recorded if self._records else members) < self._min_in_sync

    def lag_bytes(self, follower: str) -> int | None:
        """Return the octets that the follower owes; None if it is not live. Of times see `unacked_age`."""
        if follower not in self._live:
            return None
        return max(0, self._end - self._replicas.owes_from(follower))

    def _holds_back(self, follower: str) -> bool:
        return self._replicas.phase(follower) is not Phase.JOINING

    # The record.

    @property
    def recorded(self) -> frozenset[str]:
        """The followers that the record names, as far as this node knows."""
        return self._recorded

    @property
    def wanted(self) -> frozenset[str] | None:
        """The set that the record should name; None if the record names it, or there is no record.

        After a write with an unknown outcome every set is wanted again, also the last recorded one.
        """
        members = self.members
        return members if self._records and (self._is_writing or members != self._recorded) else None

    def writing(self, members: frozenset[str]) -> None:
        """Note that the record is about to be changed to `members`, from `wanted`; `written` follows a success.

        The caller repeats a write that fails, or whose outcome is unknown. Each write must have the condition that
        the record is unchanged since the write before, so that a late one changes nothing.

        Raises:
            ValueError: one of them lacks promised changes.
        """
        missing = members - self.members
        if missing:
            raise ValueError(f"to be recorded as in sync, but not members: {', '.join(sorted(missing))}")
        self._maybe_recorded |= members
        self._surely_recorded &= members
        self._is_writing = True

    def written(self, members: frozenset[str]) -> None:
        """Note that the record names `members`, and that no earlier write can change it any more.

        Raises:
            ValueError: one of them was not passed to `writing`.
        """
        unknown = members - self._maybe_recorded
        if unknown:
            raise ValueError(f"recorded as in sync without `writing`: {', '.join(sorted(unknown))}")
        self._recorded = self._maybe_recorded = self._surely_recorded = members
        self._is_writing = False
        self._advance()

    def _advance(self) -> None:
        """Raise the promised position as far as the awaited acks allow."""
        holding = self._replicas.in_phase(Phase.HOLDING_BACK, Phase.MEMBER)
        self._replicas.wait_for([self._maybe_recorded | holding])
        self._replicas.advance(self._end)
        if not self.is_short:
            self._confirmable = self._replicas.promised

    # Times of shipped positions.

    def _sample(self, position: int, now_ms: int) -> None:
        """Store the time of a position. Merged samples get the later time: no follower is dropped early."""
        samples = self._samples
        if samples and now_ms - self._sample_from_ms < self._grain_ms:
            samples[-1] = _LagSample(position, now_ms)
            return
        samples.append(_LagSample(position, now_ms))
        self._sample_from_ms = now_ms
        if len(samples) > _SAMPLES_MAX:
            # The oldest samples belong to a follower before its join position, or to one that is due at the next tick.
            samples[1] = _LagSample(samples[1].position, samples[0].at_ms)
            samples.popleft()

    def _prune(self) -> None:
        """Remove the samples that every live follower has acked."""
        slowest = min(map(self._replicas.owes_from, self._live), default=self._end)
        while self._samples and self._samples[0].position <= slowest:
            self._samples.popleft()

    def _shipped_by(self, at_ms: int) -> int:
        """Return a position up to which everything was shipped by then; 0 if no unacked change was."""
        index = bisect_right(self._samples, at_ms, key=lambda sample: sample.at_ms)
        return self._samples[index - 1].position if index else 0
