"""The next placement records, as nodes come and go and policies change: pure.

The leader of a queue writes its placement, and no other node does while the leader lives. When the leader is gone, each
node computes the same successor, and the successor writes. `core/replication/mirroring` chooses leader and mirrors by
RabbitMQ's rules; this module makes the next record of that. docs/adr/0008-cluster.md has the order in which a record
and its promises change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from leveret.core.replication.cluster import Lost, Placement, Presence
from leveret.core.replication.mirroring import (
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
        incarnation: its present one.
        members: all nodes, in an order that is the same everywhere.
        alive: those that run, this one among them.
        shuffle: for where nodes are chosen by chance.
    """

    me: str
    incarnation: str
    members: Sequence[str]
    alive: dict[str, Presence]
    shuffle: Shuffle


class RequiredMirrors(NamedTuple):
    """The mirrors that promises wait for: all mirrors of each of these sets, or a majority of each set."""

    sets: tuple[frozenset[str], ...]
    majority: bool


class PlacementStep(NamedTuple):
    """The steps of a leader from the present record to the wanted one.

    Attributes:
        placement: to be written now, unless it is as before.
        waits: what promises wait for, from before it is written.
        is_open: whether there is more to be written, once `waits` is fulfilled for all that may have been promised
            before.
    """

    placement: Placement
    waits: RequiredMirrors
    is_open: bool


class Next(NamedTuple):
    """What a leader makes of its queue's placement.

    Attributes:
        placement: to be written, unless it is as before.
        move_to: the node that is to lead instead, once it was given everything; empty for none.
    """

    placement: Placement
    move_to: str = ""


