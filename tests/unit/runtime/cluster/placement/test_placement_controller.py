"""runtime.cluster.placement_controller: what is written of where queues are, and when, while others write too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from leveret.core.replication.cluster import (
    AliveChanged,
    ClusterKeys,
    ClusterState,
    Event,
    HandOver,
    Placement,
    PlacementChanged,
    Presence,
    encode,
)
from leveret.core.replication.election import Holds, PutKey, StoreTransaction
from leveret.core.replication.placement import ClusterView, RequiredMirrors
from leveret.core.rules.mirror_policy import MAJORITY, WHEN_SYNCED, MirrorPolicy
from leveret.model import definitions as d
from leveret.model.definitions import QueueKey
from leveret.model.errors import LeveretError
from leveret.runtime.cluster.placement import placement_controller as room
from leveret.runtime.cluster.placement.due_queues import DueQueues
from leveret.runtime.cluster.placement.gathered_writes import AT_ONCE
from leveret.runtime.cluster.placement.local_queues import Lack
from leveret.runtime.cluster.placement.placement_controller import PlacementController
from leveret.runtime.process.work_slices import in_slices

ALL: Final = MirrorPolicy(mode="all", promote_on_failure=WHEN_SYNCED)
MOST: Final = MirrorPolicy(mode="all", promote_on_failure=WHEN_SYNCED, confirm=MAJORITY)
Q: Final = ("/", "q")
NAMES: Final = "abcd"


class Store:
    """etcd with one client that writes; it is told what happened when `World.hear` says so."""

    def __init__(self) -> None:
        self.keys = ClusterKeys.under("/leveret/")
        self.revision = 1
        self.entries: dict[str, tuple[bytes, int]] = {}
        self.events: list[Event] = []
        self.before: list[Callable[[], None]] = []
        """What happens before each transaction is done, one after the other."""
        self.is_answering = asyncio.Event()
        self.is_answering.set()

    def put(self, key: str, value: bytes | None) -> None:
        self.revision += 1
        if value is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = value, self.revision
        self.events.append(Event(key, value, self.revision))

    async def transact(self, transaction: StoreTransaction) -> int | None:
        await asyncio.sleep(0)
        if self.before:
            self.before.pop(0)()
        for each in transaction.conditions:
            assert not isinstance(each, Holds)
            if self.entries.get(each.key, (b"", 0))[1] != each.modified:
                await self.is_answering.wait()
                return None
        for write in transaction.writes:
            assert isinstance(write, PutKey)
            self.put(write.key, write.value)
        revision = self.revision
        await self.is_answering.wait()
        return revision


class LocalQueues:
    """See runtime.cluster.hands: what it was told, and what it says."""

    def __init__(self) -> None:
        self.ready_ones: dict[QueueKey, str] = {}
        self.damaged: set[QueueKey] = set()
        self.followed: list[Placement | None] = []
        self.waits: dict[QueueKey, RequiredMirrors] = {}
        self.then: dict[QueueKey, Callable[[], None] | None] = {}
        self.ends: dict[str, tuple[int, int]] = {}
        self.asked: Callable[[str], None] = lambda node: None
        self.given: list[QueueKey] = []
        self.taken_back: list[QueueKey] = []
        self.giving: Callable[[], Any] = lambda: None
        self.prepared: list[str] = []
        self.preparing: Callable[[], Any] = lambda: None
        self.lack = Lack(5, 3)

    def ready(self, key: QueueKey) -> frozenset[str]:
        return frozenset(self.ready_ones.get(key, ""))

    def joined(self, key: QueueKey) -> frozenset[str]:
        return self.ready(key)

    def is_damaged(self, key: QueueKey) -> bool:
        return key in self.damaged

    async def all_followed(self) -> None:
        pass

    async def follow(self, key: QueueKey, placement: Placement | None) -> None:
        self.followed.append(placement)
        if placement is not None and placement.leader == "a":
            self.waits[key] = RequiredMirrors((frozenset(placement.synchronised),), majority=False)
            self.then[key] = None

    def lead_by(
        self,
        key: QueueKey,
        policy: MirrorPolicy,
        waits: RequiredMirrors,
        then: Callable[[], None] | None = None,
    ) -> None:
        self.waits[key], self.then[key] = waits, then

    async def end_of(self, node: str, key: QueueKey, placement: Placement) -> tuple[int, int]:
        await asyncio.sleep(0)
        self.asked(node)
        if node not in self.ends:
            raise LeveretError(f"{node} does not say")
        return self.ends[node]

    def leader_is(self, key: QueueKey, *, alive: bool) -> None:
        """Nobody looks."""

    def begins_at(self, key: QueueKey, placement: Placement) -> int:
        return 7

    def lacks(self, key: QueueKey, node: str) -> Lack | None:
        return None if node in self.ready(key) else self.lack

    async def prepare(self, key: QueueKey, node: str) -> None:
        self.prepared.append(node)
        await asyncio.sleep(0)
        self.preparing()

    async def hand_over_to(
        self, key: QueueKey, node: str, recorded: frozenset[str], *, loses: bool = False
    ) -> frozenset[str]:
        self.given.append(key)
        await asyncio.sleep(0)
        self.giving()
        for _ in range(9):
            await asyncio.sleep(0)
        return recorded & self.ready(key)

    def delivered_before(self, key: QueueKey) -> int | None:
        # Not before the queue is given away: it is served until then.
        return 6 if key in self.given else None

    def take_back(self, key: QueueKey) -> None:
        self.taken_back.append(key)


class World:
    """Node `a` of a cluster of four: its placing, and what the others write."""

    def __init__(self, *, alive: str = NAMES, policy: MirrorPolicy = ALL) -> None:
        self.store, self.hands, self.policy = Store(), LocalQueues(), policy
        self.state = ClusterState(self.store.keys)
        self.queues: dict[QueueKey, Any] = {}
        self.deleted: list[Any] = []
        broker: Any = SimpleNamespace(
            queues=self.queues, deletions=SimpleNamespace(delete_when_writable=self.deleted.extend)
        )
        places: Any = SimpleNamespace(
            policy=lambda definition: self.policy, recorded=lambda key: None, unrecorded=lambda queue: None
        )
        store: Any = self.store
        self.due = DueQueues()
        self.placement_controller = PlacementController(
            store, self.state, broker, places, self.hands, self._cluster_view, self.due
        )
        for node in alive:
            self.runs(node)

    def _cluster_view(self) -> ClusterView:
        return ClusterView("a", "a1", list(NAMES), self.state.alive, list)

    def runs(self, node: str, run_id: str = "") -> None:
        presence = Presence(run_id or f"{node}1", "uri", "", 0, "")
        self.store.put(self.store.keys.alive(node), encode(presence))

    def ends(self, node: str) -> None:
        self.store.put(self.store.keys.alive(node), None)

    def records(self, placement: Placement | None, key: QueueKey = Q, *, durable: bool = True) -> None:
        """Somebody writes it; the queue is known here at once."""
        octets = encode(placement) if placement is not None else None
        self.store.put(self.store.keys.placement(*key), octets)
        if placement is None:
            self.queues.pop(key, None)
        elif key not in self.queues or self.queues[key].definition.epoch != placement.epoch:
            definition = d.Queue(name=key[1], vhost=key[0], epoch=placement.epoch, durable=durable)
            self.queues[key] = SimpleNamespace(definition=definition)

    def hear(self) -> None:
        """The watch tells all that has happened; see coordinator."""
        events, self.store.events = self.store.events, []
        for change in self.state.apply(events, self.store.revision):
            match change:
                case AliveChanged(name):
                    self.placement_controller.node_changed(name)
                case PlacementChanged(key):
                    self.placement_controller.changed(key)

    def recorded(self, key: QueueKey = Q) -> Placement:
        return msgspec.json.decode(self.store.entries[self.store.keys.placement(*key)][0], type=Placement)

    def is_recorded(self, key: QueueKey = Q) -> bool:
        return self.store.keys.placement(*key) in self.store.entries

    async def rest(self, *, hears: bool = True) -> None:
        """Let everything go on that can."""
        for _ in range(50):
            if hears:
                self.hear()
            await asyncio.sleep(0)


def placed(mirrors: str = "", synchronised: str = "", **changes: Any) -> Placement:
    found = Placement(7, "a", "a1", 3, tuple(mirrors), tuple(synchronised))
    return msgspec.structs.replace(found, **changes)


async def begun(world: World) -> None:
    world.hear()
    await world.placement_controller.begin()
    world.task = asyncio.create_task(world.placement_controller.run())  # type: ignore[attr-defined]


async def at_rest(world: World) -> None:
    """It has begun, and done all that is due."""
    await begun(world)
    await world.rest()


async def all_synchronised(world: World) -> None:
    """It leads the queue, all others mirror it and have everything, and the record says so."""
    world.records(placed("bcd", "bcd"))
    world.hands.ready_ones[Q] = "bcd"
    await at_rest(world)


# -- a record is replaced only by who has looked at it --------------------------------------------


@pytest.mark.parametrize("is_declared_again", [False, True])
async def test_what_was_decided_of_a_queue_that_is_gone_by_then_is_not_written(
    is_declared_again: bool,
) -> None:
    """Two queues more than one transaction takes; while the first are written the last one is deleted."""
    world = World()
    keys = [("/", f"q{each:03d}") for each in range(AT_ONCE + 1)]
    for key in keys:
        world.records(placed(), key)
    last = keys[-1]

    def gone() -> None:
        world.records(None, last)
        if is_declared_again:
            world.records(placed("bcd", "bcd", epoch=8), last)
        world.hear()

    world.store.before.append(gone)
    await at_rest(world)
    assert world.recorded(keys[0]).mirrors == ("b", "c", "d")
    if is_declared_again:
        assert world.recorded(last).epoch == 8
    else:
        assert not world.is_recorded(last)


async def test_who_leads_by_a_record_that_came_meanwhile_is_not_replaced() -> None:
    """While it is asked who has most, another node has written that it leads."""
    world = World(alive="abc", policy=MOST)
    world.records(placed("ab", "ab", leader="d", run_id="d1", majority=True))
    world.hands.ends = {"a": (3, 9), "b": (3, 8)}
    other = placed("a", "a", leader="b", run_id="b1", term=4)

    def asked(node: str) -> None:
        if world.recorded().term == 3:
            world.records(other)
            world.hear()

    world.hands.asked = asked
    await at_rest(world)
    assert world.recorded() == other


async def test_a_queue_that_was_declared_anew_is_not_deleted_for_the_one_before() -> None:
    world = World(alive="abc")
    other = ("/", "other")
    world.records(placed(leader="d", run_id="d1"), durable=False)
    world.records(placed(), other)

    def declared_anew() -> None:
        world.records(None)
        world.records(placed(epoch=8), durable=False)
        world.hear()

    world.store.before.append(declared_anew)
    await at_rest(world)
    assert world.deleted == []


# -- nothing is decided by a record that was not followed, or does not stand ----------------------


async def test_a_record_is_followed_before_anything_is_decided_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "in_slices", partial(in_slices, slice_s=0))
    world = World()
    first = ("/", "first")
    world.records(placed("bcd", "bcd"), first)
    world.records(placed("acd", "acd", leader="b", run_id="b1"))
    await at_rest(world)
    followed = world.hands.followed
    mine = placed("bcd", "bcd", term=4)
    world.due.add([first, Q])
    await asyncio.sleep(0)
    # It is looking at the first one.
    world.records(mine)
    world.hear()
    await asyncio.sleep(0)
    assert mine in followed or Q not in world.hands.waits


async def test_what_was_replaced_is_not_followed_any_more() -> None:
    world = World()
    world.records(placed("bcd"))
    await at_rest(world)
    world.hands.ready_ones[Q] = "b"
    world.due.add([Q])
    await world.rest()
    then = world.hands.then[Q]
    assert then is not None
    then()
    for _ in range(9):
        await asyncio.sleep(0)
    assert world.recorded().synchronised == ("b",)
    assert "b" in world.hands.waits[Q].sets[-1]
    # Not seen yet; something that failed before is tried again.
    world.placement_controller.changed(Q)
    for _ in range(9):
        await asyncio.sleep(0)
    assert any("b" in each for each in world.hands.waits[Q].sets)
    await world.rest()
    assert world.hands.waits[Q].sets == (frozenset("b"),)


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_the_end_of_a_queue_that_never_had_a_record_is_followed(is_recorded: bool) -> None:
    """It was deleted before its record was written; its confirms waited for its mirrors for good (2026-12-01)."""
    world = World()
    await at_rest(world)
    if is_recorded:
        world.records(placed())
        await world.rest()
    followed = list(world.hands.followed)
    world.placement_controller.unrecorded(d.Queue(name="q", vhost="/", epoch=7))
    await world.rest()
    assert is_recorded == bool(followed)
    assert world.hands.followed == (followed or [None])


async def test_what_somebody_else_wrote_and_was_not_seen_yet_is_not_replaced() -> None:
    world = World()
    other = placed("b", "b", term=4)
    world.records(placed())
    world.store.before.append(lambda: world.records(other))
    await begun(world)
    for _ in range(9):
        await asyncio.sleep(0)
    assert world.recorded() == other


# -- who may be recorded, and when -----------------------------------------------------------------


async def ready(world: World, nodes: str) -> Callable[[], None]:
    """These mirrors have what there is; what is to be called when they have what was promised, too."""
    world.hands.ready_ones[Q] = nodes
    world.due.add([Q])
    await world.rest()
    then = world.hands.then[Q]
    assert then is not None
    return then


async def test_a_mirror_is_recorded_once_it_has_what_was_promised_and_is_waited_for_before() -> None:
    world = World()
    world.records(placed("bcd"))
    await begun(world)
    then = await ready(world, "b")
    assert world.hands.waits[Q] == RequiredMirrors((frozenset(), frozenset("b")), majority=False)
    assert world.recorded().synchronised == ()
    then()
    await world.rest()
    assert world.recorded().synchronised == ("b",)


async def test_that_they_had_it_counts_for_nothing_once_a_record_was_followed_since() -> None:
    world = World()
    world.records(placed("bcd"))
    await begun(world)
    then = await ready(world, "b")
    then()
    world.placement_controller.changed(Q)
    await world.rest()
    assert world.recorded().synchronised == ()
    assert world.hands.then[Q] is not None


async def test_that_they_had_it_counts_for_nothing_once_others_were_waited_for_since() -> None:
    world = World()
    world.records(placed("bcd"))
    await begun(world)
    then = await ready(world, "b")
    world.hands.ready_ones[Q] = "bc"
    then()
    await world.rest()
    await ready(world, "b")
    assert world.recorded().synchronised == ()


async def test_who_is_gone_is_waited_for_until_the_record_says_so() -> None:
    world = World()
    await all_synchronised(world)
    world.hands.ready_ones[Q] = "bc"
    world.store.is_answering.clear()
    world.due.add([Q])
    await world.rest(hears=False)
    assert world.hands.waits[Q].sets == (frozenset("bcd"),)
    world.store.is_answering.set()
    await world.rest()
    assert world.recorded().synchronised == ("b", "c")
    assert world.hands.waits[Q].sets == (frozenset("bc"),)


async def test_nothing_is_decided_before_what_was_written_is_seen() -> None:
    world = World()
    await all_synchronised(world)
    world.hands.ready_ones[Q] = "bc"
    world.due.add([Q])
    await world.rest(hears=False)
    assert world.recorded().synchronised == ("b", "c")
    waits = world.hands.waits[Q]
    world.hands.ready_ones[Q] = "bcd"
    world.due.add([Q])
    await world.rest(hears=False)
    assert world.hands.waits[Q] is waits


# -- who takes over -------------------------------------------------------------------------------


async def test_nobody_takes_over_from_a_leader_that_is_back_by_then() -> None:
    world = World(alive="abc")
    before = placed("ab", "ab", leader="d", run_id="d1")
    world.records(before)
    world.store.before.append(lambda: world.runs("d"))
    await begun(world)
    for _ in range(9):
        await asyncio.sleep(0)
    assert world.recorded() == before


async def test_nobody_leads_without_messages_that_somebody_has_who_is_back_by_then() -> None:
    world = World(alive="ab", policy=MirrorPolicy(mode="all", promote_on_failure="always"))
    before = placed("ac", "c", leader="d", run_id="d1")
    world.records(before)
    world.store.before.append(lambda: world.runs("c"))
    await begun(world)
    for _ in range(9):
        await asyncio.sleep(0)
    assert world.recorded() == before


@pytest.mark.parametrize("policy", [ALL, MOST])
async def test_whether_a_majority_is_asked_is_the_records_word(policy: MirrorPolicy) -> None:
    world = World(alive="abc", policy=policy)
    world.records(placed("abc", "abc", leader="d", run_id="d1", majority=True))
    world.hands.ends = {"a": (3, 8), "b": (3, 9)}
    await at_rest(world)
    assert (world.recorded().leader, world.recorded().synchronised) == ("b", ())


async def test_too_few_of_a_majority_lead_nothing() -> None:
    world = World(alive="abc", policy=ALL)
    before = placed("abc", "abc", leader="d", run_id="d1", majority=True)
    world.records(before)
    world.hands.ends = {"a": (3, 8)}
    await at_rest(world)
    assert world.recorded() == before


async def test_who_cannot_read_its_copy_stands_aside() -> None:
    world = World(alive="abc")
    world.records(placed("ab", "ab", leader="d", run_id="d1"))
    world.hands.damaged.add(Q)
    await at_rest(world)
    assert (world.recorded().leader, world.recorded().synchronised) == ("d", ("b",))


@pytest.mark.parametrize(("synchronised", "leader"), [("c", "c"), ("", "a")])
async def test_a_leader_that_cannot_read_its_log_is_followed_by_who_has_all(
    synchronised: str, leader: str
) -> None:
    world = World()
    world.records(placed("bc", synchronised))
    world.hands.damaged.add(Q)
    world.policy = MirrorPolicy(mode="all", promote_on_failure="always")
    await at_rest(world)
    assert world.recorded().leader == leader


# -- giving a queue away --------------------------------------------------------------------------


async def test_a_queue_is_given_to_who_has_all_of_it_and_only_who_has_stays_recorded() -> None:
    world = World()
    await all_synchronised(world)

    def falls_behind() -> None:
        world.hands.ready_ones[Q] = "bd"

    world.hands.giving = falls_behind
    assert await world.placement_controller.move(Q, "b")
    found = world.recorded()
    assert (found.leader, found.term, found.synchronised) == ("b", 4, ("d",))
    assert found.hand_over == HandOver(4, 6)


@pytest.mark.parametrize("to", NAMES)
async def test_it_is_not_given_to_who_leads_it_or_is_no_mirror_or_lacks_something_or_does_not_run(
    to: str,
) -> None:
    world = World(alive="abc")
    before = placed("bd", "b")
    world.records(before)
    world.hands.ready_ones[Q] = "cd"
    world.placement_controller.is_held = True
    await at_rest(world)
    assert world.recorded() == before
    assert not await world.placement_controller.move(Q, to)
    assert world.hands.given == []


@pytest.mark.parametrize("what", ["lacks", "ends", "record"])
async def test_it_is_not_given_when_things_have_changed_by_then(what: str) -> None:
    world = World()
    await all_synchronised(world)

    def changes() -> None:
        match what:
            case "lacks":
                world.hands.ready_ones[Q] = "cd"
            case "ends":
                world.ends("b")
            case "record":
                world.records(placed("bcd", "cd"))
        world.hear()

    world.hands.giving = changes
    assert not await world.placement_controller.move(Q, "b")
    assert world.recorded().leader == "a"
    assert world.hands.taken_back == [Q]


@pytest.mark.parametrize("what", ["lacks", "ends"])
async def test_it_is_still_led_while_who_is_to_lead_gets_ready(what: str) -> None:
    world = World()
    await all_synchronised(world)
    assert not world.placement_controller.is_held

    def changes() -> None:
        assert world.hands.given == []
        match what:
            case "lacks":
                world.hands.ready_ones[Q] = "cd"
            case "ends":
                world.ends("b")
        world.hear()

    world.hands.preparing = changes
    moving = asyncio.create_task(world.placement_controller.move(Q, "b"))
    await world.rest()
    assert not await moving
    assert world.hands.prepared == ["b"]
    assert [world.hands.given, world.hands.taken_back] == [[], []]


async def test_it_is_not_given_away_while_its_record_is_written_nor_recorded_while_it_is_given() -> None:
    world = World()
    await all_synchronised(world)
    world.hands.ready_ones[Q] = "bc"
    world.store.is_answering.clear()
    world.due.add([Q])
    for _ in range(9):
        await asyncio.sleep(0)
    moving = asyncio.create_task(world.placement_controller.move(Q, "b"))
    await world.rest(hears=False)
    assert world.hands.given == []
    world.store.is_answering.set()
    await world.rest(hears=False)
    # Written, and not seen yet.
    assert world.hands.given == []

    def lacks() -> None:
        world.hands.ready_ones[Q] = "b"
        world.due.add([Q])

    world.hands.giving = lacks
    await world.rest()
    assert await moving
    assert [world.hands.given, world.hands.taken_back] == [[Q], []]


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_queue_whose_record_is_on_its_way_is_not_served_again_by_who_gave_up_waiting_for_it(
    is_done: bool,
) -> None:
    world = World()
    await all_synchronised(world)
    world.store.is_answering.clear()
    if not is_done:
        world.store.before.append(
            lambda: world.store.put(world.store.keys.placement(*Q), encode(placed("bcd", "cd")))
        )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await world.placement_controller.move(Q, "b")
    await world.rest(hears=False)
    if is_done:
        assert world.recorded().leader == "b"
        assert [world.hands.given, world.hands.taken_back] == [[Q], []]
    world.store.is_answering.set()
    await world.rest()
    assert [world.hands.given, world.hands.taken_back] == [[Q], [] if is_done else [Q]]


async def test_that_they_had_it_counts_for_nothing_once_it_was_to_be_given_away() -> None:
    world = World()
    world.records(placed("bcd", "c"))
    world.hands.ready_ones[Q] = "c"
    await at_rest(world)
    then = await ready(world, "bc")

    def refuses() -> None:
        raise LeveretError("it does not take it")

    world.hands.giving = refuses
    then()
    world.due.looks.clear()
    with pytest.raises(LeveretError):
        await world.placement_controller.move(Q, "c")
    await world.rest()
    assert world.recorded().synchronised == ("c",)
    assert world.hands.then[Q] is not None


async def test_a_queue_that_nobody_may_lead_is_closed_as_it_is_recorded_by_then() -> None:
    """While another one is given away, a mirror is taken out of the record of this one."""
    world = World()
    other = ("/", "other")
    world.records(placed("bcd", "bcd"), other)
    world.records(placed("bc", ""))
    world.hands.ready_ones[other] = "bcd"
    world.placement_controller.is_held = True
    await at_rest(world)

    def changes() -> None:
        world.records(placed("b", ""))
        world.hear()

    world.hands.giving = changes
    leaving = asyncio.create_task(world.placement_controller.leave())
    await world.rest()
    await leaving
    assert world.recorded(other).leader == "b"
    assert world.recorded() == placed("b", "", closed=True)
