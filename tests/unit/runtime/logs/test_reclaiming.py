"""runtime.logs.reclaiming: what a queue's log keeps on disk follows what is not settled in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.runtime.logs.reclaiming import BUSY_BYTES_MIN, QUIET_BYTES_MIN, ROLL_EVERY_MS
from leveret.wire.chunk import Attribute, ChunkType, decode_trailer
from tests.unit.runtime.logs.consumed import BODY, LOOK_MS, Store


@pytest.fixture(params=[True, False], ids=["durable", "transient"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    made = Store(tmp_path, durable=request.param)
    yield made
    made.close()


def test_a_drained_queue_that_is_quiet_keeps_next_to_nothing_on_disk(store: Store) -> None:
    store.pass_through(200)
    end = store.queue.next_offset
    assert store.on_disk > 3_000_000
    store.look_often(4)
    assert store.on_disk < 1000
    assert store.names() == [f"{end:020d}.segment"]
    names = store.names()
    store.look_often(4)
    assert store.names() == names, "once is enough"


def test_what_a_drained_queue_knew_is_known_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.publish(20)
    store.queue.sequences.note_logged({b"someone": 17})
    store.consume(20)
    store.sync()
    store.look_often(4)
    end = store.queue.next_offset
    store.restart()
    assert (store.queue.next_offset, store.queue.message_count) == (end, 0)
    assert store.queue.sequences.logged == {b"someone": 17}
    (chunk,) = store.store.log(store.queue).read(0, 1 << 20, check=True)
    assert (chunk.header.type, chunk.header.next_offset) == (ChunkType.TRACKING, end)
    assert Attribute.LOG in {kind for kind, *_ in decode_trailer(chunk.trailer)}
    store.publish(1)
    store.consume(1)
    assert store.queue.next_offset == end + 2
    store.close()


def test_a_queue_that_was_drained_before_a_restart_begins_anew_after_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.publish(20)
    store.consume(20)
    store.restart()
    store.look_often(4)
    assert store.on_disk < 1000
    store.close()


def test_a_queue_that_holds_a_message_keeps_it(store: Store) -> None:
    store.publish(200)
    store.consume(199)
    store.sync()
    store.look_often(10)
    (run,), _ = store.queue.take(1)
    assert run.bodies == [BODY]
    if store.durable:
        store.restart()
        assert store.queue.message_count == 1


def test_what_is_little_is_left_where_it_is(store: Store) -> None:
    store.publish(QUIET_BYTES_MIN // len(BODY) - 1)
    store.consume(QUIET_BYTES_MIN // len(BODY) - 1)
    store.sync()
    names = store.names()
    store.look_often(4)
    assert store.names() == names


def test_a_queue_that_its_consumers_keep_empty_stays_small_and_rolls_seldom(store: Store) -> None:
    largest, firsts = 0, set[str]()
    per_look = 4 * BUSY_BYTES_MIN // len(BODY) // 4
    for _ in range(60):
        # Never quiet, and never drained when it is looked at.
        store.publish(per_look)
        store.consume(per_look - 1 if store.queue.message_count == per_look else per_look)
        store.sync()
        store.look()
        largest = max(largest, store.on_disk)
        firsts.update(name[:20] for name in store.names())
    per_roll = per_look * len(BODY) * ROLL_EVERY_MS // LOOK_MS
    assert largest < 3 * per_roll
    assert len(firsts) <= 60 * LOOK_MS // ROLL_EVERY_MS + 1


def test_old_segments_stay_until_the_new_one_is_synced(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.pass_through(20)
    for _ in range(2):
        store.now_ms += LOOK_MS
        for queue in store.store.reclaiming.look(store.now_ms):
            store.store.append_settlements(queue)
    for _ in range(3):
        store.now_ms += LOOK_MS
        assert store.store.reclaiming.look(store.now_ms) == []
    assert len(store.names()) == 2, "nothing of the new one is on disk yet"
    store.sync()
    store.store.reclaiming.look(store.now_ms)
    assert len(store.names()) == 1
    store.close()


def test_what_somebody_else_needs_still_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.store.keep_from = lambda queue: 3
    store.pass_through(20)
    store.look_often(5)
    assert store.store.log(store.queue).first_offset == 0
    store.store.keep_from = lambda queue: queue.settled.floor
    store.store.release()
    assert store.on_disk < 1000
    store.close()


def test_a_queue_that_is_published_to_in_the_flush_in_which_it_is_due_does_not_begin_anew(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    store.pass_through(20)
    store.look()
    store.now_ms += LOOK_MS
    (due,) = store.store.reclaiming.look(store.now_ms)
    store.publish(1)
    names = store.names()
    store.store.append_settlements(due)
    assert store.names() == names
    assert store.queue.message_count == 1
    store.close()


def test_a_disk_that_refuses_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.pass_through(20)
    log = store.store.log(store.queue)
    with monkeypatch.context() as patch:

        def refuse(*given: object) -> None:
            raise StorageError("no space left")

        patch.setattr(log, "_write", refuse)
        store.look()
        with pytest.raises(StorageError, match="no space"):
            store.look()
    store.look_often(4)
    assert store.on_disk < 1000
    store.close()


def test_only_queues_that_settled_something_are_looked_at(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.publish(200)
    assert store.store.reclaiming.look(0) == []
    assert not store.store.reclaiming._looks
    store.consume(1)
    assert list(store.store.reclaiming._looks) == [store.queue]
    store.look_often(2)
    assert not store.store.reclaiming._looks, "most of it is not settled"
    store.close()
