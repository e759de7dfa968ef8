"""A cluster that is gone with its etcd is built anew from copies of its nodes: who leads each queue, pure.

Each copy becomes a node of the new cluster, under a name of its own. Of each queue the most complete copy leads:

1. A copy that its node knew to be complete goes before others. A mirror that was not synchronised may have the last
   messages and lack the first.
2. Then the end counts: the epoch of the last chunk, which rises with each leader, and the offset behind it.
3. Of equal ends, the copy that begins first.

All other copies are compared with it once the nodes run, as the copies of any mirror that comes back: records that only
they have go to quarantine. The record says so where one of them ends later than the leader (`Lost`).

The new cluster has an id of its own. So a node that still has the old one's data, or runs in it, is no member of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from leveret.core.replication.cluster import Lost, Placement
from leveret.model import definitions as d
from leveret.model.errors import PreconditionFailed

TERM_SHIFT: Final = 32
"""The epoch of a chunk in a cluster has the queue's term in its upper bits."""
_U64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class DescribedLog(msgspec.Struct, frozen=True, omit_defaults=True):
    """A copy of a queue's log.

    Attributes:
        epoch: of its last chunk; 0 for none.
        first_offset, next_offset: what it holds.
        is_complete: whether its node knew that it had all that was confirmed.
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
        """Higher is more complete."""
        return self.is_complete, self._end, -self.first_offset

    def ends_after(self, other: DescribedLog) -> bool:
        """Whether it has records that the other lacks."""
        return self._end > other._end


class DescribedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a node that does not run: its own, or a follower's.

    Attributes:
        node: the name that it is to have in the new cluster.
        node_id: of the data.
        cluster: the id of the cluster that the data come from; empty if that is not known.
        lacks: why it is no copy of any moment of its node; empty for nothing.
        changed_at_ms: when its newest chunk was made.
        definitions_at_ms: when its newest change of definitions was made.
        epoch_max: the highest epoch that a queue may have had.
        proof: shows which secret it has.
        definitions: changes that make the definitions.
        logs: by the epoch of the queue.
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
        copies: the nodes with a copy, the leader first; none: it begins empty.
        copy: the leader's; None if there is none.
        later: nodes whose copies end later than the leader's: they have messages that the queue is led on without.
    """

    key: tuple[str, str]
    placement: Placement
    copies: tuple[str, ...]
    copy: DescribedLog | None
    later: tuple[str, ...]


class RebuiltCluster(NamedTuple):
    """The new cluster.

    Attributes:
        definitions_of: the node whose definitions it has, which are the newest.
        definitions: these.
        queues: all queues.
        epoch: higher than the epoch that any queue ever had.
    """

    definitions_of: str
    definitions: d.Definitions
    queues: list[RebuiltQueue]
    epoch: int


def check(copies: Sequence[DescribedCopy], proof: str, *, force: bool) -> None:
    """Refuse copies that do not belong together.

    Args:
        copies: the nodes of the new cluster.
        proof: of the secret that the cluster is to have.
        force: also take copies that are no copies of any moment.

    Raises:
        PreconditionFailed: names the copies, and the remedy.
    """
    for what, values in (("node name", [c.node for c in copies]), ("data", [c.node_id for c in copies])):
        twice = next((each for each in values if values.count(each) > 1), None)
        if twice is not None:
            raise PreconditionFailed(
                f"two of the copies have the same {what}, {twice}: each is to be one node"
            )
    clusters = sorted({copy.cluster for copy in copies if copy.cluster})
    if len(clusters) > 1:
        raise PreconditionFailed(f"the copies are of different clusters: {', '.join(clusters)}")
    for copy in copies:
        if copy.proof != proof:
            raise PreconditionFailed(
                f"the copy for node {copy.node} has another .replication_secret than this data directory: all nodes of "
                "a cluster have the same"
            )
        if copy.lacks and not force:
            raise PreconditionFailed(
                f"the copy for node {copy.node} is incomplete: {copy.lacks}; --force takes it"
            )


def rebuilt(copies: Sequence[DescribedCopy]) -> RebuiltCluster:
    """The new cluster of these copies; see the module."""
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
    term = 1 + max((copy.epoch >> TERM_SHIFT for copy in has.values()), default=0)
    later = tuple(node for node in others if has[node].ends_after(has[leader]))
    placement = Placement(
        epoch=queue.epoch,
        leader=leader,
        incarnation="",
        term=term,
        stopped=others,
        lost=Lost(term, 0, later[-1]) if later else None,
    )
    key = (queue.vhost, queue.name)
    return RebuiltQueue(key, placement, ((leader, *reversed(others)) if has else ()), has.get(leader), later)
