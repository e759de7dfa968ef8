"""The world of the model: it chooses the next event, checks the invariants, and checks the healed end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from random import Random
from typing import Final

from leveret.core.replication.cluster import Placement
from leveret.core.replication.mirroring import asked_for_all
from leveret.core.rules.mirror_policy import (
    ALL,
    ALWAYS,
    AUTOMATIC,
    EXACTLY,
    MAJORITY,
    NODES,
    WHEN_SYNCED,
    MirrorPolicy,
)
from leveret.testing.mirror_model.environment import ModelEnvironment
from leveret.testing.mirror_model.node import ModelNode
from leveret.testing.mirror_model.parts import (
    ModelLink,
    ModelLog,
    ModelReport,
    ModelStore,
    Record,
    StoreRequest,
    Violation,
)

_PATIENCE_MAX: Final = 60
_KINDS: Final = (
    "crash",
    "start",
    "cut",
    "mend",
    "away",
    "back",
    "policy",
    "move",
    "stop",
    "lapse",
    "anew",
    "damage",
)

Action = Callable[[], None]


class World(ModelEnvironment):
    """See the package."""

    def __init__(self, seed: int, wrong: frozenset[str] = frozenset(), *, drains: bool = False) -> None:
        """Begin with a queue that its first node has just declared."""
        self.rng = Random(seed)
        self.drains = drains
        self.reached = 0
        self.wrong = wrong
        names = [f"n{index}" for index in range(self.rng.choice((3, 3, 4, 5)))]
        self.names = names
        self.losses_allowed = self.rng.random() < 0.5
        self._modes = self.rng.choice((("all",), ("all", "all", EXACTLY, NODES), (EXACTLY, NODES)))
        self._confirms = self.rng.choice(((ALL,), (MAJORITY,), (ALL, MAJORITY)))
        self.store = ModelStore(Placement(1, "n0", "", 1), self._policy())
        self.requests: list[StoreRequest] = []
        self.links: list[ModelLink] = []
        self.cuts: set[frozenset[str]] = set()
        self.away: set[str] = set()
        self.trace: list[str] = []
        self.confirmed: dict[int, Record] = {}
        self.issued: set[int] = set()
        self.numbers = 0
        self.count = self.promotions = self.losses = self.steps = 0
        self.losing = ""
        self.is_healing = False
        # Each run has its own chances, so an event that is rare in one run is frequent in another.
        self._disturbing = self.rng.choice((0.03, 0.08, 0.2))
        self._anybody = self.rng.choice((1.0, 0.7, 0.3))
        self._using = self.rng.choice((0.05, 0.12, 0.3))
        self._kinds = self.rng.choices(_KINDS, k=5) + list(_KINDS)
        if drains:
            self._kinds = ["stop", "start", "start", *self.rng.choices(_KINDS, k=2)]
        self.nodes: dict[str, ModelNode] = {name: ModelNode(self, name) for name in names}
        for node in self.nodes.values():
            node.start()

    def _policy(self) -> MirrorPolicy:
        rng, names = self.rng, self.names
        mode = rng.choice(self._modes)
        count = rng.randint(2, len(names))
        params: int | tuple[str, ...] = count if mode == EXACTLY else 0
        return MirrorPolicy(
            mode=mode,
            params=tuple(rng.sample(names, count)) if mode == NODES else params,
            sync_mode=AUTOMATIC,
            promote_on_failure=ALWAYS if self.losses_allowed else WHEN_SYNCED,
            confirm=rng.choice(self._confirms),
        )

    # -- events -------------------------------------------------------------------------------

    def run(self, steps: int, *, heals: bool = True) -> ModelReport:
        """Take `steps` random steps, then heal the world.

        Raises:
            Violation: an invariant does not hold.
        """
        for _ in range(steps):
            rng = self.rng
            if rng.random() < self._disturbing:
                self._disturb()
            elif rng.random() < self._using:
                self._use()
            else:
                self._go_on()
            self._look()
        if heals:
            self._heal()
        return ModelReport(self.count, self.promotions, self.losses, self.steps)

    def _go_on(self) -> bool:
        """Take one due step; return whether there was one."""
        due: list[Action] = []
        for node in self.nodes.values():
            due += node.due()
        for link in self.links:
            if link.is_up and link.to_leader and self.happens(link.speed):
                due.append(lambda link=link: self.nodes[link.leader].from_mirror(link))  # type: ignore[misc]
            if link.is_up and link.to_mirror and self.happens(link.speed):
                due.append(lambda link=link: self.nodes[link.mirror].from_leader(link))  # type: ignore[misc]
        for request in self.requests:
            if request.node not in self.away:
                due.append(lambda request=request: self._serve(request))  # type: ignore[misc]
        for name in self.store.alive:
            if self._may_expire(name):
                due.append(lambda name=name: self._expire(name))  # type: ignore[misc]
        if not due:
            return False
        self.steps += 1
        self.rng.choice(due)()
        return True

    def _may_expire(self, name: str) -> bool:
        node = self.nodes[name]
        is_its_own = node.is_up and self.store.alive[name].incarnation == node.incarnation
        if self.is_wrong("the lease outlives itself") and name in self.away:
            return True
        return not (is_its_own and node.holds)

    def _expire(self, name: str) -> None:
        self.note(f"etcd: lease of {name} ends")
        self.store.put(name, None)

    def _serve(self, request: StoreRequest) -> None:
        """Take a request at the store, or its answer at the node."""
        if request.is_done:
            self.requests.remove(request)
            request.is_answered = True
            return
        presence = self.store.alive.get(request.node)
        is_leased = request.key == request.node or (
            presence is not None and presence.incarnation == request.incarnation
        )
        request.is_done = True
        if is_leased and request.holds(self.store):
            if request.key == "placement":
                self._judge(request)
            request.revision = self.store.put(request.key, request.value)
            request.on_done()

    def _judge(self, request: StoreRequest) -> None:
        before, after = self.store.placement, request.value
        self.note(f"etcd: {request.node} writes {_shown(after)}")
        if after.term < before.term or (after.leader != before.leader and after.term == before.term):
            raise self.violation("the term does not rise")
        if after.leader == before.leader and after.term > before.term:
            raise self.violation("a leader follows itself")
        self.promotions += after.term > before.term
        self.losing = "" if after.term > before.term else self.losing

    def _use(self) -> None:
        """Publish a message, or settle one, as a client."""
        serving = [node for node in self.nodes.values() if node.serves]
        if serving:
            self.rng.choice(serving).publish(settles=self.rng.random() < (0.7 if self.drains else 0.3))

    def _disturb(self) -> None:
        rng = self.rng
        name = rng.choice(self.names) if rng.random() < self._anybody else self.store.placement.leader
        node = self.nodes[name]
        pair = frozenset(rng.sample(self.names, 2))
        match rng.choice(self._kinds):
            case "crash" if node.is_up:
                node.crash()
            case "start" if not node.is_up:
                node.start()
            case "cut":
                self.note(f"cut {'-'.join(sorted(pair))}")
                if rng.random() < 0.5:
                    self.cuts.add(pair)
                for link in self.links:
                    if {link.mirror, link.leader} == pair:
                        link.cut()
            case "mend":
                self.cuts.discard(pair)
            case "away":
                self.note(f"{name} is cut off from etcd")
                self.away.add(name)
            case "back":
                self.away.discard(name)
            case "lapse" if node.is_up and node.holds:
                self.away.add(name)
                self.note(f"{name}: lease is over")
                node.holds = False
            case "anew" if node.is_up and not node.holds:
                node.begin_anew()
            case "policy":
                policy = self._policy()
                self.note(f"policy {policy.mode} {policy.params} {policy.confirm}")
                if rng.random() < 0.3 and node.is_up:
                    # The holder of the definitions lock knows its decision before the other nodes, and before the
                    # write.
                    node.knows("policy", policy)
                    if rng.random() < 0.5:
                        return
                self.store.put("policy", policy)
            case "damage" if not node.is_up and self._may_be_damaged(node):
                node.damage()
            case "move" if node.serves:
                node.moves(rng.choice(self.names))
            case "stop" if node.is_up and rng.random() < 0.5:
                node.stops()

    def _may_be_damaged(self, node: ModelNode) -> bool:
        """Return whether damage is tolerable: no other copy is damaged, another is recorded, and no request is open."""
        placed = self.store.placement
        others = {placed.leader, *placed.synchronised} - {node.name}
        at_rest = not self.losing and not any(request.node == node.name for request in self.requests)
        return bool(others) and at_rest and not any(each.is_damaged for each in self.nodes.values())

    # -- invariants ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Check that each node that may lead has all confirmed messages."""
        placed = self.store.placement
        if self.losing != placed.leader and not self.nodes[placed.leader].is_damaged:
            self._has_all(placed.leader, "leads")
        whole = [name for name in placed.synchronised if not self.nodes[name].is_damaged]
        if not placed.majority:
            for name in whole:
                self._has_all(name, "is synchronised")
            return
        recorded = len(placed.synchronised)
        least = asked_for_all(MirrorPolicy(confirm=MAJORITY), recorded)
        for some in combinations(whole, least) if recorded else ():
            best = max(some, key=lambda name: _extent_on_disk(self.nodes[name].log))
            self._has_all(best, f"has most of {', '.join(some)}")

    def _has_all(self, name: str, why: str) -> None:
        has = self.nodes[name].log.on_disk
        numbers = {each.number for each in has}
        for number, record in self.confirmed.items():
            if number in numbers:
                continue
            if not record.settles and number not in self.issued:
                raise self.violation(f"{name} {why} and lacks message {number}")
            if record.settles in numbers:
                raise self.violation(f"{name} {why}, and message {record.settles} comes back")

    # -- the healed end -----------------------------------------------------------------------

    def _heal(self) -> None:
        """Start all nodes, and check that the policy's mirrors become synchronised and a message is confirmed."""
        self.note("-- all heals")
        self.cuts.clear()
        self.away.clear()
        self.is_healing = True
        self.store.put("policy", self.store.policy)
        self._settle()
        self._settle()
        placed = self.store.placement
        leader = self.nodes[placed.leader]
        if not leader.serves:
            raise self.stuck(f"{placed.leader} does not serve: {_shown(placed)}")
        before = self.count
        leader.publish(settles=False)
        self._settle()
        if self.count == before:
            raise self.stuck(f"{placed.leader} does not confirm: {_shown(placed)} {leader.shown()}")
        placed = self.store.placement
        missing = [name for name in placed.mirrors if name not in placed.synchronised]
        policy = self.store.policy
        wanted = {
            "all": len(self.names) - 1,
            EXACTLY: policy.params - 1 if isinstance(policy.params, int) else 0,
            NODES: len(policy.params) - 1 if isinstance(policy.params, tuple) else 0,
        }[policy.mode]
        if missing or len(placed.mirrors) != wanted or placed.majority != (policy.confirm == MAJORITY):
            raise self.stuck(f"not synchronised: {_shown(placed)} {policy} {leader.shown()}")
        self._agree(leader.log, placed)

    def _settle(self) -> None:
        for node in self.nodes.values():
            if not node.is_up:
                node.start()
            elif not node.holds:
                node.begin_anew()
        at_rest = 0
        for _ in range(20_000):
            # A task with a time limit counts its checks, so idle rounds let it end.
            at_rest = 0 if self._go_on() else at_rest + 1
            if at_rest > _PATIENCE_MAX:
                return
            self._look()
        raise self.stuck("it does not come to rest")

    def _agree(self, log: ModelLog, placed: Placement) -> None:
        for name in placed.synchronised:
            other = self.nodes[name].log
            first = max(log.first, other.first)
            if other.records[first - other.first :] != log.records[first - log.first :]:
                raise self.violation(f"{name} has other records than {placed.leader}")


