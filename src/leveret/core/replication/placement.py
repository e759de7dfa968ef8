"""The next placement records, as nodes come and go and policies change: pure.

The leader of a queue writes its placement, and no other node does while the leader lives. When the leader is gone, each
node computes the same successor, and the successor writes. `core/replication/leader_and_mirrors` chooses leader and
mirrors by RabbitMQ's rules; this module makes the next record from that. docs/adr/0008-cluster.md has the order in
which a record and its promises change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from leveret.core.replication.cluster import HandOver, LossyPromotion, Placement, Presence
from leveret.core.replication.leader_and_mirrors import (
    QueuePromotion,
    Shuffle,
    asked_for_all,
    confirms_needed,
    successor,
    suggest,
)
from leveret.core.rules.mirror_policy import ALL, MAJORITY, NODES, MirrorPolicy

_BY_MAJORITY: Final = MirrorPolicy(confirm=MAJORITY)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster, as one node sees it.

    Attributes:
        me: this node.
        run_id: its present run id.
        members: all nodes, in an order that is the same on all nodes.
        alive: the running nodes, with this one.
        shuffle: the order for random choices.
    """

    me: str
    run_id: str
    members: Sequence[str]
    alive: dict[str, Presence]
    shuffle: Shuffle

    @property
    def serving(self) -> list[str]:
        """The members that run and accept links of other nodes, in order."""
        return [name for name in self.members if name in self.alive and self.alive[name].uri]


class RequiredMirrors(NamedTuple):
    """The mirrors that promises wait for: all mirrors of each of these sets, or a majority of each set."""

    sets: tuple[frozenset[str], ...]
    majority: bool


class PlacementStep(NamedTuple):
    """A leader's step from the present record towards the wanted one.

    Attributes:
        placement: the record to write now, unless it is unchanged.
        waits: the mirrors that promises wait for, from before the write on.
        is_open: whether another write follows, once `waits` is fulfilled for everything that may have been promised
            before.
    """

    placement: Placement
    waits: RequiredMirrors
    is_open: bool


class NextPlacement(NamedTuple):
    """The next placement that a leader wants for its queue.

    Attributes:
        placement: the record to write, unless it is unchanged.
        move_to: the node that is to lead instead, once the leader has handed over; empty for none.
    """

    placement: Placement
    move_to: str = ""


def first(
    epoch: int, leader: str, policy: MirrorPolicy, cluster_view: ClusterView, *, exclusive: bool
) -> Placement:
    """Return the record of a new queue: it is empty, so its first mirrors are synchronised."""
    run_id = cluster_view.alive[leader].run_id if leader in cluster_view.alive else cluster_view.run_id
    serving = [name for name, presence in cluster_view.alive.items() if presence.uri]
    wanted = suggest(policy, leader, (), (), cluster_view.members, serving, cluster_view.shuffle)
    mirrors = tuple(node for node in wanted.mirrors if node != leader)
    return Placement(
        epoch=epoch,
        leader=leader,
        run_id=run_id,
        term=1,
        mirrors=mirrors,
        synchronised=mirrors,
        exclusive=exclusive,
    )


def following(
    placement: Placement,
    policy: MirrorPolicy,
    ready: Collection[str],
    joined: Collection[str],
    cluster_view: ClusterView,
) -> NextPlacement:
    """Return the next record of a queue that this node leads, by its policy and the running nodes.

    Args:
        placement: the present record.
        policy: the queue's mirror policy.
        ready: the mirrors that have all records of this node, and receive each change.
        joined: the mirrors whose copies were compared with this node's: they have quarantined divergent records.
        cluster_view: the cluster.
    """
    alive, me = cluster_view.alive, cluster_view.me
    wanted = suggest(
        policy,
        me,
        placement.mirrors,
        placement.synchronised,
        cluster_view.members,
        alive,
        cluster_view.shuffle,
    )
    gone = [node for node in placement.mirrors if node not in alive]
    mirrors = tuple(node for node in wanted.mirrors if node != me)
    if wanted.leader != me:
        # The next leader is a mirror until it leads; then this node is neither leader nor mirror of the queue.
        mirrors = tuple(dict.fromkeys((*_still(placement.mirrors, alive), *mirrors, wanted.leader)))
    # Once all mirrors have everything, a node that runs again and is no mirror does not keep its copy, which would take
    # room for ever.
    is_complete = all(node in ready for node in mirrors)
    before = [
        node
        for node in placement.stopped
        if node not in mirrors and node not in gone and not (is_complete and node in alive)
    ]
    lost = placement.lost
    if lost is not None and (lost.by in (me, *joined) or lost.by not in cluster_view.members):
        # The messages of the previous leader are in its quarantine by now, or do not come back.
        lost = msgspec.structs.replace(lost, by="")
    elif lost is not None and lost.by in alive and lost.by not in mirrors:
        # Only mirrors are compared, so the previous leader quarantines its divergent records before its copy goes.
        mirrors = (*mirrors, lost.by)
        before = [node for node in before if node != lost.by]
    return NextPlacement(
        msgspec.structs.replace(
            placement,
            run_id=cluster_view.run_id,
            mirrors=mirrors,
            synchronised=tuple(node for node in mirrors if node in ready),
            stopped=tuple(node for node in (*before, *gone) if _may_return(node, policy, cluster_view)),
            majority=policy.is_mirrored and policy.confirm == MAJORITY,
            closed=False,
            lost=lost,
            members=_members(policy),
            leader_wrote=0,
        ),
        wanted.leader if wanted.leader != me and wanted.leader in ready else "",
    )


