"""runtime.logs.relocating: messages that nobody settles pin no disk, and are lost at no step.

What a queue holds is compared with a model of it, by offset and body, over patterns from printed seeds.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.core.queues.messages import Run, alike
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import QueueSettings
from leveret.model.errors import StorageError
from leveret.runtime.logs import relocating
from leveret.runtime.logs.reclaiming import ROLL_EVERY_MS
from leveret.storage.log import SEGMENT_BYTES_MAX
from leveret.testing.simulation.machine.disk import SimulatedDisk
from leveret.wire.chunk import ChunkType
from tests.seeds import seeds
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import head_of
from tests.unit.runtime.logs.consumed import BODY, Store

SEGMENT_BYTES = 64 * 1024
KINDS: list[dict[str, Any]] = [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 3}]


def settle(queue: Queue, offsets: list[int]) -> None:
    """Consumers ack these, which were all taken."""
    for offset in offsets:
        queue.settle(offset, 1)


def take_all(queue: Queue) -> dict[int, bytes]:
    """Every ready message, taken, by offset."""
    taken: dict[int, bytes] = {}
    while runs := queue.take(1000)[0]:
        for run in runs:
            taken.update(enumerate(run.bodies, run.first))
    return taken


def held_of(store: Store) -> dict[int, bytes]:
    """Every message that a queue holds, read from its log alone."""
    queue = store.queue
    found: dict[int, bytes] = {}
    for first, end in list(queue.settled.gaps(0, queue.next_offset)):
        for run in queue.backlog.each(first, end):
            found.update(enumerate(run.bodies, run.first))
    return found


def begin_of(store: Store) -> tuple[int, bool]:
    """Where its log begins, and whether that wants to be synced though nobody waits."""
    log = store.store.log(store.queue)
    return log.first_offset, log.wants_sync


def publish(store: Store, bodies: list[bytes]) -> list[int]:
    """In one chunk; their offsets."""
    for body in bodies:
        store.queue.gathered.add(alike(head_of(len(body)), [body]))
    first = store.store.log(store.queue).next_offset
    store.store.append_messages(store.queue)
    return list(range(first, first + len(bodies)))


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
@pytest.mark.parametrize("kind", KINDS, ids=["classic", "quorum", "priority"])
@pytest.mark.long
def test_one_message_that_is_never_acked_pins_no_disk(
    tmp_path: Path, kind: dict[str, Any], *, durable: bool
) -> None:
    store = Store(tmp_path, durable=durable, arguments=kind, segment_bytes_max=4 * 1024 * 1024)
    store.publish(1)
    (straggler,), _ = store.queue.take(1)
    largest = 0
    for _ in range(40):
        store.pass_through(100)
        store.look()
        largest = max(largest, store.on_disk)
    store.look_often(4)
    assert largest < 2 * (ROLL_EVERY_MS // 1000 + 2) * 100 * len(BODY)
    assert store.on_disk < relocating.RELOCATED_BYTES_MIN
    assert store.queue.message_count == 1
    assert held_of(store) == {0: BODY}
    store.queue.requeue(straggler.first, 1)
    (again,), redelivered = store.queue.take(1)
    assert (again.first, again.bodies, again.arrived_ms, redelivered) == (0, [BODY], 0, True)
    if durable:
        store.restart()
        assert take_all(store.queue) == {0: BODY}
        store.queue.settle(0, 1)
        store.store.append_settlements(store.queue)
        store.restart()
        assert store.queue.message_count == 0
    store.close()


def test_how_often_a_message_came_back_is_known_behind_what_was_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path, arguments={"x-queue-type": "quorum"}, segment_bytes_max=4 * 1024 * 1024)
    store.publish(1)
    for _ in range(3):
        store.queue.take(1)
        store.queue.requeue(0, 1)
        store.store.append_settlements(store.queue)
    store.queue.take(1)
    assert store.queue.return_counts.of(0) == 3
    store.pass_through(100)
    store.look_often(8)
    assert begin_of(store)[0] > 100
    store.restart()
    assert held_of(store) == {0: BODY}
    assert store.queue.return_counts.of(0) == 3
    store.close()


def test_a_message_is_dead_behind_what_was_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path, arguments={"x-queue-type": "quorum"}, segment_bytes_max=4 * 1024 * 1024)
    keeping = QueueSettings(
        dead_letter_exchange="dlx", overflow="reject-publish", dead_letter_strategy="at-least-once"
    )
    store.queue.configure(keeping)
    store.publish(1)
    store.queue.take(1)
    store.queue.reject(0, 1)
    store.store.append_settlements(store.queue)
    store.pass_through(100)
    store.look_often(8)
    assert begin_of(store)[0] > 100
    store.restart()
    assert (held_of(store), take_all(store.queue)) == ({0: BODY}, {})
    assert store.queue.dead_lettering.count == 1
    store.close()


@pytest.mark.parametrize("kind", KINDS, ids=["classic", "quorum", "priority"])
@pytest.mark.parametrize("seed", seeds(12, each_time=3))
@pytest.mark.long
def test_whatever_is_settled_in_whatever_order_all_else_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any], seed: int
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(relocating, "RELOCATED_BYTES_MIN", 32 * 1024)
    store = Store(tmp_path / "data", arguments=kind, segment_bytes_max=SEGMENT_BYTES)
    model: dict[int, bytes] = {}
    times: dict[int, int] = {}
    relocations = 0
    for step in range(120):
        queue = store.queue
        for _ in range(rng.randrange(4)):
            size = rng.choice([10, 1_000, 20_000])
            bodies = [rng.randbytes(4) * (size // 4) for _ in range(rng.randrange(1, 6))]
            for offset, body in zip(publish(store, bodies), bodies, strict=True):
                model[offset], times[offset] = body, store.now_ms
        taken = take_all(queue)
        assert taken.items() <= model.items()
        stay = rng.choice([0.02, 0.2, 0.9])
        gone = [offset for offset in taken if rng.random() > stay]
        settle(queue, gone)
        for offset in taken.keys() - set(gone):
            if rng.random() < 0.8:
                queue.requeue(offset, 1)
        for offset in gone:
            del model[offset]
        store.store.append_settlements(queue)
        if rng.random() < 0.5:
            store.look()
        relocations += store.store.reclaiming.relocating.is_busy(queue)
        if rng.random() < 0.1 or step == 119:
            # As a process that is killed leaves it: all that was written is there.
            store.restart()
        elif queue.unacked_count:
            for first, end in list(queue.settled.gaps(0, queue.next_offset)):
                for run in queue.backlog.each(first, end):
                    assert run.arrived_ms == times[run.first]
            continue
        assert held_of(store) == model
        assert take_all(store.queue) == model
        for offset in model:
            store.queue.requeue(offset, 1)
    assert relocations
    store.look_often(2 * ROLL_EVERY_MS // 1000)
    unsettled = sum(len(body) + 64 for body in model.values())
    assert store.on_disk <= 2 * unsettled + 32 * 1024 + SEGMENT_BYTES + 20_000 * 6
    store.close()


@pytest.fixture
def disk() -> Iterator[SimulatedDisk]:
    with scratch() as folder, SimulatedDisk(folder) as disk:
        yield disk


@pytest.mark.parametrize("seed", seeds(8, each_time=3))
def test_a_kill_or_a_loss_of_power_at_any_step_takes_nothing(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Every append, every drop and every move of the log's begin is a step; each is followed by both."""
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(relocating, "RELOCATED_BYTES_MIN", 32 * 1024)
    monkeypatch.setattr(relocating, "_STEP_BYTES", 4 * 1024)
    data, copies = disk.root / "data", disk.root / "copies"
    store = Store(data, segment_bytes_max=SEGMENT_BYTES)
    model: dict[int, bytes] = {}
    promised: dict[int, bytes] = {}
    played = 0

    def died(what: str) -> None:
        nonlocal played
        if rng.random() > 0.2:
            return
        played += 1
        for lost, at_least in ((False, model), (True, promised)):
            place = copies / f"{played}{lost}"
            if lost:
                disk.power_lost(data, place, rng)
            else:
                shutil.copytree(data, place)
            after = Store(place, segment_bytes_max=SEGMENT_BYTES)
            assert after.queue.damage is None, (what, after.queue.damage)
            held = held_of(after)
            expected = {offset: body for offset, body in at_least.items() if offset in model}
            assert expected.items() <= held.items(), (what, lost, sorted(expected.keys() - held.keys()))
            assert take_all(after.queue) == held
            after.close()
            disk.remove(place)

    def stepped(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*given: Any) -> Any:
            outcome = original(*given)
            died(name)
            return outcome

        monkeypatch.setattr(owner, name, wrapped)

    log = store.store.log(store.queue)
    stepped(log, "_drop_oldest")
    stepped(log, "_begin_with")
    stepped(store.store, "append_relocated")
    stepped(log, "roll")
    for _ in range(60):
        bodies = [rng.randbytes(4) * 1000 for _ in range(rng.randrange(1, 8))]
        model.update(zip(publish(store, bodies), bodies, strict=True))
        taken = take_all(store.queue)
        gone = [offset for offset in taken if rng.random() < 0.95]
        for offset in gone:
            del model[offset]
        settle(store.queue, gone)
        for offset in taken.keys() - set(gone):
            store.queue.requeue(offset, 1)
        store.store.append_settlements(store.queue)
        if rng.random() < 0.7:
            store.sync()
            promised = dict(model)
            died("sync")
        store.now_ms += 1_000
        store.store.reclaiming.look(store.now_ms)
        died("look")
        while store.store.reclaiming.relocating.unfinished:
            store.store.append_settlements(store.queue)
            if rng.random() < 0.3:
                break
    assert played > 10
    store.close()


