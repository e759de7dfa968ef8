"""The interfaces of the model: the world as a node uses it, and a node as the world and the streams use it.

They are the lower halves of `world.World` and `node.ModelNode`, which set the attributes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from leveret.core.replication.cluster import Placement
from leveret.core.replication.mirroring import asked_for_all
from leveret.core.replication.promises import Promises
from leveret.core.rules.mirror_policy import ALL, MAJORITY, MirrorPolicy
from leveret.testing.mirror_model.parts import (
    WRONG,
    ModelLink,
    ModelLog,
    ModelStore,
    Record,
    StoreRequest,
    Stuck,
    Violation,
)

_SLOW: Final = 0.06


class ModelEnvironment:
    """The world, as a node sees it.

    Attributes:
        reached: the end of the confirmed part of the log.
        issued: the numbers of messages whose settlement was begun.
        losing: the leader that lacks confirmed messages because no present node has them; empty if there is none.
    """

    rng: Random
    drains: bool
    reached: int
    wrong: frozenset[str]
    names: list[str]
    losses_allowed: bool
    store: ModelStore
    requests: list[StoreRequest]
    links: list[ModelLink]
    cuts: set[frozenset[str]]
    away: set[str]
    trace: list[str]
    confirmed: dict[int, Record]
    issued: set[int]
    numbers: int
    count: int
    losses: int
    losing: str
    is_healing: bool
    nodes: Mapping[str, ModelCopy]

    def is_wrong(self, what: str) -> bool:
        """Return whether this run takes the wrong order `what` on purpose."""
        assert what in WRONG
        return what in self.wrong

    def note(self, text: str) -> None:
        """Add an event to the trace."""
        self.trace.append(text)

    def happens(self, chance: float) -> bool:
        """Return whether a slow event happens now."""
        return chance == 1.0 or self.is_healing or self.rng.random() < chance

    def speed(self) -> float:
        """Return the chance that a due event happens; sometimes a very small one."""
        return self.rng.choice((1.0, 1.0, 1.0, _SLOW))

    def lossy(self, before: Placement, leader: str) -> None:
        """Note a leader that lacks messages; raise a violation if present nodes have them or losses are forbidden."""
        alive = [
            name
            for name in before.synchronised
            if name in self.store.alive and not self.nodes[name].is_damaged
        ]
        recorded = len(before.synchronised)
        policy = MirrorPolicy(confirm=MAJORITY if before.majority else ALL)
        least = asked_for_all(policy, recorded)
        if not self.losses_allowed or len(alive) >= least:
            raise self.violation(f"{leader} leads, and {', '.join(alive)} would have all")
        self.losses += 1
        self.losing = leader
        self.lost(leader)

    def lost(self, leader: str) -> None:
        """Reduce the confirmed messages to those of a losing leader; also at its begin, after a late quarantine."""
        if self.losing == leader:
            log = self.nodes[leader].log
            self.reached = min(self.reached, log.durable)
            has = {each.number for each in log.on_disk}
            self.confirmed = {number: each for number, each in self.confirmed.items() if number in has}

    def can_reach(self, one: str, other: str) -> bool:
        """Return whether a connection can be made, and would be answered."""
        return self.nodes[other].is_open and frozenset((one, other)) not in self.cuts

    def violation(self, text: str) -> Violation:
        """Return a violation with the trace."""
        return Violation(f"{text}\n" + "\n".join(self.trace))

    def stuck(self, text: str) -> Stuck:
        """Return a Stuck with the trace."""
        return Stuck(f"{text}\n" + "\n".join(self.trace))

    def confirms(self, node: str, record: Record, end: int) -> None:
        """Note a confirm to a client. Raises Violation: the node does not lead."""
        self.reached = max(self.reached, end)
        leader = self.store.placement.leader
        if leader != node:
            raise self.violation(f"{node} confirms {record.number}, and {leader} leads")
        self.confirmed[record.number] = record
        self.count += 1
        self.note(f"{node} confirms {record.number}")


class ModelCopy(ABC):
    """A node's copy of the log, as the world and the streams to mirrors see it.

    Attributes:
        unobserved: the revision of its own write of the record that it has not seen yet; 0 for none.
        stamp: the epoch of its appended records.
        since: by mirror, the revision before which the mirror's answers do not count.
        on_disk: the callbacks that wait for the next sync.
        is_due: whether it has to examine the record again.
    """

    world: ModelEnvironment
    name: str
    log: ModelLog
    incarnation: str
    is_damaged: bool
    is_up: bool
    is_open: bool
    is_due: bool
    placement: Placement
    unobserved: int
    stamp: int
    promises: Promises[Callable[[], None]]
    since: dict[str, int]
    on_disk: list[Callable[[], None]]

    @abstractmethod
    def mark(self) -> None:
        """Begin a segment with a record that settles itself only (QueueStore.begin_segment)."""

    def keep(self, extent: list[Callable[[], None]]) -> None:
        """Keep the promises that are due."""
        for each in extent:
            each()