def _extent_on_disk(log: ModelLog) -> tuple[int, int]:
    has = log.on_disk
    return (has[-1].epoch, log.first + len(has)) if has else (0, 0)


def _shown(placed: Placement) -> str:
    """Return a line for the trace."""
    mode = " majority" if placed.majority else ""
    return (
        f"term {placed.term} {placed.leader} ({placed.incarnation}) mirrors {','.join(placed.mirrors)} "
        f"synchronised {','.join(placed.synchronised)}{mode} stopped {','.join(placed.stopped)}"
    )


def run(
    seed: int, *, steps: int = 300, wrong: Iterable[str] = (), heals: bool = True, drains: bool = False
) -> ModelReport:
    """Run the model with this seed; with `drains`, for an idle queue whose nodes mostly stop in order and start.

    Raises:
        Violation: an invariant does not hold; Stuck: the world does not recover at the end, if it `heals`.
    """
    return World(seed, frozenset(wrong), drains=drains).run(steps, heals=heals)


def hunt(
    wrong: str, seeds: Iterable[int], *, steps: int = 1500, drains: bool = False
) -> tuple[int, Violation] | None:
    """Return the first seed that shows a violation of a wrong order, with the violation; None if no seed does."""
    for seed in seeds:
        try:
            run(seed, steps=steps, wrong=(wrong,), heals=False, drains=drains)
        except Violation as found:
            return seed, found
    return None