def _members(policy: MirrorPolicy) -> tuple[str, ...]:
    return policy.params if policy.has_members and isinstance(policy.params, tuple) else ()


def step(before: Placement, wanted: Placement, fulfilled: RequiredMirrors | None) -> PlacementStep:
    """Return the part of the wanted record that may be written now: no recorded mirror may lack a confirmed message.

    In a record by *all*, each mirror has everything. So a mirror is added only once it has everything that may have
    been promised before promises waited for it; a mirror is removed at once. In a record by *majority*, enough mirrors
    have everything together. So before another set counts, a majority of the old set and one of the new set have
    everything; where that is impossible, the record names no mirror for a moment.
    A change to *all* is recorded once all have everything; a change to *majority*, before promises wait for no more.
    A restarted leader records its run id before it confirms by majority: a node that asks the mirrors for their
    ends, to succeed the ended leader, must not rely on later answers.

    Args:
        before: the present record.
        wanted: see `following`.
        fulfilled: the mirrors that promises have waited for without a break, since they had all earlier promises.
    """
    having, wants = frozenset(before.synchronised), frozenset(wanted.synchronised)
    if before.majority and before.run_id != wanted.run_id:
        return PlacementStep(
            _recorded(before, wanted, having), RequiredMirrors((having,), majority=False), is_open=False
        )
    if having == wants:
        waits = RequiredMirrors((having,), before.majority and wanted.majority)
        is_open = before.majority and not wanted.majority and fulfilled != waits
        return PlacementStep(
            msgspec.structs.replace(wanted, majority=True) if is_open else wanted, waits, is_open
        )
    if not before.majority and having - wants:
        kept = tuple(node for node in wanted.synchronised if node in having)
        return PlacementStep(
            msgspec.structs.replace(wanted, synchronised=kept),
            RequiredMirrors((having,), majority=False),
            is_open=False,
        )
    if before.majority and len(having & wants) < confirms_needed(_BY_MAJORITY, len(having)):
        # Too few of the old set are left to have everything together: only this node has it for certain.
        alone = msgspec.structs.replace(wanted, synchronised=(), majority=True)
        return PlacementStep(alone, RequiredMirrors((having,), majority=True), is_open=False)
    waits = RequiredMirrors((having, wants), before.majority)
    if fulfilled != waits:
        return PlacementStep(_recorded(before, wanted, having), waits, is_open=True)
    return PlacementStep(msgspec.structs.replace(wanted, majority=before.majority), waits, is_open=False)


def _recorded(before: Placement, wanted: Placement, having: frozenset[str]) -> Placement:
    """Return the wanted record with the present synchronised mirrors and the present `majority`."""
    missing = [node for node in before.mirrors if node in having and node not in wanted.mirrors]
    mirrors = (*wanted.mirrors, *missing)
    return msgspec.structs.replace(
        wanted,
        mirrors=mirrors,
        synchronised=tuple(node for node in mirrors if node in having),
        stopped=tuple(node for node in wanted.stopped if node not in missing),
        majority=before.majority,
    )


def _may_return(node: str, policy: MirrorPolicy, cluster_view: ClusterView) -> bool:
    """Return whether a node that left keeps its copy, to continue it when it mirrors the queue again."""
    if policy.mode == NODES:
        return isinstance(policy.params, tuple) and node in policy.params
    return policy.is_mirrored and node in cluster_view.members


def _still(nodes: Sequence[str], alive: Collection[str]) -> list[str]:
    return [node for node in nodes if node in alive]