def first(
    epoch: int, leader: str, policy: MirrorPolicy, cluster_view: ClusterView, *, exclusive: bool
) -> Placement:
    """Of a queue that is declared now: there is nothing in it yet, so its first mirrors have all of it."""
    incarnation = (
        cluster_view.alive[leader].incarnation if leader in cluster_view.alive else cluster_view.incarnation
    )
    serving = [name for name, presence in cluster_view.alive.items() if presence.uri]
    wanted = suggest(policy, leader, (), (), cluster_view.members, serving, cluster_view.shuffle)
    mirrors = tuple(node for node in wanted.mirrors if node != leader)
    return Placement(
        epoch=epoch,
        leader=leader,
        incarnation=incarnation,
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
) -> Next:
    """Of a queue that this node leads, by its policy and by who is there.

    Args:
        placement: as it is recorded.
        policy: what the queue's policies say.
        ready: the mirrors that have all that this node has, and are told of each change.
        joined: the mirrors whose copies were compared with what is here: what else they had is quarantined there.
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
        # It is a mirror until it leads; and this node is not one of the queue's any more when it does.
        mirrors = tuple(dict.fromkeys((*_still(placement.mirrors, alive), *mirrors, wanted.leader)))
    # A node that runs again and is no mirror has nothing to go on from, once those that replaced it have everything:
    # its copy would take room for ever.
    is_complete = all(node in ready for node in mirrors)
    before = [
        node
        for node in placement.stopped
        if node not in mirrors and node not in gone and not (is_complete and node in alive)
    ]
    lost = placement.lost
    if lost is not None and (lost.by in joined or lost.by not in cluster_view.members):
        # What it had is quarantined there by now, or does not come back.
        lost = msgspec.structs.replace(lost, by="")
    elif lost is not None and lost.by in alive and lost.by not in (me, *mirrors):
        # Only as a mirror it is compared, and what it alone has is quarantined before its copy goes.
        mirrors = (*mirrors, lost.by)
    return Next(
        msgspec.structs.replace(
            placement,
            incarnation=cluster_view.incarnation,
            mirrors=mirrors,
            synchronised=tuple(node for node in mirrors if node in ready),
            stopped=tuple(node for node in (*before, *gone) if _may_return(node, policy, cluster_view)),
            majority=policy.is_mirrored and policy.confirm == MAJORITY,
            closed=False,
            lost=lost,
            members=_members(policy),
        ),
        wanted.leader if wanted.leader != me and wanted.leader in ready else "",
    )


def _members(policy: MirrorPolicy) -> tuple[str, ...]:
    return policy.params if policy.has_members and isinstance(policy.params, tuple) else ()


def step(before: Placement, wanted: Placement, fulfilled: RequiredMirrors | None) -> PlacementStep:
    """The part of the wanted record that may be written now: no recorded mirror may lack a confirmed message.

    Of a record that says *all*, each one has everything: so a mirror is taken in only once it has what may have been
    promised before it was waited for, and who is taken out is at once. Of one that says *majority*, enough of them have
    everything together: so whenever another set counts, first a majority of the old one and of the new one have it; or
    for a moment nobody is recorded, where that cannot be.
    That *all* have it is recorded once they do; that *a majority* has it, before that is all that promises wait for.
    A leader that has begun anew records that before it confirms by majority: who asks the mirrors what they have, to
    succeed the one that ended, must not count on what they say afterwards.

    Args:
        before: as it is recorded.
        wanted: see `following`.
        fulfilled: what promises have waited for without a break since the mirrors had what was promised before that.
    """
    having, wants = frozenset(before.synchronised), frozenset(wanted.synchronised)
    if before.majority and before.incarnation != wanted.incarnation:
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
        # Too few of the old set are left to have anything more together: only this node has everything for certain.
        alone = msgspec.structs.replace(wanted, synchronised=(), majority=True)
        return PlacementStep(alone, RequiredMirrors((having,), majority=True), is_open=False)
    waits = RequiredMirrors((having, wants), before.majority)
    if fulfilled != waits:
        return PlacementStep(_recorded(before, wanted, having), waits, is_open=True)
    return PlacementStep(msgspec.structs.replace(wanted, majority=before.majority), waits, is_open=False)


def _recorded(before: Placement, wanted: Placement, having: frozenset[str]) -> Placement:
    """What is wanted, but that who was recorded as synchronised, and how, stays so."""
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
    """Whether a node that went away keeps its copy: it continues that if it mirrors the queue again."""
    if policy.mode == NODES:
        return isinstance(policy.params, tuple) and node in policy.params
    return policy.is_mirrored and node in cluster_view.members


def _still(nodes: Sequence[str], alive: Collection[str]) -> list[str]:
    return [node for node in nodes if node in alive]


def promotion(placement: Placement, policy: MirrorPolicy, alive: Collection[str]) -> QueuePromotion:
    """The successor of a leader that does not run.

    What its confirms have waited for is what the record says; the policy may be another one by now.
    """
    policy = msgspec.structs.replace(policy, confirm=MAJORITY if placement.majority else ALL)
    found = successor(policy, placement.mirrors, placement.synchronised, alive, is_graceful=False)
    if not placement.closed or found.is_complete:
        return found
    # Its leader has not failed: what the policy allows after a stop holds. It does not say who has what of a majority.
    after_stop = successor(policy, placement.mirrors, placement.synchronised, alive, is_graceful=True)
    if placement.majority and after_stop.is_complete:
        return after_stop._replace(leader=None, mirrors=(), is_complete=False, log="")
    return after_stop


def taken_over(placement: Placement, promoted: QueuePromotion, cluster_view: ClusterView) -> Placement:
    """Of a queue that another node leads from now on, as its leader is gone, or cannot read what it has.

    Who is recorded as synchronised stays so: it has all that was confirmed, and promises wait for it from the first.
    """
    leader = promoted.leader or ""
    synchronised = placement.synchronised if promoted.is_complete else ()
    return _led_by(placement, leader, cluster_view.alive[leader].incarnation, promoted.mirrors, synchronised)


def with_loss(before: Placement, after: Placement, begins_at: int) -> Placement:
    """The record of a leader that lacks messages, and has the others from `begins_at` on."""
    return msgspec.structs.replace(after, lost=Lost(after.term, begins_at, before.leader))


def withdrawn(placement: Placement, node: str) -> Placement:
    """The record that a mirror writes when it cannot read its copy and the leader is gone.

    So others may lead if they have everything. Of a record that says *all*, each of the others has everything. Of one
    that says *majority*, everything is with so many of those recorded that this one may be left out: it stays in, for
    it counts, but is the last that would lead. Where too few are left for that, nobody is known to have everything but
    the leader.
    """
    recorded = [each for each in placement.synchronised if each != node]
    others = [each for each in placement.mirrors if each != node]
    if placement.majority and node in placement.synchronised:
        count = len(placement.synchronised)
        may_ask = len(recorded) >= asked_for_all(_BY_MAJORITY, count)
        recorded = [*recorded, node] if may_ask else []
    return msgspec.structs.replace(placement, mirrors=(*others, node), synchronised=tuple(recorded))


def must_be_gone(placement: Placement, promoted: QueuePromotion) -> tuple[str, ...]:
    """Who must not have come back when this is written: as messages are lost, whoever is recorded to have them."""
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
    """Of a queue whose confirms waited for a majority: who has most of it leads, for that has all that was confirmed.

    Args:
        placement: as it is recorded.
        promoted: who was to lead, and whom to ask.
        ends: of those that answered, and of this node: the epoch of the last chunk that is on the disk, and the offset
            behind it. Others come to be synchronised again as any mirror does.
        cluster_view: the cluster, after all that.

    Returns:
        None if too few have said what they have.
    """
    running = {node: end for node, end in ends.items() if node in cluster_view.alive}
    if len(running) < promoted.least or not running:
        return None
    leader = max(running, key=lambda node: running[node])
    equal = [node for node in running if running[node] == running[leader]]
    mirrors = tuple(node for node in (promoted.leader or "", *promoted.mirrors) if node != leader)
    return _led_by(placement, leader, cluster_view.alive[leader].incarnation, mirrors, equal)


def handed_over(
    placement: Placement, to: str, complete: Collection[str], cluster_view: ClusterView
) -> Placement:
    """Of a queue that this node leads, and another one from now on; `to` and `complete` have everything."""
    mirrors = tuple(node for node in placement.mirrors if node != to)
    synchronised = [node for node in placement.synchronised if node in complete]
    return _led_by(placement, to, cluster_view.alive[to].incarnation, mirrors, synchronised)


def _led_by(
    placement: Placement, leader: str, incarnation: str, mirrors: Sequence[str], synchronised: Collection[str]
) -> Placement:
    others = tuple(node for node in mirrors if node != leader)
    gone = [node for node in placement.mirrors if node not in (leader, *others)]
    stopped = tuple(
        node for node in placement.stopped if node not in (leader, placement.leader, *others, *gone)
    )
    return msgspec.structs.replace(
        placement,
        leader=leader,
        incarnation=incarnation,
        term=placement.term + 1,
        mirrors=others,
        synchronised=tuple(node for node in others if node in synchronised),
        # Also those that were gone before it: they have a copy to go on from, or more than who leads now.
        stopped=(*stopped, *gone, placement.leader),
        majority=False,
        closed=False,
    )


def led_when_started(placement: Placement, leader: str) -> Placement:
    """Of a queue whose leader is forgotten: a mirror that was stopped leads it once it runs again."""
    copies = dict.fromkeys((*placement.mirrors, *placement.stopped))
    return msgspec.structs.replace(
        placement,
        leader=leader,
        incarnation="",
        term=placement.term + 1,
        mirrors=(),
        synchronised=(),
        stopped=tuple(node for node in copies if node not in (leader, placement.leader)),
        majority=False,
    )


class PendingSurvey(NamedTuple):
    """Of a queue whose leader is forgotten: who has to say what it has of it.

    Attributes:
        running: to be asked; none where the record says who has all that was confirmed.
        silent: they are down, and without them it is not known.
    """

    running: tuple[str, ...]
    silent: tuple[str, ...]


def asked_without(
    name: str, placement: Placement, members: Collection[str], alive: Collection[str]
) -> PendingSurvey:
    """Whom to ask before a queue is led without `name`: where a majority had what was confirmed, nobody need have all.

    Enough of those recorded always include one that has it. Those that are no members any more do not come back: then
    the most that is to be had is what the others have.
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
    """Whether a queue is gone with its leader's process: one that nobody else has, and that does not outlive a node."""
    if durable and not placement.exclusive:
        return False
    leader = alive.get(placement.leader)
    return leader is None or leader.incarnation != placement.incarnation


class QueuePlacement(NamedTuple):
    """The placement of a queue, as one node sees it.

    Attributes:
        leader: the node that leads it, or that led it last.
        mirrors: the nodes that mirror it and run, oldest first.
        synchronised_mirrors: those of them that have all that the leader has.
        recoverable_mirrors: all nodes that have a copy beside the leader, also those that are stopped; of a quorum
            queue as many as its group has.
        is_mirrored: whether a policy has it mirrored, be there a mirror or not.
        state: `running`, `syncing` (it runs, and a mirror is sent what it lacks) or `down` (nobody leads it).
        term: higher with each leader; 0 outside a cluster.
        is_exclusive: whether it belongs to a connection, and goes with it.
        lost_by: the node that has messages which the queue is led on without, until it is back; empty for none.
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
