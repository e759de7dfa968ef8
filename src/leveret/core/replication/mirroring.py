"""The leader and the mirrors of a mirrored queue, and the successor of a lost leader: pure.

The rules are RabbitMQ's (3.13), and its guide's where the two differ. Nodes are identified by name. Lists of
mirrors are in the order of their age, oldest first. A mirror is *synchronised* when it has everything that its leader
has. The cluster records the synchronised mirrors, and a leader changes the record before it stops waiting for one.

Chance and order come from the caller only, so that all nodes that decide reach the same decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from leveret.core.rules.mirror_policy import ALWAYS, MAJORITY, WHEN_SYNCED, MirrorPolicy

STOPPING: Final = "Stopping all nodes on master shutdown since no synchronised mirror (replica) is available"
"""What RabbitMQ logs when a leader that is stopped takes its queue with it."""

Shuffle = Callable[[Sequence[str]], Sequence[str]]
"""The same nodes in another order, by chance or not."""


class WantedPlacement(NamedTuple):
    """The wanted placement of a queue: its leader and its mirrors, present mirrors first and in their order."""

    leader: str
    mirrors: tuple[str, ...]


class QueuePromotion(NamedTuple):
    """The fate of a queue whose leader is gone.

    Attributes:
        leader: the mirror that leads from now on; None for nobody: the queue is down until its leader returns.
        mirrors: those that still mirror it, oldest first.
        is_complete: whether the new leader has all that was confirmed, once it has asked `asks`. If not, messages
            are lost that only the old leader had.
        asks: of a queue whose confirms wait for a majority: the mirrors that the new leader has to ask for what it
            lacks, before it leads.
        least: how many of those that are asked, itself among them, have to say what they have.
        log: what to log of it, behind `Mirrored queue 'q' in vhost 'v': `; empty for nothing.
    """

    leader: str | None
    mirrors: tuple[str, ...] = ()
    is_complete: bool = True
    asks: tuple[str, ...] = ()
    log: str = ""
    least: int = 1


# -- where mirrors go -----------------------------------------------------------------------------


def suggest(
    policy: MirrorPolicy,
    leader: str,
    mirrors: Sequence[str],
    synchronised: Collection[str],
    members: Sequence[str],
    alive: Collection[str],
    shuffle: Shuffle,
) -> WantedPlacement:
    """Which node should lead a queue and which should mirror it, by its policy and what there is.

    Args:
        policy: what the queue's policies say.
        leader: who leads now, and runs; it stays, but for the mode "nodes". (Of one that is gone: `successor`.)
        mirrors: who mirrors now, oldest first; those that do not run count for nothing.
        synchronised: those of them that have all that the leader has.
        members: the nodes of the cluster, in an order that is the same everywhere. A caller that wants to know
            whether *one* node should mirror hands in that one and those that have the queue.
        alive: the nodes that run. No other is given a mirror.
        shuffle: puts the nodes that "exactly" may choose from in the order in which they are taken. Nodes that
            still have a copy may come first.

    Returns:
        For "nodes" the leader is another than now only if that one is synchronised.
    """
    has = [node for node in mirrors if node in alive and node != leader]
    others = [node for node in members if node in alive and node != leader]
    match policy.mode, policy.params:
        case "all", _:
            return WantedPlacement(leader, _kept_first(has, others))
        case "exactly", int(count):
            return WantedPlacement(leader, _exactly(count - 1, has, others, shuffle))
        case "nodes", tuple(listed):
            running = [leader, *others] if leader in alive else others
            synced = [node for node in has if node in synchronised]
            return _on_nodes([node for node in listed if node in running], leader, has, synced)
    return WantedPlacement(leader, ())


def _exactly(count: int, has: list[str], others: list[str], shuffle: Shuffle) -> tuple[str, ...]:
    """The mirrors there are, the youngest left out if they are too many, others added if too few."""
    missing = count - len(has)
    if missing <= 0:
        return tuple(has[:count])
    return (*has, *shuffle([node for node in others if node not in has])[:missing])


def _on_nodes(available: list[str], leader: str, has: list[str], synced: list[str]) -> WantedPlacement:
    """The listed nodes that run; the leader stays until one of them, or any mirror, can follow it without loss."""
    if not available:
        return WantedPlacement(leader, ())
    if leader not in available and synced:
        leader = next((node for node in available if node in synced), synced[0])
    return WantedPlacement(leader, _kept_first(has, [node for node in available if node != leader]))


def _kept_first(has: list[str], wanted: list[str]) -> tuple[str, ...]:
    """The wanted ones: those there are by age, then the new ones."""
    return (*(node for node in has if node in wanted), *(node for node in wanted if node not in has))


# -- who follows a leader -------------------------------------------------------------------------


def successor(
    policy: MirrorPolicy,
    mirrors: Sequence[str],
    synchronised: Collection[str],
    alive: Collection[str],
    *,
    is_graceful: bool,
) -> QueuePromotion:
    """The successor of a lost leader: the oldest synchronised mirror, else the oldest mirror if the policy allows that.

    With `ha-confirm: majority` a single mirror need not have everything. All that run have it together, if they
    are so many that every message that was confirmed must be with one of them.

    Args:
        policy: what the queue's policies say.
        mirrors: its mirrors, oldest first.
        synchronised: those of them that are recorded as synchronised, whether they run or not.
        alive: the nodes that run, the leader not among them.
        is_graceful: whether the leader stops in order, and hands over what it has; else it has failed.
    """
    running = [node for node in mirrors if node in alive]
    synced = [node for node in running if node in synchronised]
    recorded = sum(node in synchronised for node in mirrors)
    asks = not is_graceful and policy.confirm == MAJORITY
    least = asked_for_all(policy, recorded) if asks else 1
    if len(synced) >= least:
        return _promoted(synced[0], running, asks=synced[1:] if asks else [], least=least)
    if running and _may_lose(policy, is_graceful=is_graceful):
        return _promoted((synced or running)[0], running, asks=synced[1:], is_complete=False)
    return QueuePromotion(None, log=_why_nobody(policy, running, is_graceful=is_graceful))


def confirms_needed(policy: MirrorPolicy, synchronised: int) -> int:
    """Of `synchronised` mirrors, how many besides the leader must have a message before it is confirmed.

    With a majority the leader counts as one of those that have it.
    """
    return (synchronised + 1) // 2 if policy.confirm == MAJORITY else synchronised


def asked_for_all(policy: MirrorPolicy, synchronised: int) -> int:
    """The smallest k such that any k of the synchronised mirrors together hold every confirmed message."""
    return synchronised - confirms_needed(policy, synchronised) + 1


def stopped_successor(stopped: Sequence[str], leader: str, alive: Collection[str]) -> str | None:
    """The mirror that leads, once it starts, after `forget_cluster_node` of the leader while all mirrors are down.

    Args:
        stopped: the mirrors that were stopped, in the order in which they were, the latest last.
        leader: the node that is forgotten.
        alive: the nodes that run: a mirror that was started again has begun anew, and is none of them.

    Returns:
        The mirror that was stopped last; None if there is none: the queue is deleted.
    """
    return next((node for node in reversed(stopped) if node not in alive and node != leader), None)


def by_last_stop(
    stopped: Sequence[str], mirrors: Sequence[str], synchronised: Collection[str]
) -> tuple[str, ...]:
    """All that have a copy of a queue whose leader is gone for good, in the order in which they went, the latest last.

    Those that the record still names as mirrors went with the leader, or after it: of them those that lacked nothing
    are behind the others, and the oldest are last.

    Args:
        stopped: those that went before, the latest last.
        mirrors: as the record has them, oldest first.
        synchronised: those of them that have all that was confirmed.
    """
    mirrors = [
        *(node for node in mirrors if node in synchronised),
        *(n for n in mirrors if n not in synchronised),
    ]
    return (*(node for node in stopped if node not in mirrors), *reversed(mirrors))


def _may_lose(policy: MirrorPolicy, *, is_graceful: bool) -> bool:
    """Whether a mirror that lacks messages may lead; what is said of failures holds for a stop as well."""
    if policy.promote_on_failure == WHEN_SYNCED:
        return False
    return not is_graceful or policy.promote_on_shutdown == ALWAYS


def _promoted(
    leader: str, running: list[str], *, asks: list[str], is_complete: bool = True, least: int = 1
) -> QueuePromotion:
    others = tuple(node for node in running if node != leader)
    return QueuePromotion(
        leader, others, is_complete, tuple(asks), f"Promoting mirror {leader} to leader", least
    )


def _why_nobody(policy: MirrorPolicy, running: list[str], *, is_graceful: bool) -> str:
    if is_graceful:
        return STOPPING if policy.is_mirrored or running else ""
    if not running:
        return ""
    return (
        f"Not promoting any of {len(running)} mirrors, as none is known to be synchronised and ha-promote-on-failure "
        "is when-synced: the queue is down until its leader returns"
    )