def promotion(
    placement: Placement, policy: MirrorPolicy, alive: Collection[str], late: Collection[str] = ()
) -> QueuePromotion:
    """Return the successor of a leader that does not run.

    The record, not the policy, tells which mirrors its confirms waited for: the policy may have changed since.

    `late`: the nodes that began to run after the leader's last record, so the leader was lost while they were stopped.
    A mirror that lacks messages may lead only if one ran at the loss: after a start of all nodes, the leader and
    complete mirrors come a moment later.
    """
    found = _promotion(placement, policy, alive)
    if found.is_complete or not late:
        return found
    ran = [node for node in alive if node not in late]
    if any(node in ran for node in placement.mirrors):
        ran += [node for node in placement.synchronised if node in alive and node in late]
    return _promotion(placement, policy, ran)


def _promotion(placement: Placement, policy: MirrorPolicy, alive: Collection[str]) -> QueuePromotion:
    policy = msgspec.structs.replace(policy, confirm=MAJORITY if placement.majority else ALL)
    found = successor(policy, placement.mirrors, placement.synchronised, alive, is_graceful=False)
    if not placement.closed or found.is_complete:
        return found
    # The leader stopped in order: the policy's rule for stops holds. It cannot tell which of a majority has everything.
    after_stop = successor(policy, placement.mirrors, placement.synchronised, alive, is_graceful=True)
    if placement.majority and after_stop.is_complete:
        return after_stop._replace(leader=None, mirrors=(), is_complete=False, log="")
    return after_stop


def taken_over(placement: Placement, promoted: QueuePromotion, cluster_view: ClusterView) -> Placement:
    """Return the record of a queue whose leader is gone, or cannot read its log, and that another node leads now.

    Synchronised mirrors stay recorded: they have every confirmed message, and promises wait for them from the first.
    """
    leader = promoted.leader or ""
    synchronised = placement.synchronised if promoted.is_complete else ()
    return _led_by(placement, leader, cluster_view.alive[leader].run_id, promoted.mirrors, synchronised)


def with_loss(before: Placement, after: Placement, begins_at: int) -> Placement:
    """Return the record of a leader that lacks messages, and whose copy begins at `begins_at`."""
    return msgspec.structs.replace(after, lost=LossyPromotion(after.term, begins_at, before.leader))


def withdrawn(placement: Placement, node: str, leader_wrote: int) -> Placement:
    """Return the record that a mirror writes when it cannot read its copy and the leader is gone.

    Then another mirror with everything may lead. In a record by *all*, each of the others has everything. In one by
    *majority*, so many mirrors have everything that this one may be left out: it stays recorded, because it counts,
    but would lead last. If too few others are left for that, only the leader is known to have everything, and the
    record names no synchronised mirror.

    `leader_wrote`: the revision of the leader's last record. It stays in the record, because nodes that began to run
    between the loss and this write have not run at the loss; see `promotion`.
    """
    recorded = [each for each in placement.synchronised if each != node]
    others = [each for each in placement.mirrors if each != node]
    if placement.majority and node in placement.synchronised:
        count = len(placement.synchronised)
        may_ask = len(recorded) >= asked_for_all(_BY_MAJORITY, count)
        recorded = [*recorded, node] if may_ask else []
    after = msgspec.structs.replace(placement, mirrors=(*others, node), synchronised=tuple(recorded))
    return placement if after == placement else msgspec.structs.replace(after, leader_wrote=leader_wrote)


def must_be_gone(placement: Placement, promoted: QueuePromotion) -> tuple[str, ...]:
    """Return the nodes that must still be absent when this is written: recorded mirrors with messages to be lost."""
    if promoted.is_complete:
        return ()
    return tuple(
        node for node in placement.synchronised if node != promoted.leader and node not in promoted.mirrors
    )


def led_by_most_complete(
    placement: Placement,
    promoted: QueuePromotion,
    ends: Mapping[str, tuple[int, int]],
    cluster_view: ClusterView,
) -> Placement | None:
    """Return the record of a queue by majority, led by its most complete copy, which has every confirmed message.

    Args:
        placement: the present record.
        promoted: the intended leader, and the mirrors to ask.
        ends: for this node and each that answered, the epoch of the last chunk on its disk, and the offset behind it.
            Mirrors with other ends than the leader become synchronised again as any mirror does.
        cluster_view: the cluster after the answers.

    Returns:
        The record; None if too few nodes have answered, or still run.
    """
    running = {node: end for node, end in ends.items() if node in cluster_view.alive}
    if len(running) < promoted.least or not running:
        return None
    leader = max(running, key=lambda node: running[node])
    equal = [node for node in running if running[node] == running[leader]]
    mirrors = tuple(node for node in (promoted.leader or "", *promoted.mirrors) if node != leader)
    return _led_by(placement, leader, cluster_view.alive[leader].run_id, mirrors, equal)


