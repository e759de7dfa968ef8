"""A node's roles for the queue in the model, by the records: runtime.cluster.queue_roles, and mirroring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from leveret.core.replication.cluster import Placement, Presence
from leveret.core.replication.placement import RequiredMirrors
from leveret.core.replication.promises import Promises
from leveret.core.rules.mirror_policy import MirrorPolicy
from leveret.model.errors import PeerError
from leveret.testing.mirror_model.environment import ModelCopy, ModelEnvironment
from leveret.testing.mirror_model.parts import (
    ModelLeaseLost,
    ModelLink,
    ModelLog,
    Record,
    RequestFailed,
    Task,
)
from leveret.testing.mirror_model.stream import ModelStream, Q
from leveret.wire.link import LogExtent

_TERM_SHIFT: Final = 16


class ModelQueueRoles(ModelCopy):
    """See the module. `_begin` sets the state that a node loses with its process."""

    def __init__(self, world: ModelEnvironment, name: str) -> None:
        """Begin as a node that has never run."""
        self.world, self.name = world, name
        self.log = ModelLog()
        self.is_damaged = False
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
        self.unobserved = 0
        self.followed = 0
        self.fulfilled: RequiredMirrors | None = None
        self.stamp = 0
        self.promises: Promises[Callable[[], None]] = Promises()
        self.streams: dict[str, ModelStream] = {}
        self.since: dict[str, int] = {}
        self.on_disk: list[Callable[[], None]] = []
        self.tasks: list[tuple[Task, Callable[[], bool]]] = []
        self.leader = ""
        self.hears, self.syncs = self.world.speed(), self.world.speed()
        self.link: ModelLink | None = None
        self.is_accepting = self.is_busy = False
        self.serial = self.drop_to = self.again_at = 0

    # -- events -------------------------------------------------------------------------------

    def due(self) -> list[Callable[[], None]]:
        """Return the node's steps that may happen now."""
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
        has_link = self.link is not None and self.link.is_up
        if self.leader and self.is_open and not has_link and world.can_reach(self.name, self.leader):
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
        except (StopIteration, ModelLeaseLost):
            return
        if self.tasks is tasks and self.is_up:
            tasks.append((task, is_ready))

    def _hear(self) -> None:
        """Take the next event of the watch."""
        key, value = self.world.store.events[self.cursor]
        self.cursor += 1
        self.revision = self.cursor + 1
        self.knows(key, value)

    def knows(self, key: str, value: Any) -> None:
        """Take a change of a key in the store."""
        if key == "placement":
            self.placement, self.modified, self.is_changed = value, self.revision, True
            if self.unobserved <= self.revision:
                self.unobserved = 0
        elif key == "policy":
            self.policy = value
        elif value is None:
            self.alive.pop(key, None)
        else:
            self.alive[key] = value
        self.is_due = True

    def sync(self) -> None:
        """Sync all written records, and call the callbacks that wait for that."""
        log = self.log
        log.durable = log.end
        if self.drop_to > log.first and not self.led:
            log.drop(min(self.drop_to, log.end))
        done, self.on_disk = self.on_disk, []
        for each in done:
            each()

    def shown(self) -> str:
        """Return a text for the trace."""
        streams = {
            name: (
                each.is_live,
                each.is_joined,
                each.lacks_head,
                each.first,
                self.promises.replicas[Q].has(name),
            )
            for name, each in self.streams.items()
        }
        return f"{self.log.first}..{self.log.end} {streams} unseen {self.unobserved} tasks {len(self.tasks)}"

    # -- following records: runtime.cluster.queue_roles -------------------------------------------

    def _ready(self) -> frozenset[str]:
        return frozenset(name for name, stream in self.streams.items() if stream.is_ready)

    def _follow(self, placement: Placement, modified: int) -> Task:
        if placement.leader == self.name:
            if not self.led:
                yield from self._release()
                self._begin_to_lead(placement.term)
            if self.is_damaged:
                return
            for name in placement.mirrors:
                if name not in self.since:
                    self.since[name] = modified
                    self._report_again(name)
            self.since = {name: at for name, at in self.since.items() if name in placement.mirrors}
            if not self.given:
                self._lead_by(RequiredMirrors((frozenset(placement.synchronised),), majority=False), None)
        else:
            yield from self._stand_by(placement)
        self.followed = modified
        if self.again_at and self.again_at <= modified:
            self.again_at = 0
            self._report()

    def _stand_by(self, placement: Placement) -> Task:
        if self.led:
            self.given = True
            yield from self._settle()
            self.led = self.given = False
            self.promises.cease(Q)
            self.streams.clear()
        if self.name in placement.mirrors:
            is_counted_on = self.name in placement.synchronised
            if self.is_damaged and (
                not is_counted_on or self.world.is_wrong("a damaged copy is put away while it is recorded")
            ):
                self._put_away()
            if self.is_damaged:
                self._unlink()
                self.leader = ""
            elif self.leader != placement.leader:
                self._unlink()
                self.leader = placement.leader
        elif self.name in placement.stopped:
            yield from self._release()
        else:
            yield from self._release()
            self._put_away()

    def _put_away(self) -> None:
        self.log, self.is_damaged = ModelLog(), False

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
        self.promises, self.streams, self.since = Promises(), {}, {}
        self.promises.lead(Q)
        if self.world.is_wrong("an empty copy leaves nothing on the disk"):
            self.log.forget_where_it_begins()
        if not self.is_damaged and self.log.end < self.world.reached and self.world.losing != self.name:
            raise self.world.violation(
                f"{self.name} leads from {self.log.end}, and had offsets up to {self.world.reached}"
            )
        self.world.lost(self.name)
        if self.world.losing == self.name:
            self.world.losing = ""
        self.world.note(f"{self.name} leads in term {term}, and has {self.log.first}..{self.log.end}")
        if self.is_damaged:
            self.world.note(f"{self.name} cannot read it")

    def _lead_by(self, waits: RequiredMirrors, then: Callable[[], None] | None) -> None:
        if self.led:
            majority = waits.majority
            self.keep(self.promises.wait_for(Q, waits.sets, self.log.end, majority=majority, then=then))

    def _hand_over_to(self, to: str, recorded: frozenset[str]) -> Task:
        self.given = True
        extent = [False]
        self.keep(self.promises.wait_for(Q, (recorded, frozenset({to})), self.log.end))
        self.keep(self.promises.promise({Q: self.log.end}, lambda: extent.append(True)))
        patience = [self.world.rng.randint(5, 60)]

        def is_over() -> bool:
            patience[0] -= 1
            return extent[-1] or patience[0] < 0

        yield is_over
        if not extent[-1]:
            raise RequestFailed
        yield from self._settle()
        return frozenset(
            name for name in recorded & self._ready() if self.promises.replicas[Q].has(name) >= self.log.end
        )

    # -- leading ------------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        """Whether clients may publish here."""
        return self.is_up and self.is_serving and self.led and not self.given and not self.is_damaged

    def publish(self, *, settles: bool) -> None:
        """Append a message of a client, or the settlement of a consumer."""
        log, world = self.log, self.world
        settled = {each.settles for each in log.records}
        open_ones = [each.number for each in log.records if not each.settles and each.number not in settled]
        target = world.rng.choice(open_ones) if settles and open_ones else 0
        if target:
            world.issued.add(target)
        world.numbers += 1
        record = Record(self.stamp, world.numbers, target)
        log.append(record)
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

    def mark(self) -> None:
        """Begin a segment with a record that settles itself only (QueueStore.begin_segment)."""
        self.world.numbers += 1
        record = Record(self.stamp, self.world.numbers, self.world.numbers)
        self.world.issued.add(record.number)
        self.log.append(record)
        self.world.note(f"{self.name} begins a segment at {self.log.end - 1}")
        for stream in self.streams.values():
            if stream.is_live:
                stream.send([("append", self.log.end - 1, record)], self.log.end)

    def _promise(self, record: Record) -> None:
        """Confirm a record once the local disk and the mirrors have it, if the lease lasts both times."""
        has: set[str] = set()

        def part(which: str) -> None:
            is_free = which == "mirrors" and self.world.is_wrong("mirrors' acks need no lease")
            if self.holds or is_free:
                has.add(which)
                if len(has) == 2:
                    self.world.confirms(self.name, record, end)

        end = self.log.end
        self.on_disk.append(lambda: part("disk"))
        self.keep(self.promises.promise({Q: self.log.end}, lambda: part("mirrors")))

    def from_mirror(self, link: ModelLink) -> None:
        """Take a message of a mirror."""
        said = link.to_leader.popleft()
        stream = self.streams.get(link.mirror)
        mine = stream if stream is not None and stream.link is link else None
        match said:
            case ("copy", held, followed):
                if not self.led or self.is_damaged:
                    return
                self.streams[link.mirror] = ModelStream(self, link, held, followed)
                self.promises.replicas[Q].begins_anew(link.mirror)
                link.to_mirror.append(("mirroring", said[1]))
                if followed < self.since.get(link.mirror, 0):
                    self._report_again(link.mirror)
                self.is_due = True
            case ("headers", headers) if mine is not None and mine.is_asked:
                try:
                    mine.probed(headers)
                except PeerError:
                    # The mirror dropped settled records since its report: it connects and reports again.
                    link.cut()
            case ("ack", position) if mine is not None:
                mine.acked(position)
            case ("released",):
                if mine is not None:
                    self._gone(mine)
                link.cut()

    def _report_again(self, name: str) -> None:
        """Request a mirror's report again, for the time when it has followed the record that made it a mirror."""
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

    def _gone(self, stream: ModelStream) -> None:
        if self.streams.get(stream.link.mirror) is stream:
            del self.streams[stream.link.mirror]
            self.is_due = True

    # -- mirroring ----------------------------------------------------------------------------

    def _connect(self) -> None:
        world = self.world
        for each in world.links:
            if each.mirror == self.name and each.leader == self.leader:
                each.cut()
        world.links = [each for each in world.links if each.is_up or each.to_leader]
        self.link = ModelLink(self.name, self.leader, world.speed())
        world.links.append(self.link)
        self._report()

    def _report(self) -> None:
        link, log = self.link, self.log
        self.is_accepting = False
        if link is None or not link.is_up or self.is_busy or self.led:
            return
        self.serial += 1
        last = log.records[-1].header(log.end - 1) if log.records else b""
        held = LogExtent(Q, log.first, log.end, last)
        self.expected = held
        link.to_leader.append(("copy", held, self.followed))

    def from_leader(self, link: ModelLink) -> None:
        """Take a message of the leader."""
        said = link.to_mirror.popleft()
        if link is not self.link or self.led:
            return
        match said:
            case ("mirroring", held):
                self.is_accepting = held is self.expected and not self.is_busy
            case ("again", revision):
                if self.followed >= revision:
                    self._report()
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

    def _ack(self, link: ModelLink, position: int) -> None:
        if link is self.link and link.is_up:
            link.to_leader.append(("ack", position))

    def _change(self, change: tuple[Any, ...]) -> None:
        log, world = self.log, self.world
        match change:
            case ("append", at, record):
                if at != log.end:
                    raise world.violation(f"{self.name} is sent offset {at}, and has up to {log.end}")
                log.append(record)
            case ("head", first, some):
                if first + len(some) == log.first:
                    log.records[:0] = some
                    log.first = first
                    # The prefix joins the log once it is on disk, and the records after it are there already.
                    log.durable = max(log.durable, first + len(some))
            case ("begin", first):
                world.note(f"{self.name} begins anew at {first}")
                self.log = ModelLog(first, world.nodes[self.leader].log)
                self.drop_to = 0
            case ("drop", first):
                self.drop_to = max(self.drop_to, first)
            case ("cut", at):
                self.is_accepting, self.is_busy = False, True
                self._spawn(self._quarantine(at))

    def _quarantine(self, at: int) -> Task:
        yield lambda: True
        self.world.note(f"{self.name} sets aside what is behind {at}")
        log, led_by = self.log, self.world.nodes.get(self.leader)
        behind = {each.number for each in log.records[max(0, at - log.first) :]}
        may_lack = not self.world.drains or self.world.losses or led_by is None
        if led_by is not None and not may_lack and behind and behind <= led_by.log.past:
            raise self.world.violation(f"{self.name} sets aside what {led_by.name} had all of")
        log.cut(at)
        self.is_busy = False
        self._report()
