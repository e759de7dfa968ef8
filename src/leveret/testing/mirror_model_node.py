"""A node of the model of one mirrored queue (mirror_model): what its tasks do, step by step.

Each generator is a task as the runtime has it; it yields where that awaits, with what it waits for, and anything may happen
there. Names are those of runtime.cluster.placing, .keeping and runtime.mirroring, so the two can be laid side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from leveret.core.cluster import Placement, Presence
from leveret.core.join import Begin, Bounds, Continue, Cut, DropBefore, Join, Probe, Step
from leveret.core.mirror_acks import MirrorAcks
from leveret.core.mirror_policy import ALL, MAJORITY, MirrorPolicy
from leveret.core.mirroring import Promotion, successor
from leveret.core.placing import (
    Surroundings,
    Waits,
    following,
    handed_over,
    led_after_asking,
    must_be_gone,
    promotion,
    step,
    taken_over,
)
from leveret.testing.mirror_model import Failed, Link, Log, Lost, Record, Request, Store, Task
from leveret.wire.link import Held

if TYPE_CHECKING:
    from leveret.testing.mirror_model import World

_Q: Final = "queues/1"
_TERM_SHIFT: Final = 16


class Stream:
    """The log on its way to one mirror: runtime.mirroring.stream."""

    def __init__(self, owner: Node, link: Link, held: Held, followed: int) -> None:
        """Of a mirror that has `held`, and has heard of the records up to the revision `followed`."""
        self.owner, self.link, self.held, self.followed = owner, link, held, followed
        self.first = held.first_offset
        self.top = 0
        self.next = 0
        self.joined_at = 0
        self.is_live = self.is_joined = self.sets_aside = False
        self.begins: list[Step] | None = None
        self.is_decided = False
        self.owed: deque[tuple[int, int]] = deque()
        self.is_asked = False
        log = owner.log
        oldest = log.records[0].epoch if log.records else owner.stamp
        is_late = bool(held.last) and owner.epoch_of(held.last) == oldest
        self.join = Join(self, is_clean=is_late)

    def paths(self) -> list[str]:
        """See core.join.Leader."""
        return [_Q]

    def bounds(self, path: str) -> Bounds:
        """See core.join.Leader."""
        return Bounds(self.owner.log.first, self.owner.log.end)

    def header_at(self, path: str, chunk_id: int) -> bytes:
        """See core.join.Leader."""
        log = self.owner.log
        return log.records[chunk_id - log.first].header(chunk_id)

    @property
    def is_ready(self) -> bool:
        """Whether the mirror has everything, and what it told is not of another time."""
        since = self.owner.since.get(self.link.mirror, 0)
        is_old = self.followed < since and not self.owner.world.is_wrong("an older answer counts")
        return self.is_live and self.is_joined and not self.lacks_head and not is_old

    @property
    def lacks_head(self) -> bool:
        """Whether there is something in front of what it has that is not settled."""
        log = self.owner.log
        return self.first > max(log.first, log.floor(log.records))

    def due(self) -> list[Callable[[], None]]:
        """What it may do next."""
        if not self.is_decided and not self.is_asked:
            return [self.compare] if self.begins is None or self._may_begin else []
        if self.is_decided and not self.sets_aside and not self.is_live:
            return [self.go_live]
        if self.is_live and self.top > self.owner.log.first and self.lacks_head:
            return [self.send_head]
        return []

    @property
    def _may_begin(self) -> bool:
        """Who is recorded as having everything keeps what it has until the record says otherwise."""
        owner = self.owner
        if owner.world.is_wrong("begun anew while recorded"):
            return True
        return self.link.mirror not in owner.placement.synchronised and not owner.unseen

    def compare(self) -> None:
        """Decide what it lacks."""
        steps, self.begins = self.begins, None
        if steps is None:
            held = self.held
            steps = self.join.compare(held) if held.last or held.next_offset else self.join.rest()
        self._take(steps)

    def probed(self, headers: Sequence[bytes]) -> None:
        """It has told more of what it has."""
        self.is_asked = False
        self._take(self.join.probed(_Q, headers))

    def _take(self, steps: list[Step]) -> None:
        if any(isinstance(each, Begin) for each in steps) and self.held.last and not self._may_begin:
            self.begins = steps
            self.owner.is_due = True
            return
        frame: list[tuple[Any, ...]] = []
        for each in steps:
            match each:
                case Continue(_, at):
                    self.next = at
                case Begin(_, _):
                    log = self.owner.log
                    self.first = self.next = self.owner.world.rng.choice((log.first, log.end))
                    frame.append(("begin", self.first))
                case Cut(_, at):
                    self.sets_aside = True
                    self.send([("cut", at)], None)
                    break
                case DropBefore(_, at):
                    self.first = max(self.first, at)
                    frame.append(("drop", at))
                case Probe(_, before, count):
                    self.is_asked = True
                    self.link.to_mirror.append(("probe", before, count))
                    return
        self.is_decided = True
        self.top = self.first
        if frame and not self.sets_aside:
            self.send(frame, None)

    def go_live(self) -> None:
        """Send what is lacking; from here on it is sent each change."""
        log = self.owner.log
        if self.next < log.first:
            # What it was to be sent next was dropped meanwhile.
            self.send([("begin", log.first)], None)
            self.first = self.top = self.next = log.first
        self.is_live, self.joined_at = True, log.end
        self.send([("append", at, log.records[at - log.first]) for at in range(self.next, log.end)], log.end)

    def send_head(self) -> None:
        """What is in front."""
        log = self.owner.log
        some = log.records[: self.top - log.first]
        self.top = log.first
        self.send([("head", self.top, some)], -self.top - 1)

    def send(self, frame: list[tuple[Any, ...]], end: int | None) -> None:
        """A frame, and what is known when it is acked."""
        if self.link.is_up:
            self.link.sent += 1
            if end is not None:
                self.owed.append((self.link.sent, end))
            self.link.to_mirror.append(("frame", self.link.sent, frame))

    def acked(self, position: int) -> None:
        """It has all up to there on its disk."""
        owner = self.owner
        while self.owed and self.owed[0][0] <= position:
            end = self.owed.popleft()[1]
            if end < 0:
                self.first = min(self.first, max(-end - 1, owner.log.first))
                owner.is_due = True
                continue
            owner.keep(owner.acks.acked(_Q, self.link.mirror, end))
            if self.is_live and not self.is_joined and end >= self.joined_at:
                self.is_joined = owner.is_due = True


class Node:
    """See the module. What it loses with its process is set by `_begin`."""

    def __init__(self, world: World, name: str) -> None:
        """It has never run."""
        self.world, self.name = world, name
        self.log = Log()
        self.starts = 0
        self.is_up = False
        self._begin()

    def _begin(self) -> None:
        self.incarnation = f"{self.name}.{self.starts}"
        self.holds = self.is_open = self.is_serving = False
        self.led = self.given = self.is_moving = self.is_held = self.in_flight = False
        self.placement, self.modified, self.revision = Placement(1, "", "", 0), 0, 0
        self.policy = MirrorPolicy()
        self.alive: dict[str, Presence] = {}
        self.cursor = 0
        self.is_due = self.is_changed = False
        self.unseen = 0
        self.followed = 0
        self.fulfilled: Waits | None = None
        self.stamp = 0
        self.acks: MirrorAcks[Callable[[], None]] = MirrorAcks()
        self.streams: dict[str, Stream] = {}
        self.since: dict[str, int] = {}
        self.on_disk: list[Callable[[], None]] = []
        self.tasks: list[tuple[Task, Callable[[], bool]]] = []
        self.leader = ""
        self.hears, self.syncs = self.world.speed(), self.world.speed()
        self.link: Link | None = None
        self.is_accepting = self.is_busy = False
        self.serial = self.drop_to = self.again_at = 0

    # -- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Run."""
        self.starts += 1
        self._begin()
        self.is_up = self.holds = True
        self.world.note(f"{self.name} starts as {self.incarnation}")
        self._spawn(self._enter())

    def _end(self) -> None:
        for link in self.world.links:
            if self.name in (link.mirror, link.leader):
                link.cut()
        self.is_up = self.holds = self.is_open = self.is_serving = self.led = False
        self.tasks.clear()

    def crash(self) -> None:
        """The power fails."""
        log = self.log
        log.cut(self.world.rng.randint(max(log.durable, log.first), log.end))
        self.world.note(f"{self.name} crashes, and has up to {log.end}")
        self._end()

    def begin_anew(self) -> None:
        """In the same process: its lease was lost."""
        self._end()
        self.start()

    def stops(self) -> None:
        """In order."""
        if self.is_serving and not self.is_held:
            self.is_held = True
            self._spawn(self._stop())

    def _stop(self) -> Task:
        placement = self.placement
        others = {name: each for name, each in self.alive.items() if name != self.name}
        if placement.leader == self.name:
            promoted = successor(
                self.policy, placement.mirrors, placement.synchronised, others, is_graceful=True
            )
            if promoted.leader is not None:
                yield from self._move(promoted.leader)
        self.world.note(f"{self.name} stops")
        self.log.durable = self.log.end
        self._end()
        presence = self.world.store.alive.get(self.name)
        if (
            presence is not None
            and presence.incarnation == self.incarnation
            and self.name not in self.world.away
        ):
            self.world.store.put(self.name, None)

    def _enter(self) -> Task:
        store, world = self.world.store, self.world
        yield lambda: self.name not in world.away
        self._look(store)
        presence = Presence(self.incarnation, self.name, "", 0, "")
        while True:
            yield lambda: self.name not in store.alive and self.name not in world.away
            revision = yield from self._transact(
                lambda store: self.name not in store.alive, self.name, presence
            )
            if revision is not None:
                break
        yield lambda: self.name not in world.away
        if not world.is_wrong("looked before it was announced"):
            self._look(store)
        self.is_open = self.is_changed = self.is_due = True
        if self.placement.leader == self.name:
            self._begin_to_lead(self.placement.term)
        if not world.is_wrong("served before it was followed"):
            yield from self._follow_records()
        self.is_serving = True
        self._spawn(self._place())

    def _look(self, store: Store) -> None:
        self.placement, self.modified, self.policy = store.placement, store.modified, store.policy
        self.alive, self.revision, self.cursor = dict(store.alive), store.revision, len(store.events)

    # -- what may happen to it ----------------------------------------------------------------

    def due(self) -> list[Callable[[], None]]:
        """What goes on by itself."""
        if not self.is_up:
            return []
        world = self.world
        found: list[Callable[[], None]] = []
        if (self.on_disk or self.log.durable < self.log.end) and world.happens(self.syncs):
            found.append(self.sync)
        can_hear = self.is_open and self.holds and self.name not in world.away
        if can_hear and self.cursor < len(world.store.events) and world.happens(self.hears):
            found += [self._hear] * 2
        for task, is_ready in self.tasks:
            if is_ready():
                found.append(lambda task=task: self._step(task))  # type: ignore[misc]
        if self.leader and self.is_open and (self.link is None or not self.link.is_up):
            if world.can_reach(self.name, self.leader):
                found.append(self._connect)
        for stream in self.streams.values():
            found += [lambda stream=stream: self._gone(stream)] if not stream.link.is_up else stream.due()  # type: ignore[misc]
        return found

    def _spawn(self, task: Task) -> None:
        self.tasks.append((task, lambda: True))

    def _step(self, task: Task) -> None:
        tasks = self.tasks
        at = next(index for index, each in enumerate(tasks) if each[0] is task)
        del tasks[at]
        try:
            is_ready = next(task)
        except (StopIteration, Lost):
            return
        if self.tasks is tasks and self.is_up:
            tasks.append((task, is_ready))

    def _hear(self) -> None:
        """The watch tells what has happened."""
        key, value = self.world.store.events[self.cursor]
        self.cursor += 1
        self.revision = self.cursor + 1
        self.knows(key, value)

    def knows(self, key: str, value: Any) -> None:
        """Something has changed."""
        if key == "placement":
            self.placement, self.modified, self.is_changed = value, self.revision, True
            if self.unseen <= self.revision:
                self.unseen = 0
        elif key == "policy":
            self.policy = value
        elif value is None:
            self.alive.pop(key, None)
        else:
            self.alive[key] = value
        self.is_due = True

    def sync(self) -> None:
        """What was written so far is on the disk."""
        log = self.log
        log.durable = log.end
        if self.drop_to > log.first and not self.led:
            log.drop(min(self.drop_to, log.end))
        done, self.on_disk = self.on_disk, []
        for each in done:
            each()

    def shown(self) -> str:
        """For a trace."""
        streams = {
            name: (each.is_live, each.is_joined, each.lacks_head, each.first, self.acks.has(_Q, name))
            for name, each in self.streams.items()
        }
        return f"{self.log.first}..{self.log.end} {streams} unseen {self.unseen} tasks {len(self.tasks)}"

    # -- what is asked of the store -----------------------------------------------------------

    def _transact(
        self,
        holds: Callable[[Store], bool],
        key: str,
        value: Any,
        on_done: Callable[[], None] = lambda: None,
    ) -> Task:
        request = Request(self.name, self.incarnation, holds, key, value, on_done)
        self.world.requests.append(request)
        yield lambda: request.is_answered or not self.holds
        if not request.is_answered:
            raise Lost
        return request.revision

    def _around(self) -> Surroundings:
        alive = {self.name: Presence(self.incarnation, "", "", 0, "")} | self.alive
        return Surroundings(
            self.name,
            self.incarnation,
            self.world.names,
            alive,
            lambda some: self.world.rng.sample(list(some), len(some)),
        )

    # -- placing: runtime.cluster.placing -----------------------------------------------------

    def _place(self) -> Task:
        while True:
            yield lambda: self.is_changed or self.is_due
            yield from self._follow_records()
            yield from self._write_records()

    def _follow_records(self) -> Task:
        while self.is_changed:
            self.is_changed = False
            self.in_flight = True
            yield from self._follow(self.placement, self.modified)
            self.in_flight = False
            if not self.world.is_wrong("what was fulfilled stays so"):
                self.fulfilled = None

    def _write_records(self) -> Task:
        self.is_due = False
        if self.is_moving or (
            self.unseen and not self.world.is_wrong("a record that is not seen does not matter")
        ):
            return
        self.in_flight = True
        before, around = self.placement, self._around()
        move_to = ""
        if before.leader == self.name:
            if not self.is_held and self.led:
                wanted, move_to = following(before, self.policy, self._ready(), around)
                after = self._prepared(before, wanted)
                if after != before:
                    move_to = ""
                    yield from self._write(before, after)
        elif before.leader not in around.alive:
            if self.world.is_wrong("majority by policy"):
                promoted = successor(
                    self.policy, before.mirrors, before.synchronised, around.alive, is_graceful=False
                )
            else:
                promoted = promotion(before, self.policy, around.alive)
            if promoted.leader == self.name and promoted.asks:
                try:
                    yield from self._take_over_after_asking(before, promoted)
                except Failed:
                    self.is_due = True
            elif promoted.leader == self.name:
                yield from self._write(before, taken_over(before, promoted, around), promoted)
        self.in_flight = False
        if move_to:
            yield from self._move(move_to)

    def _take_over_after_asking(self, before: Placement, promoted: Promotion) -> Task:
        ends = {}
        for node in (self.name, *promoted.asks):
            try:
                ends[node] = yield from self._end_of(node)
            except Failed:
                continue
        after = led_after_asking(before, promoted, ends, self._around())
        if after is None:
            raise Failed
        if self.world.is_wrong("all stay recorded after a majority"):
            kept = tuple(node for node in after.mirrors if node in before.synchronised)
            after = _replaced(after, synchronised=kept)
        yield from self._write(before, after, promoted)

    def _end_of(self, name: str) -> Task:
        """What a node has on its disk."""
        node, world = self.world.nodes[name], self.world
        if name != self.name and not world.can_reach(self.name, name):
            raise Failed
        incarnation, told, is_synced = node.incarnation, node.log.told(), [False]
        node.on_disk.append(lambda: is_synced.append(True))
        if world.is_wrong("ends are told before they are synced"):
            is_synced.append(True)
        yield lambda: is_synced[-1] or node.incarnation != incarnation or not node.is_up
        if not is_synced[-1]:
            raise Failed
        yield lambda: True
        return told

    def _prepared(self, before: Placement, wanted: Placement) -> Placement:
        world = self.world
        found = step(before, wanted, self.fulfilled)
        if world.is_wrong("a majority shrinks at once") and set(wanted.synchronised) < set(
            before.synchronised
        ):
            found = found._replace(placement=_replaced(wanted, majority=before.majority), is_open=False)
        if world.is_wrong("recorded before promises wait"):
            found = found._replace(
                placement=_replaced(wanted, majority=before.majority),
                waits=Waits((frozenset(before.synchronised),), before.majority),
                is_open=False,
            )
        if world.is_wrong("promises wait no longer before the record shrinks"):
            both = frozenset(before.synchronised) & frozenset(wanted.synchronised)
            found = found._replace(waits=Waits((both, *found.waits.sets[1:]), found.waits.majority))
        if world.is_wrong("a restarted leader confirms by majority") and before.majority:
            found = found._replace(waits=found.waits._replace(majority=True))
        if world.is_wrong("majority by policy"):
            found = found._replace(waits=found.waits._replace(majority=self.policy.confirm == MAJORITY))
        if self.fulfilled != found.waits and not world.is_wrong("what was fulfilled stays so"):
            self.fulfilled = None

        def fulfilled() -> None:
            self.fulfilled = found.waits
            self.is_due = True

        self._lead_by(found.waits, fulfilled if found.is_open else None)
        return found.placement

    def _write(self, before: Placement, after: Placement, promoted: Promotion | None = None) -> Task:
        modified, world = self.modified, self.world
        gone: tuple[str, ...] = () if before.leader == self.name else (before.leader,)
        if promoted is not None and not world.is_wrong("anybody may come back"):
            gone += must_be_gone(before, promoted)

        def holds(store: Store) -> bool:
            return store.modified == modified and not any(node in store.alive for node in gone)

        def done() -> None:
            if promoted is not None and not promoted.is_complete:
                world.lossy(before, after.leader)

        revision = yield from self._transact(holds, "placement", after, done)
        if revision is None:
            self.is_due = True
        elif self.revision < revision:
            self.unseen = revision

    def moves(self, to: str) -> None:
        """An operator wants another node to lead."""
        self._spawn(self._move(to))

    def _move(self, to: str) -> Task:
        world = self.world
        if not world.is_wrong("a move and a record at once"):
            yield lambda: not (self.in_flight or self.unseen or self.is_changed)
        placed, modified, around = self.placement, self.modified, self._around()
        is_here = placed.leader == self.name and self.led
        is_ready = to in self._ready() or world.is_wrong("who is given a queue need not have it")
        if not is_here or to == self.name or to not in around.alive or self.is_moving or not is_ready:
            return
        world.note(f"{self.name} moves the queue to {to}")
        self.is_moving = True
        if not world.is_wrong("what was fulfilled stays so"):
            self.fulfilled = None
        revision = None
        try:
            complete = yield from self._give_to(to, frozenset(placed.synchronised))
            around = self._around()
            is_ready = to in self._ready() or world.is_wrong("who is given a queue need not have it")
            if is_ready and self.placement == placed and to in around.alive:
                after = handed_over(placed, to, complete, around)
                if world.is_wrong("hands over to all"):
                    after = _replaced(
                        after, synchronised=tuple(n for n in after.mirrors if n in placed.synchronised)
                    )
                revision = yield from self._transact(
                    lambda store: store.modified == modified, "placement", after
                )
        except Failed:
            pass
        self.is_moving = False
        if revision is None:
            self.given = False
            self.is_due = True
        elif self.revision < revision:
            self.unseen = revision

    # -- keeping: runtime.cluster.keeping -----------------------------------------------------

    def _ready(self) -> frozenset[str]:
        return frozenset(name for name, stream in self.streams.items() if stream.is_ready)

    def _follow(self, placement: Placement, modified: int) -> Task:
        if placement.leader == self.name:
            if not self.led:
                yield from self._release()
                self._begin_to_lead(placement.term)
            for name in placement.mirrors:
                if name not in self.since:
                    self.since[name] = modified
                    self._tell_again(name)
            self.since = {name: at for name, at in self.since.items() if name in placement.mirrors}
            if not self.given:
                self._lead_by(Waits((frozenset(placement.synchronised),), majority=False), None)
        else:
            yield from self._stand_by(placement)
        self.followed = modified
        if self.again_at and self.again_at <= modified:
            self.again_at = 0
            self._tell()

    def _stand_by(self, placement: Placement) -> Task:
        if self.led:
            self.given = True
            yield from self._settle()
            self.led = self.given = False
            self.acks.cease(_Q)
            self.streams.clear()
        if self.name in placement.mirrors:
            if self.leader != placement.leader:
                self._unlink()
                self.leader = placement.leader
        elif self.name in placement.stopped:
            yield from self._release()
        else:
            yield from self._release()
            self.log = Log()

    def _release(self) -> Task:
        self._unlink()
        self.leader = ""
        yield lambda: not self.is_busy
        yield from self._settle()

    def _unlink(self) -> None:
        if self.link is not None and self.link.is_up:
            self.link.to_leader.append(("released",))
        self.link, self.is_accepting, self.again_at = None, False, 0

    def _settle(self) -> Task:
        is_synced = [False]
        self.on_disk.append(lambda: is_synced.append(True))
        yield lambda: is_synced[-1]

    def _begin_to_lead(self, term: int) -> None:
        self.led, self.given = True, False
        self.stamp = term << _TERM_SHIFT | self.starts
        self.drop_to = 0
        self.acks, self.streams, self.since = MirrorAcks(), {}, {}
        self.keep(self.acks.lead(_Q, majority=False))
        self.world.note(f"{self.name} leads in term {term}, and has {self.log.first}..{self.log.end}")

    def _lead_by(self, waits: Waits, then: Callable[[], None] | None) -> None:
        if self.led:
            self.keep(self.acks.lead(_Q, majority=waits.majority))
            self.keep(self.acks.wait_for(_Q, waits.sets, self.log.end, then))

    def _give_to(self, to: str, recorded: frozenset[str]) -> Task:
        self.given = True
        told = [False]
        self.keep(self.acks.wait_for(_Q, (recorded, frozenset({to})), self.log.end))
        self.keep(self.acks.promise({_Q: self.log.end}, lambda: told.append(True)))
        patience = [self.world.rng.randint(5, 60)]

        def is_over() -> bool:
            patience[0] -= 1
            return told[-1] or patience[0] < 0

        yield is_over
        if not told[-1]:
            raise Failed
        yield from self._settle()
        return frozenset(name for name in recorded & self._ready() if self.acks.has(_Q, name) >= self.log.end)

    # -- leading ------------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        """Whether clients may publish here."""
        return self.is_up and self.is_serving and self.led and not self.given

    def keep(self, told: list[Callable[[], None]]) -> None:
        """Promises that are due."""
        for each in told:
            each()

    def publish(self, *, settles: bool) -> None:
        """A client publishes, or a consumer settles."""
        log, world = self.log, self.world
        settled = {each.settles for each in log.records}
        open_ones = [each.number for each in log.records if not each.settles and each.number not in settled]
        target = world.rng.choice(open_ones) if settles and open_ones else 0
        if target:
            world.issued.add(target)
        world.numbers += 1
        record = Record(self.stamp, world.numbers, target)
        log.records.append(record)
        world.note(
            f"{self.name} appends {record.number} at {log.end - 1}" + (f" settles {target}" if target else "")
        )
        self._promise(record)
        for stream in self.streams.values():
            if stream.is_live:
                stream.send([("append", log.end - 1, record)], log.end)
        floor = min(log.floor(log.on_disk), log.durable)
        if settles and floor > log.first and world.rng.random() < 0.5:
            log.drop(floor)
            for stream in self.streams.values():
                stream.first = max(stream.first, floor)
                stream.top = max(stream.top, floor)
                if stream.is_live:
                    stream.send([("drop", floor)], log.end)
        self.is_due = self.is_due or settles

    def _promise(self, record: Record) -> None:
        """Kept once the local disk has it, and the mirrors, and no other node can lead."""
        has: set[str] = set()

        def part(which: str) -> None:
            is_free = which == "mirrors" and self.world.is_wrong("mirrors' acks need no lease")
            if self.holds or is_free:
                has.add(which)
                if len(has) == 2:
                    self.world.confirms(self.name, record)

        self.on_disk.append(lambda: part("disk"))
        self.keep(self.acks.promise({_Q: self.log.end}, lambda: part("mirrors")))

    def from_mirror(self, link: Link) -> None:
        """What a mirror says."""
        said = link.to_leader.popleft()
        stream = self.streams.get(link.mirror)
        mine = stream if stream is not None and stream.link is link else None
        match said:
            case ("copy", held, followed):
                if not self.led:
                    return
                self.streams[link.mirror] = Stream(self, link, held, followed)
                self.keep(self.acks.acked(_Q, link.mirror, 0))
                link.to_mirror.append(("mirroring", said[1]))
                if followed < self.since.get(link.mirror, 0):
                    self._tell_again(link.mirror)
                self.is_due = True
            case ("headers", headers) if mine is not None and mine.is_asked:
                mine.probed(headers)
            case ("ack", position) if mine is not None:
                mine.acked(position)
            case ("released",):
                if mine is not None:
                    self._gone(mine)
                link.cut()

    def _tell_again(self, name: str) -> None:
        """What a mirror has is of interest once it has followed the record by which it is one."""
        stream = self.streams.get(name)
        for link in (
            [stream.link]
            if stream is not None
            else [
                each
                for each in self.world.links
                if (each.leader, each.mirror) == (self.name, name) and each.is_up
            ]
        ):
            link.to_mirror.append(("again", self.since.get(name, 0)))

    def _gone(self, stream: Stream) -> None:
        if self.streams.get(stream.link.mirror) is stream:
            del self.streams[stream.link.mirror]
            self.is_due = True

    # -- mirroring ----------------------------------------------------------------------------

    def epoch_of(self, header: bytes) -> int:
        """Of a chunk."""
        return int.from_bytes(header[16:24], "big")

    def _connect(self) -> None:
        world = self.world
        for each in world.links:
            if each.mirror == self.name and each.leader == self.leader:
                each.cut()
        world.links = [each for each in world.links if each.is_up or each.to_leader]
        self.link = Link(self.name, self.leader, world.speed())
        world.links.append(self.link)
        self._tell()

    def _tell(self) -> None:
        link, log = self.link, self.log
        self.is_accepting = False
        if link is None or not link.is_up or self.is_busy or self.led:
            return
        self.serial += 1
        last = log.records[-1].header(log.end - 1) if log.records else b""
        held = Held(_Q, log.first, log.end, last)
        self.expected = held
        link.to_leader.append(("copy", held, self.followed))

    def from_leader(self, link: Link) -> None:
        """What a leader says."""
        said = link.to_mirror.popleft()
        if link is not self.link or self.led:
            return
        match said:
            case ("mirroring", held):
                self.is_accepting = held is self.expected and not self.is_busy
            case ("again", revision):
                if self.followed >= revision:
                    self._tell()
                else:
                    self.again_at = revision
            case ("probe", before, count) if self.is_accepting:
                log = self.log
                headers = [
                    log.records[at - log.first].header(at)
                    for at in range(before - 1, max(log.first, before - count) - 1, -1)
                ]
                link.to_leader.append(("headers", headers))
            case ("frame", position, changes):
                for change in changes:
                    if self.is_accepting:
                        self._change(change)
                if self.world.is_wrong("acks before the disk"):
                    self._ack(link, position)
                else:
                    self.on_disk.append(lambda: self._ack(link, position))

    def _ack(self, link: Link, position: int) -> None:
        if link is self.link and link.is_up:
            link.to_leader.append(("ack", position))

    def _change(self, change: tuple[Any, ...]) -> None:
        log, world = self.log, self.world
        match change:
            case ("append", at, record):
                if at != log.end:
                    raise world.violation(f"{self.name} is sent offset {at}, and has up to {log.end}")
                log.records.append(record)
            case ("head", first, some):
                if first + len(some) == log.first:
                    log.records[:0] = some
                    log.first = first
                    # It is taken in when it is on the disk, and what is behind it is there.
                    log.durable = max(log.durable, first + len(some))
            case ("begin", first):
                world.note(f"{self.name} begins anew at {first}")
                self.log = Log(first)
                self.drop_to = 0
            case ("drop", first):
                self.drop_to = max(self.drop_to, first)
            case ("cut", at):
                self.is_accepting, self.is_busy = False, True
                self._spawn(self._set_aside(at))

    def _set_aside(self, at: int) -> Task:
        yield lambda: True
        self.world.note(f"{self.name} sets aside what is behind {at}")
        self.log.cut(at)
        self.is_busy = False
        self._tell()


def _replaced(placement: Placement, **changes: Any) -> Placement:
    return Placement(**{name: getattr(placement, name) for name in placement.__struct_fields__} | changes)


__all__ = ["ALL", "Node", "Stream"]
