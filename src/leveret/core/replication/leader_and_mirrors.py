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
"""RabbitMQ's log line for a queue that is down because its leader stopped in order."""

Shuffle = Callable[[Sequence[str]], Sequence[str]]
"""Returns the same nodes in another order, at random or not."""


class WantedPlacement(NamedTuple):
    """The wanted placement of a queue: its leader and its mirrors, present mirrors first and in their order."""

    leader: str
    mirrors: tuple[str, ...]


class QueuePromotion(NamedTuple):
    """The fate of a queue whose leader is gone.

    Attributes:
        leader: the mirror that leads from now on; None for none: the queue is down until its leader returns.
        mirrors: the remaining mirrors, oldest first.
        is_complete: whether the new leader has every confirmed message, once it has asked `asks`. If not, messages
            are lost that only the old leader had.
        asks: of a queue whose confirms wait for a majority: the mirrors whose ends the new leader asks for before it
            leads.
        least: the number of nodes, the new leader included, whose ends must be known.
        log: the log text to follow `Mirrored queue 'q' in vhost 'v': `; empty for none.
    """

    leader: str | None
    mirrors: tuple[str, ...] = ()
    is_complete: bool = True
    asks: tuple[str, ...] = ()
    log: str = ""
    least: int = 1


# -- placement of mirrors -------------------------------------------------------------------------


def suggest(
    policy: MirrorPolicy,
    leader: str,
    mirrors: Sequence[str],
    synchronised: Collection[str],
    members: Sequence[str],
    alive: Collection[str],
    shuffle: Shuffle,
) -> WantedPlacement:
    """Return the wanted leader and mirrors of a queue, by its policy and the nodes.

    Args:
        policy: the queue's mirror policy.
        leader: the present, running leader; it stays, except in the mode "nodes". (For a lost one: `successor`.)
        mirrors: the present mirrors, oldest first; those that do not run are ignored.
        synchronised: the mirrors that have all records of the leader.
        members: the nodes of the cluster, in an order that is the same on all nodes. To learn whether *one* node
            should be a mirror, a caller passes that node and those that have the queue.
        alive: the running nodes. Only these become mirrors.
        shuffle: puts the candidates of "exactly" in the order in which they are taken. Nodes that still have a copy
            may come first.

    Returns:
        The wanted placement. For "nodes", the leader changes only to a synchronised mirror.
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
    """Return the present mirrors, without the youngest if they are too many, with others if too few."""
    missing = count - len(has)
    if missing <= 0:
        return tuple(has[:count])
    return (*has, *shuffle([node for node in others if node not in has])[:missing])


def _on_nodes(available: list[str], leader: str, has: list[str], synced: list[str]) -> WantedPlacement:
    """Return the running listed nodes; the leader stays until a listed node, or any mirror, is synchronised."""
    if not available:
        return WantedPlacement(leader, ())
    if leader not in available and synced:
        leader = next((node for node in available if node in synced), synced[0])
    return WantedPlacement(leader, _kept_first(has, [node for node in available if node != leader]))


def _kept_first(has: list[str], wanted: list[str]) -> tuple[str, ...]:
    """Return the wanted mirrors: the present ones by age, then the new ones."""
    return (*(node for node in has if node in wanted), *(node for node in wanted if node not in has))


# -- successors of a leader -----------------------------------------------------------------------


def successor(
    policy: MirrorPolicy,
    mirrors: Sequence[str],
    synchronised: Collection[str],
    alive: Collection[str],
    *,
    is_graceful: bool,
) -> QueuePromotion:
    """Return the successor: the oldest synchronised mirror, else the oldest mirror if the policy allows that.

    With `ha-confirm: majority` a single mirror need not have everything. The running mirrors have it together, if they
    are so many that at least one of them has each confirmed message.

    Args:
        policy: the queue's mirror policy.
        mirrors: its mirrors, oldest first.
        synchronised: the mirrors that are recorded as synchronised, whether they run or not.
        alive: the running nodes, without the leader.
        is_graceful: whether the leader stops in order, and hands over its records; otherwise it has failed.
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
    """Return how many of `synchronised` mirrors must have a message before it is confirmed.

    The leader counts as one node of a majority.
    """
    return (synchronised + 1) // 2 if policy.confirm == MAJORITY else synchronised


def asked_for_all(policy: MirrorPolicy, synchronised: int) -> int:
    """Return the smallest k such that any k of the synchronised mirrors together hold every confirmed message."""
    return synchronised - confirms_needed(policy, synchronised) + 1


def successor_of_forgotten(
    stopped: Sequence[str], mirrors: Sequence[str], synchronised: Collection[str], alive: Collection[str]
) -> str | None:
    """Return the node that leads a queue whose leader is gone for good: the one with the most complete copy.

    Of several mirrors that have everything a running one leads. Else the copy that stopped last has most, even if that
    node does not run: then the queue is down until the node starts, or is forgotten as well.

    Args:
        stopped: the nodes that stopped before the leader was lost, in that order.
        mirrors: the recorded mirrors, oldest first.
        synchronised: the mirrors that have every confirmed message, whether they run or not.
        alive: the running nodes.

    Returns:
        The node; None without a copy: the queue is deleted.
    """
    copies = by_last_stop(stopped, mirrors, synchronised)
    running = [node for node in copies if node in synchronised and node in alive]
    return next(reversed(running or copies), None)


def by_last_stop(
    stopped: Sequence[str], mirrors: Sequence[str], synchronised: Collection[str]
) -> tuple[str, ...]:
    """Return all nodes with a copy of a queue whose leader is gone for good, in the order in which they stopped.

    The recorded mirrors stopped with the leader, or after it. Among them, synchronised mirrors come behind the others,
    and older ones behind younger ones.

    Args:
        stopped: the nodes that stopped before, in that order.
        mirrors: the recorded mirrors, oldest first.
        synchronised: the mirrors that have every confirmed message.
    """
    mirrors = [
        *(node for node in mirrors if node in synchronised),
        *(n for n in mirrors if n not in synchronised),
    ]
    return (*(node for node in stopped if node not in mirrors), *reversed(mirrors))


def _may_lose(policy: MirrorPolicy, *, is_graceful: bool) -> bool:
    """Return whether a mirror that lacks messages may lead; a rule against it after failures holds for stops too."""
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