def test_nothing_is_dropped_before_it_is_safe_elsewhere(tmp_path: Path) -> None:
    store = Store(tmp_path)
    asked = []
    store.store.when_safe = lambda queue, then: asked.append(then)
    store.publish(1)
    store.queue.take(1)
    store.pass_through(100)
    store.look_often(6)
    log = store.store.log(store.queue)
    assert (len(asked), log.first_offset, store.queue.log_floor) == (1, 0, 0)
    asked[0]()
    store.look()
    assert log.first_offset == store.queue.log_floor > 100
    assert held_of(store) == {0: BODY}
    store.close()


def test_nothing_is_dropped_before_it_is_on_disk_here(tmp_path: Path) -> None:
    """With `durability = os` a promise does not say that."""
    store = Store(tmp_path)
    store.store.when_safe = lambda queue, then: then()
    store.publish(1)
    store.queue.take(1)
    store.pass_through(100)
    for _ in range(4):
        store.now_ms += 1_000
        store.store.reclaiming.look(store.now_ms)
        store.store.append_settlements(store.queue)
    assert begin_of(store) == (0, True)
    store.sync()
    store.look()
    first, wants_sync = begin_of(store)
    assert first > 100
    assert not wants_sync
    store.close()


def test_a_backlog_behind_a_straggler_is_not_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path, segment_bytes_max=1024 * 1024)
    store.publish(1)
    store.queue.take(1)
    store.publish(1000)
    store.consume(1000)
    store.publish(640)
    store.sync()
    before = store.store.log(store.queue).next_offset
    store.look_often(10)
    log = store.store.log(store.queue)
    assert log.first_offset > 900
    again = [chunk.header for chunk in log.read(before, 1 << 30)]
    assert {header.type for header in again} == {ChunkType.RELOCATION}
    # The straggler, and what is in one segment with the last that is settled.
    assert sum(header.data_bytes for header in again) <= 1024 * 1024
    assert store.on_disk < 640 * (len(BODY) + 200) + 2 * 1024 * 1024
    assert store.queue.message_count == 641
    store.close()


