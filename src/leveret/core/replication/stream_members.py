"""The members of a stream: the nodes of a cluster that are to have a copy of it. Pure.

A stream has as many members as its declaration or policy asks for (`initial-cluster-size`), by default one on each
node, up to COPIES. A member stays one while its node is down, so a restart copies nothing. If the cluster had fewer
nodes than members were wanted, nodes that join it become members. Operators add and delete members of a stream.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from leveret.core.replication.cluster import Placement
from leveret.core.replication.leader_and_mirrors import Shuffle
from leveret.model.errors import NotFound, PreconditionFailed

COPIES: Final = 5
"""The most members of a stream that asks for no number: with five, two nodes may be lost."""


def first_members(
    leader: str, copies: int, members: Sequence[str], serving: Collection[str], shuffle: Shuffle
) -> tuple[str, ...]:
    """Return the members of a new stream, its leader first; running nodes come before others.

    Args:
        leader: the node that leads it.
        copies: the wanted number of members.
        members: the nodes of the cluster, in an order that is the same on all nodes.
        serving: the running nodes of the cluster.
        shuffle: the order among equal nodes.
    """
    running = shuffle([node for node in members if node in serving and node != leader])
    others = [node for node in members if node not in serving and node != leader]
    return (leader, *[*running, *others][: max(0, copies - 1)])


def present_members(
    placement: Placement, copies: int, members: Sequence[str], alive: Collection[str]
) -> tuple[str, ...]:
    """Return the members of a stream now: the recorded ones in the cluster, and others up to the wanted number.

    `copies` is the wanted number for a record without one, from before streams had mirrors.
    """
    recorded = placement.members or (placement.leader,)
    kept = [node for node in recorded if node in members]
    others = [node for node in members if node in alive and node not in kept]
    return (*kept, *others[: max(0, (placement.copies or copies) - len(kept))])


def with_member(placement: Placement, node: str, where: str) -> Placement:
    """Return the record of a stream that gets one more member.

    Raises:
        PreconditionFailed: the node is a member already.
    """
    if node in placement.members:
        raise PreconditionFailed(f"node '{node}' already has a replica of {where}")
    added = (*placement.members, node)
    return msgspec.structs.replace(placement, members=added, copies=max(placement.copies, len(added)))


def without_member(placement: Placement, node: str, where: str) -> Placement:
    """Return the record of a stream that loses a member, which no other node replaces.

    Raises:
        NotFound: the node is no member.
        PreconditionFailed: the node is the last member.
    """
    if node not in placement.members:
        raise NotFound(f"node '{node}' has no replica of {where}")
    left = tuple(each for each in placement.members if each != node)
    if not left:
        raise PreconditionFailed(f"node '{node}' has the last replica of {where}: delete the stream instead")
    return msgspec.structs.replace(placement, members=left, copies=len(left))
