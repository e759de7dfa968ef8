"""What a node of the model knows of the world, and what the world, and a stream, know of a node.

The lower halves of `world.World` and `node.ModelNode`, which set the attributes.
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
        reached: how far the log came that was confirmed.
        issued: messages whose settlement was begun.
        losing: who leads without all that was confirmed, as nobody is there who has it; empty if nobody does.
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
        """Whether this is done wrong on purpose."""
        assert what in WRONG
        return what in self.wrong

    def note(self, text: str) -> None:
        """Something happened."""
        self.trace.append(text)

    def happens(self, chance: float) -> bool:
        """Whether something that is slow happens now."""
        return chance == 1.0 or self.is_healing or self.rng.random() < chance

    def speed(self) -> float:
        """How likely something goes on when it is due; now and then hardly ever."""
        return self.rng.choice((1.0, 1.0, 1.0, _SLOW))

    def lossy(self, before: Placement, leader: str) -> None:
        """A mirror that lacks messages leads from now on: that may be, if nobody is there who has them."""
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
        """What it has is all there is now; also when it begins to lead, for it may have been setting things aside."""
        if self.losing == leader:
            log = self.nodes[leader].log
            self.reached = min(self.reached, log.durable)
            has = {each.number for each in log.on_disk}
            self.confirmed = {number: each for number, each in self.confirmed.items() if number in has}

    def can_reach(self, one: str, other: str) -> bool:
        """Whether a connection can be made, or is answered."""
        return self.nodes[other].is_open and frozenset((one, other)) not in self.cuts

    def violation(self, text: str) -> Violation:
        """With all that led to it."""
        return Violation(f"{text}\n" + "\n".join(self.trace))

    def stuck(self, text: str) -> Stuck:
        """The same of what must come to be."""
        return Stuck(f"{text}\n" + "\n".join(self.trace))

    def confirms(self, node: str, record: Record, end: int) -> None:
        """A client is told."""
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
        unobserved: how many of its own writes of the record it has not seen yet.
        stamp: the epoch of what it appends.
        since: the revision before which a mirror's answers do not count, by mirror.
        on_disk: what waits for the next sync.
        is_due: whether it has to look at the record again.
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
        """Promises that are due."""
        for each in extent:
            each()