def handed_over(
    placement: Placement,
    to: str,
    complete: Collection[str],
    cluster_view: ClusterView,
    delivered_before: int | None = None,
) -> Placement:
    """Return the record of a queue that this node hands over to `to`; `to` and `complete` have everything.

    `delivered_before` is of cluster.HandOver; None if the next leader is to take all messages for delivered.
    """
    mirrors = tuple(node for node in placement.mirrors if node != to)
    synchronised = [node for node in placement.synchronised if node in complete]
    after = _led_by(placement, to, cluster_view.alive[to].run_id, mirrors, synchronised)
    known = HandOver(after.term, delivered_before) if delivered_before is not None else None
    return msgspec.structs.replace(after, hand_over=known)


def _led_by(
    placement: Placement, leader: str, run_id: str, mirrors: Sequence[str], synchronised: Collection[str]
) -> Placement:
    others = tuple(node for node in mirrors if node != leader)
    gone = [node for node in placement.mirrors if node not in (leader, *others)]
    stopped = tuple(
        node for node in placement.stopped if node not in (leader, placement.leader, *others, *gone)
    )
    return msgspec.structs.replace(
        placement,
        leader=leader,
        run_id=run_id,
        term=placement.term + 1,
        mirrors=others,
        synchronised=tuple(node for node in others if node in synchronised),
        # Also mirrors that left before the leader: their copies can be continued, or have more than the new leader's.
        stopped=(*stopped, *gone, placement.leader),
        majority=False,
        closed=False,
        leader_wrote=0,
    )


def led_when_started(placement: Placement, leader: str) -> Placement:
    """Return the record of a queue whose leader is forgotten: a stopped mirror leads it once it runs again."""
    copies = dict.fromkeys((*placement.mirrors, *placement.stopped))
    return msgspec.structs.replace(
        placement,
        leader=leader,
        run_id="",
        term=placement.term + 1,
        mirrors=(),
        synchronised=(),
        stopped=tuple(node for node in copies if node not in (leader, placement.leader)),
        majority=False,
        leader_wrote=0,
    )


class PendingSurvey(NamedTuple):
    """The nodes whose ends have to be known before a queue is led without its forgotten leader.

    Attributes:
        running: the nodes to ask; empty if the record alone tells which mirrors have every confirmed message.
        silent: the stopped nodes, if the running ones are too few; otherwise empty.
    """

    running: tuple[str, ...]
    silent: tuple[str, ...]


def asked_without(
    name: str, placement: Placement, members: Collection[str], alive: Collection[str]
) -> PendingSurvey:
    """Return the nodes to ask before a queue is led without `name`: by majority, no single mirror need be complete.

    Any quorum of the recorded mirrors contains one with every confirmed message. Nodes that left the cluster do not
    come back: then no more can be recovered than the copies of the others.
    """
    recorded = [node for node in placement.synchronised if node in members and node != name]
    if not placement.majority or len(recorded) < 2:
        return PendingSurvey((), ())
    count = len(placement.synchronised)
    running = tuple(node for node in recorded if node in alive)
    silent = tuple(node for node in recorded if node not in alive)
    is_enough = len(running) >= asked_for_all(_BY_MAJORITY, count)
    return PendingSurvey(running, () if is_enough else silent)


def is_lost(placement: Placement, alive: dict[str, Presence], *, durable: bool) -> bool:
    """Return whether a queue ended with its leader's process: it is transient or exclusive, so no node has a copy."""
    if durable and not placement.exclusive:
        return False
    leader = alive.get(placement.leader)
    return leader is None or leader.run_id != placement.run_id


class QueuePlacement(NamedTuple):
    """The placement of a queue, as one node sees it.

    Attributes:
        leader: the present or last leader.
        mirrors: the running mirrors, oldest first.
        synchronised_mirrors: the running mirrors that have all records of the leader.
        recoverable_mirrors: all nodes with a copy except the leader, also stopped ones; of a quorum queue as many as
            its group has.
        is_mirrored: whether a policy wants mirrors, with or without a present mirror.
        state: `running`, `syncing` (it runs, and a mirror catches up) or `down` (no node leads it).
        term: each leader's is higher; 0 outside a cluster.
        is_exclusive: whether it belongs to a connection, and ends with it.
        lost_by: the absent node that has messages which the leader lacks; empty for none.
        has_successor: whether another node would lead if the leader's node were lost now.
    """

    leader: str
    mirrors: tuple[str, ...] = ()
    synchronised_mirrors: tuple[str, ...] = ()
    recoverable_mirrors: tuple[str, ...] = ()
    is_mirrored: bool = False
    state: str = "running"
    term: int = 0
    is_exclusive: bool = False
    lost_by: str = ""
    has_successor: bool = False
