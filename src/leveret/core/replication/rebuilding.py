"""Rebuilds a cluster that was lost with its etcd, from copies of its nodes: the leader of each queue. Pure.

Each copy becomes a node of the new cluster, under a new name. The most complete copy leads each queue:

1. A copy that its node knew to be complete comes before others. A mirror that was not synchronised may have the last
   messages and lack the first.
2. Then the end counts: the epoch of the last chunk, which rises with each leader, and the offset behind it.
3. Of equal ends, the copy that begins first.

Once the nodes run, all other copies are compared with the leader's, like those of any mirror that comes back: records
that only they have go to quarantine. If one of them ends later than the leader, the record says so (`Placement.lost`).

The new cluster has a new id. So a node that still has the old cluster's data, or runs in it, is no member of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from leveret.core.replication.cluster import LossyPromotion, Placement, term_of
from leveret.model import definitions as d
from leveret.model.errors import PreconditionFailed

_U64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class DescribedLog(msgspec.Struct, frozen=True, omit_defaults=True):
    """A copy of a queue's log.

    Attributes:
        epoch: the epoch of its last chunk; 0 for none.
        first_offset, next_offset: its extent.
        is_complete: whether its node knew that it had every confirmed message.
    """

    epoch: _U64
    first_offset: _U64
    next_offset: _U64
    is_complete: bool = False

    @property
    def _end(self) -> tuple[int, int]:
        return self.epoch, self.next_offset

    @property
    def rank(self) -> tuple[bool, tuple[int, int], int]:
        """The sort key of copies; the higher one is more complete."""
        return self.is_complete, self._end, -self.first_offset

    def ends_after(self, other: DescribedLog) -> bool:
        """Return whether this copy has records that the other lacks."""
        return self._end > other._end


class DescribedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a node that does not run: its own, or a follower's.

    Attributes:
        node: its name in the new cluster.
        node_id: the id of the data.
        cluster: the id of the old cluster; empty if unknown.
        lacks: the reason why it is no copy of any moment of its node; empty if it is one.
        changed_at_ms: the time of its newest chunk.
        definitions_at_ms: the time of its newest change of definitions.
        epoch_max: the highest epoch that a queue may have had.
        proof: the proof of its secret.
        definitions: the changes that make the definitions.
        logs: the copies by the epoch of the queue.
    """

    node: str
    node_id: str
    cluster: str
    lacks: str
    changed_at_ms: int
    definitions_at_ms: int
    epoch_max: int
    proof: str
    definitions: list[bytes]
    logs: dict[int, DescribedLog]


class RebuiltQueue(NamedTuple):
    """A queue of the new cluster.

    Attributes:
        key: vhost and name.
        placement: its record.
        copies: the nodes with a copy, the leader first; if empty, the queue begins empty.
        copy: the leader's copy; None without one.
        later: the nodes whose copies end later than the leader's: they have messages that the leader lacks.
    """

    key: d.QueueKey
    placement: Placement
    copies: tuple[str, ...]
    copy: DescribedLog | None
    later: tuple[str, ...]


class RebuiltCluster(NamedTuple):
    """The new cluster.

    Attributes:
        definitions_of: the node with the newest definitions.
        definitions: these definitions.
        queues: all durable queues.
        epoch: at least the highest epoch that any queue ever had.
    """

    definitions_of: str
    definitions: d.Definitions
    queues: list[RebuiltQueue]
    epoch: int


def check(copies: Sequence[DescribedCopy], proof: str, *, force: bool) -> None:
    """Refuse copies that do not belong together.

    Args:
        copies: the nodes of the new cluster.
        proof: the proof of the new cluster's secret.
        force: also take copies that are no copies of any moment.

    Raises:
        PreconditionFailed: the copies do not belong together; the text names them, and the remedy.
    """
    for what, values in (("node name", [c.node for c in copies]), ("data", [c.node_id for c in copies])):
        twice = next((each for each in values if values.count(each) > 1), None)
        if twice is not None:
            raise PreconditionFailed(
                f"two of the copies have the same {what}, {twice}: each copy becomes a node of its own"
            )
    clusters = sorted({copy.cluster for copy in copies if copy.cluster})
    if len(clusters) > 1:
        raise PreconditionFailed(f"the copies are of different clusters: {', '.join(clusters)}")
    for copy in copies:
        if copy.proof != proof:
            raise PreconditionFailed(
                f"the copy for node {copy.node} has another .replication_secret than this data directory: all nodes "
                "of a cluster have the same"
            )
        if copy.lacks and not force:
            raise PreconditionFailed(
                f"the copy for node {copy.node} is incomplete: {copy.lacks}; --force takes it"
            )


def rebuilt(copies: Sequence[DescribedCopy]) -> RebuiltCluster:
    """Return the new cluster of these copies; see the module."""
    newest = max(copies, key=lambda copy: copy.definitions_at_ms)
    definitions = d.Definitions()
    for octets in newest.definitions:
        definitions.apply(d.decode_change(octets))
    led = dict.fromkeys((copy.node for copy in copies), 0)
    queues = []
    for queue in sorted(_durable(definitions), key=lambda queue: queue.key):
        found = _rebuilt(queue, copies, led)
        led[found.placement.leader] += 1
        queues.append(found)
    epochs = [queue.epoch for queue in _durable(definitions)]
    return RebuiltCluster(
        newest.node, definitions, queues, max([0, *epochs, *(copy.epoch_max for copy in copies)])
    )


def _durable(definitions: d.Definitions) -> Iterable[d.Queue]:
    for queue in definitions.by_kind["queues"].values():
        if isinstance(queue, d.Queue) and queue.durable:
            yield queue


def _rebuilt(queue: d.Queue, copies: Collection[DescribedCopy], led: Mapping[str, int]) -> RebuiltQueue:
    has = {copy.node: copy.logs[queue.epoch] for copy in copies if queue.epoch in copy.logs}
    leader = max(has, key=lambda node: has[node].rank) if has else min(led, key=lambda node: led[node])
    others = tuple(sorted((node for node in has if node != leader), key=lambda node: has[node].rank))
    term = 1 + max((term_of(copy.epoch) for copy in has.values()), default=0)
    later = tuple(node for node in others if has[node].ends_after(has[leader]))
    placement = Placement(
        epoch=queue.epoch,
        leader=leader,
        run_id="",
        term=term,
        stopped=others,
        lost=LossyPromotion(term, 0, later[-1]) if later else None,
    )
    return RebuiltQueue(
        queue.key, placement, ((leader, *reversed(others)) if has else ()), has.get(leader), later
    )
