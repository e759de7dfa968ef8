"""A follower outside a simulated cluster: follows one of its nodes, and is killed, cut off and started at random."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.nodes.copies import difference
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.worlds.world import PossibleFault

NAME: Final = "beyond"
_CUT_S: Final = (0.3, 2.0, 6.0)


class OutsideFollower:
    """See the module.

    Attributes:
        node: the follower.
        followed: the node that it follows.
    """

    def __init__(
        self, node: SimulatedNode, followed: SimulatedNode, network: SimulatedNetwork, chance: Random
    ) -> None:
        """Begin with a follower that does not run."""
        self.node = node
        self.followed = followed
        self._network = network
        self._chance = chance

    def possible_faults(self) -> Sequence[PossibleFault]:
        """Return the faults that may happen to the follower now."""
        node = self.node
        if not node.is_up:
            return [PossibleFault("start follower", node.start, NAME)] * 2
        return [
            PossibleFault("kill follower", node.kill, NAME),
            PossibleFault("lose follower's power", lambda: node.lose_power(self._chance), NAME),
            PossibleFault("cut follower", self._cut, NAME),
        ]

    async def _cut(self) -> None:
        self._network.cut(self.node.name, self.followed.name, both=self._chance.random() < 0.7)
        await asyncio.sleep(self._chance.choice(_CUT_S))
        self._network.mend()

    def missing(self) -> list[str]:
        """Return the reasons why the follower is not in step; none if it is, or while its leader is down."""
        if not self.followed.is_open:
            return []
        roles, leading = self.node.roles, self.followed.roles
        inbound = roles.inbound if roles is not None and self.node.is_up else None
        if inbound is None or leading is None or leading.follower_server is None:
            return [f"{NAME} does not follow"]
        if inbound.state not in ("streaming", "delayed"):
            return [f"{NAME} is {inbound.state}: {inbound.error}"]
        return []

    def differing(self) -> str:
        """Return a text about the first difference of its data from its leader's; empty without one."""
        home, own = self.followed.data_dir, self.node.data_dir
        theirs, ours = _logs(home), _logs(own)
        if theirs != ours:
            return f"{NAME} has logs {sorted(ours - theirs)} too many, and lacks {sorted(theirs - ours)}"
        for name in sorted(theirs):
            begins, begun = _first(home / name), _first(own / name)
            if begun > begins:
                return f"{name} begins at {begun} at {NAME}, and at {begins} at {self.followed.name}"
        return difference(home, own, sorted(theirs))


def _logs(home: Path) -> set[str]:
    kinds = ("queues", "streams")
    found = {f"{kind}/{each.name}" for kind in kinds for each in (home / kind).glob("*") if _has_chunks(each)}
    return {"definitions", *found}


def _has_chunks(log: Path) -> bool:
    return any(path.stat().st_size for path in log.glob("*.segment*"))


def _first(log: Path) -> int:
    return min((int(path.name.partition(".")[0]) for path in log.glob("*.segment*")), default=0)