def test_messages_that_their_consumer_has_hardly_had_are_not_stored_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.publish(10)
    for _ in range(20):
        store.pass_through(200)
        store.look()
        # Ten messages are always on their way, and each is settled within a second.
        assert store.on_disk < (2 + ROLL_EVERY_MS // 1000) * 210 * (len(BODY) + 200)
    log = store.store.log(store.queue)
    assert log.newest_segment > 0
    kinds = {chunk.header.type for chunk in log.read(log.first_offset, 1 << 30)}
    assert ChunkType.RELOCATION not in kinds
    store.close()


def test_what_somebody_else_needs_is_not_stored_again(tmp_path: Path) -> None:
    store = Store(tmp_path, segment_bytes_max=1024 * 1024)
    store.store.keep_from = lambda queue: 3
    store.publish(1)
    store.queue.take(1)
    store.pass_through(640)
    end = store.queue.next_offset
    store.look_often(10)
    assert store.queue.next_offset == end
    store.store.keep_from = lambda queue: queue.next_offset
    for _ in range(10):
        store.publish(1)
        store.consume(1)
        store.look()
    assert store.on_disk < 2 * 1024 * 1024
    store.close()


def test_a_disk_that_refuses_is_asked_again_a_minute_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.publish(1)
    store.queue.take(1)
    store.pass_through(100)
    tried = 0

    def refuse(queue: Queue, runs: list[Run]) -> None:
        nonlocal tried
        tried += 1
        raise StorageError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(store.store, "append_relocated", refuse)
        store.look_often(30)
    assert tried == 1
    assert held_of(store) == {0: BODY}
    store.look_often(60)
    assert store.on_disk < relocating.RELOCATED_BYTES_MIN
    assert held_of(store) == {0: BODY}
    store.close()


def test_a_queue_that_holds_what_it_was_given_is_not_read_for_this(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, segment_bytes_max=SEGMENT_BYTES_MAX)
    store.publish(400)
    store.consume(40)
    store.sync()

    def read(*given: object) -> list[Run]:
        raise AssertionError("it is read")

    monkeypatch.setattr(store.store, "read", read)
    store.look_often(6)
    assert not store.store.reclaiming.relocating.is_busy(store.queue)
    store.close()
