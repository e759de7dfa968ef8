"""runtime.logs.queue_store: a queue is in its log, and comes back from it as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.queues.messages import alike
from leveret.core.queues.queue import Queue
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import Corrupt, PreconditionFailed, StorageError
from leveret.model.reasons import Reason
from leveret.runtime.clients.recovery_ingest import RecoveryIngest
from leveret.runtime.logs import queue_store as store_module
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.queue_store import QueueStore
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire.chunk import Attribute, ChunkError, ChunkType, Header, decode_trailer, encode_entry
from leveret.wire.record import content_header, decode_settlements, message_head
from leveret.wire.stream.publish import MessageRun
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import HEAD, Site, head_of

SEGMENT_BYTES = 300


class Store:
    """A queue store, one durable queue in it, and a clock; `restart` is kill -9 and a new process."""

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self.directory = directory
        self.durable = durable
        self.open()

    def open(self) -> None:
        def fail(error: BaseException) -> None:
            raise AssertionError(error)

        self.commit = GroupCommit(fsync=True, on_failure=fail)
        self.store = QueueStore(Tree(self.directory, epoch=5), self.commit, lambda: 1234, SEGMENT_BYTES)
        self.queue = self.another(7)
        self.store.recover(self.queue)

    def another(self, epoch: int) -> Queue:
        definition = QueueDefinition(name=f"q{epoch}", vhost="v", durable=self.durable, epoch=epoch)
        return Queue(definition, self.store.read)

    def restart(self) -> None:
        self.store.close()
        self.commit.close()
        self.open()

    def publish(self, *bodies: bytes) -> None:
        for body in bodies:
            self.queue.gathered.add(alike(head_of(len(body)), [body]))
        self.store.append_messages(self.queue)

    def take(self, count: int) -> list[tuple[int, bytes]]:
        """(offset, body) of the oldest ready messages, unacked from now on."""
        taken: list[tuple[int, bytes]] = []
        while len(taken) < count and self.queue.ready_count:
            runs, _ = self.queue.take(count - len(taken))
            taken += [(run.first + i, body) for run in runs for i, body in enumerate(run.bodies)]
        return taken

    def ack(self, *offsets: int) -> None:
        for offset in offsets:
            self.queue.settle(offset, 1)
        self.store.append_settlements(self.queue)

    def chunks(self) -> list[Header]:
        return [chunk.header for chunk in self.store.log(self.queue).read(0, 1 << 30)]

    def segments(self) -> list[Path]:
        return sorted((self.directory / "queues" / f"{7:016x}").glob("*.segment*"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.store.close()
    made.commit.close()


# -- what comes back --------------------------------------------------------------------------

STEP: st.SearchStrategy[tuple[str, list[int]]] = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(0, 60), min_size=1, max_size=6)),
    st.tuples(st.just("settle"), st.lists(st.integers(0, 9), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["purge", "restart"]), st.just([])),
)


@settings(max_examples=80)
@given(st.lists(STEP, max_size=25))
def test_after_any_restart_the_queue_holds_what_was_not_settled_in_order(
    steps: list[tuple[str, list[int]]],
) -> None:
    with scratch() as directory:
        site, model, number = Store(directory), list[bytes](), 0
        for what, values in steps:
            if what == "publish":
                bodies = [b"%06d" % (number + i) + b"." * size for i, size in enumerate(values)]
                number += len(values)
                site.publish(*bodies)
                model += bodies
            elif what == "settle":
                taken = dict(enumerate(site.take(10)))
                chosen = [taken.pop(index) for index in dict.fromkeys(values) if index in taken]
                site.ack(*(offset for offset, _ in chosen))
                model = [body for body in model if body not in {body for _, body in chosen}]
                for offset, _ in taken.values():
                    site.queue.requeue(offset, 1)
            elif what == "purge":
                assert site.queue.drop_ready(Reason.PURGED) == len(model)
                site.store.append_settlements(site.queue)
                model = []
            else:
                site.restart()
            assert site.queue.message_count == len(model)
        site.restart()
        assert [body for _, body in site.take(10**6)] == model
        site.store.close()
        site.commit.close()


def test_messages_and_settlements_stand_in_one_log_in_order(store: Store) -> None:
    store.publish(b"a", b"b")
    taken = store.take(2)
    store.publish(b"c")
    store.ack(*(offset for offset, _ in taken))
    chunks = store.chunks()
    assert [(chunk.type, chunk.chunk_id, chunk.records) for chunk in chunks] == [
        (ChunkType.USER, 0, 2),
        (ChunkType.USER, 2, 1),
        (ChunkType.TRACKING, 3, 1),
    ]
    assert all((chunk.epoch, chunk.timestamp_ms) == (5, 1234) for chunk in chunks)
    (*_, last) = store.store.log(store.queue).read(3, 1)
    assert list(decode_settlements(bytes(last.data[4:]))) == [(Reason.ACKED, 0, 2)]


def test_a_flush_with_nothing_to_say_appends_nothing(store: Store) -> None:
    store.publish()
    store.ack()
    assert not (store.directory / "queues").exists()


def test_a_transient_queues_log_is_gone_after_a_restart_and_is_never_synced(tmp_path: Path) -> None:
    store = Store(tmp_path, durable=False)
    store.publish(b"a")
    assert store.commit._dirty == {}
    assert [body for _, body in store.take(1)] == [b"a"]
    assert len(list((tmp_path / "transient").iterdir())) == 1
    store.restart()
    assert store.queue.message_count == 0
    assert not (tmp_path / "transient").exists()


def test_memory_alone_knows_what_a_transient_queue_has_settled(tmp_path: Path) -> None:
    store = Store(tmp_path, durable=False)
    store.publish(b"a", b"b", b"c")
    store.ack(*[offset for offset, _ in store.take(2)])
    assert [(header.type, header.records) for header in store.chunks()] == [(ChunkType.USER, 3)]
    assert store.queue.settling == []
    assert [body for _, body in store.take(2)] == [b"c"]


async def test_a_durable_queues_log_is_synced_by_the_group_commit(store: Store) -> None:
    store.publish(b"a")
    await store.commit.all_durable()
    store.ack(*(offset for offset, _ in store.take(1)))
    await store.commit.all_durable()
    assert (store.commit.rounds, store.store.log(store.queue).unsynced()) == (2, [])


def test_a_deleted_queue_leaves_nothing_and_orphans_go_at_start(store: Store) -> None:
    store.publish(b"a")
    gone, orphan, refused = store.queue, store.another(8), store.another(9)
    for queue in (orphan, refused):
        queue.gathered.add(alike(HEAD, [b"12345678"]))
        store.store.append_messages(queue)
    store.store.delete(gone)
    store.store.delete(store.another(10))
    names = {path.name for path in (store.directory / "queues").iterdir()}
    assert names == {f"{epoch:016x}" for epoch in (8, 9)}
    store.restart()
    store.store.home.remove_orphans({7, 9})
    assert [path.name for path in (store.directory / "queues").iterdir()] == [f"{9:016x}"]


def test_a_torn_tail_is_cut_and_said(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.publish(b"a")
    store.publish(b"b")
    (segment,) = store.segments()
    segment.write_bytes(segment.read_bytes()[:-3])
    store.restart()
    assert [body for _, body in store.take(9)] == [b"a"]
    assert "torn_tail_cut vhost=v queue=q7 offset=1" in caplog.text


# -- damage -----------------------------------------------------------------------------------


def flip(path: Path, byte: int) -> bytes:
    octets = bytearray(path.read_bytes())
    octets[byte] ^= 1
    path.write_bytes(octets)
    return bytes(octets)


def test_a_damaged_log_takes_its_queue_down_and_no_other_and_stays_as_it_is(store: Store) -> None:
    for _ in range(9):
        store.publish(b"some body")
    first = store.segments()[0]
    octets = flip(first, 60)
    store.restart()
    assert store.queue.damage is not None
    for part in (str(first.parent), first.name, "byte 0", "offset 0"):
        assert part in store.queue.damage
    store.queue.gathered.add(alike(HEAD, [b"12345678"]))
    with pytest.raises(StorageError, match="queue 'q7' is down"):
        store.store.append_messages(store.queue)
    other = store.another(8)
    store.store.recover(other)
    other.gathered.add(alike(HEAD, [b"12345678"]))
    store.store.append_messages(other)
    assert other.ready_count == 1
    assert first.read_bytes() == octets
    store.store.delete(store.queue)
    assert not first.parent.exists()


def test_a_log_that_cannot_be_opened_takes_only_its_queue_down(store: Store) -> None:
    (store.directory / "queues").mkdir()
    (store.directory / "queues" / f"{7:016x}").write_bytes(b"not a directory")
    store.restart()
    assert store.queue.damage is not None
    assert "cannot be opened" in store.queue.damage


def test_a_settlement_that_is_none_takes_only_its_queue_down(store: Store) -> None:
    store.publish(b"a")
    store.store.log(store.queue).append(ChunkType.TRACKING, 1, 1, encode_entry(b"odd"), 0)
    store.restart()
    assert store.queue.damage is not None
    assert "settlement record of 3 octets" in store.queue.damage


def test_damage_found_while_reading_is_told_with_its_place(store: Store) -> None:
    store.publish(*[b"x" * 100] * 3)
    store.restart()
    (segment,) = store.segments()
    flip(segment, 60)
    with pytest.raises(Corrupt) as caught:
        store.take(3)
    assert (caught.value.segment, caught.value.offset, caught.value.byte) == (segment.name, 0, 0)
    assert store.queue.ready_count == 3


def test_what_is_whole_before_damage_is_read(store: Store) -> None:
    for number in range(3):
        store.publish(b"%d" % number)
    store.restart()
    (segment,) = store.segments()
    flip(segment, segment.stat().st_size - 1)
    assert [body for _, body in store.take(2)] == [b"0", b"1"]
    with pytest.raises(Corrupt, match="offset 2"):
        store.take(1)


def test_entries_that_are_no_messages_are_damage(store: Store) -> None:
    store.store.log(store.queue).append(ChunkType.USER, 1, 1, encode_entry(b"\xff"), 0)
    store.restart()
    with pytest.raises(Corrupt, match="offset 0"):
        store.take(1)


# -- a disk that refuses ----------------------------------------------------------------------


def test_a_full_disk_refuses_messages_and_keeps_settlements_for_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.publish(b"a")
    ((offset, _),) = store.take(1)

    def refuse(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwritev", refuse)
        with pytest.raises(StorageError, match="No space left"):
            store.publish(b"b")
        with pytest.raises(StorageError, match="No space left"):
            store.ack(offset)
    assert not store.queue.gathered
    store.publish(b"c")
    store.ack()
    store.restart()
    assert [body for _, body in store.take(9)] == [b"c"]


# -- chunks -----------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.tuples(st.sampled_from([0, 5, 90, 400]), st.integers(1, 9)), min_size=1, max_size=6),
    entries_max=st.integers(1, 10),
    bytes_max=st.sampled_from([1, 200, 1000]),
)
def test_a_flush_of_any_size_is_split_into_chunks_that_are_not_too_large(
    sizes: list[tuple[int, int]], entries_max: int, bytes_max: int
) -> None:
    with scratch() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "ENTRIES_MAX", entries_max)
        patch.setattr(store_module, "CHUNK_BYTES_MAX", bytes_max)
        store, expected = Store(directory), list[bytes]()
        for size, count in sizes:
            bodies = [(b"%d." % (len(expected) + i)).ljust(size, b"x")[:size] for i in range(count)]
            expected += bodies
            store.queue.gathered.add(alike(head_of(size), bodies))
        store.queue.advance_sequence(b"plan", 5)
        store.store.append_messages(store.queue)
        chunks = store.chunks()
        assert sum(chunk.records for chunk in chunks) == len(expected)
        assert all(chunk.records <= entries_max for chunk in chunks)
        assert all(chunk.data_bytes <= bytes_max or chunk.records == 1 for chunk in chunks)
        store.restart()
        assert [body for _, body in store.take(10**6)] == expected
        assert store.queue.sequences.logged == {b"plan": 5}
        store.store.close()
        store.commit.close()


def test_segments_go_when_all_in_them_is_settled_and_not_before(store: Store) -> None:
    for number in range(30):
        store.publish(b"%060d" % number)
    count = len(store.segments())
    taken = store.take(30)
    store.store.log(store.queue).sync()
    store.ack(*(offset for offset, _ in taken[1:]))
    assert len(store.segments()) >= count
    store.store.log(store.queue).sync()
    store.ack(taken[0][0])
    assert len(store.segments()) == 1
    store.restart()
    assert store.queue.message_count == 0


def test_what_the_outgoing_log_has_not_got_yet_is_kept(store: Store) -> None:
    store.store.keep_from = lambda queue: 4
    for number in range(30):
        store.publish(b"%060d" % number)
    store.store.log(store.queue).sync()
    store.ack(*(offset for offset, _ in store.take(30)))
    assert 0 < store.store.log(store.queue).first_offset <= 4


def test_what_is_kept_for_others_is_not_counted_among_what_the_queue_holds(store: Store) -> None:
    store.store.keep_from = lambda queue: 0
    for _ in range(20):
        store.publish(b"x" * 1000)
    store.ack(*(offset for offset, _ in store.take(20)))
    for _ in range(12):
        store.publish(b"y" * 10)
    store.restart()
    assert store.store.log(store.queue).first_offset == 0
    assert store.queue.message_count == 12
    assert 12 * 10 <= store.queue.message_bytes < 12 * 100, "a start does not read them: it is about so many"


def test_the_log_of_a_deleted_queue_goes_when_nobody_needs_it_and_no_start_takes_it_before(
    store: Store,
) -> None:
    needed = {7}

    def needed_from(epoch: int, log: Log) -> int | None:
        return 0 if epoch in needed else None

    store.store.needed_from = needed_from
    store.publish(b"a")
    store.store.delete(store.queue)
    store.store.release()
    log = store.store.log_of(7)
    assert log is not None
    assert log.next_offset == 1
    store.commit.close()
    store.store = QueueStore(Tree(store.directory, epoch=5), store.commit, lambda: 1234, SEGMENT_BYTES)
    store.store.needed_from = needed_from
    store.store.remove_orphans({8}, {7, 9})
    assert store.store.log_of(7) is not None
    assert store.store.log_of(9) is None
    needed.clear()
    store.store.release()
    assert list((store.directory / "queues").iterdir()) == []
    assert store.store.log_of(7) is None


def test_a_damaged_log_is_an_error_until_its_queue_is_deleted(store: Store) -> None:
    store.publish(b"a")
    store.restart()
    (segment,) = store.segments()
    segment.write_bytes(b"?" * 100)
    store.restart()
    store.store.needed_from = lambda epoch, log: 0
    assert store.queue.damage is not None
    for _ in range(2):
        with pytest.raises(StorageError, match=segment.name):
            store.store.log_of(7)
    store.store.delete(store.queue)
    assert store.store.is_ended(7)
    store.store.needed_from = lambda epoch, log: None
    store.store.release()
    assert list((store.directory / "queues").iterdir()) == []


# -- publisher sequences ----------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([b"plan", b"other", None]), st.booleans(), st.booleans()), max_size=40)
)
def test_sequences_survive_restarts_and_the_drop_of_every_old_segment(
    steps: list[tuple[bytes | None, bool, bool]],
) -> None:
    with scratch() as directory:
        store, expected = Store(directory), dict[bytes, int]()
        for number, (reference, settle, restart) in enumerate(steps, 1):
            if reference is not None:
                store.queue.advance_sequence(reference, number)
                expected[reference] = number
            store.publish(b"x" * 120)
            if settle:
                store.store.log(store.queue).sync()
                store.ack(*(offset for offset, _ in store.take(10**6)))
            if restart:
                store.restart()
            assert store.queue.sequences.logged == expected
        store.restart()
        assert store.queue.sequences.logged == expected
        store.store.close()
        store.commit.close()


def test_a_sequence_is_not_advanced_by_messages_that_the_disk_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise OSError(28, "No space left on device")

    store.queue.advance_sequence(b"plan", 5)
    with monkeypatch.context() as patch:
        patch.setattr("os.pwritev", refuse)
        with pytest.raises(StorageError):
            store.publish(b"a")
    store.publish(b"b")
    assert store.queue.sequences.logged == {}
    store.restart()
    assert store.queue.sequences.logged == {}


# -- recovered messages -----------------------------------------------------------------------


def recovered(number: int, body: bytes | None = None) -> bytes:
    body = b"%08d" % number if body is None else body
    return message_head(b"e", b"k", content_header(b"\x10\x00\x02", 8)) + body


def test_recovered_messages_are_stored_once_however_often_and_after_whatever_they_come() -> None:
    async def scenario(directory: Path) -> None:
        site = await Site.started(directory)
        server = site.node.stream_server
        with site.node.internal_user("recovery") as (user, _):
            done: list[int] = []
            server.recovery_queue(user, "/", "q").append(
                "plan", [MessageRun.of(1, [recovered(n) for n in (1, 2, 3)])], lambda: done.append(1)
            )
            await site.settle()
            assert done == [1]
            await site.restart()
            queue = site.node.stream_server.recovery_queue(user_of(site), "/", "q")
            assert queue.last_sequence("plan") == 3
            queue.append(
                "plan", [MessageRun.of(2, [recovered(n) for n in (2, 3, 4)])], lambda: done.append(2)
            )
            queue.append("other", [MessageRun.of(1, [recovered(9)])], lambda: done.append(3))
            await site.settle()
            assert done == [1, 2, 3]
        held = site.node.broker.queues["/", "q"]
        bodies = [body for run in site.node._queues.read(held, 0) for body in run.bodies]
        assert bodies == [b"%08d" % n for n in (1, 2, 3, 4, 9)]
        await site.kill()

    def user_of(site: Site) -> str:
        site.node.authority.internal["job"] = "secret"
        return "job"

    with scratch() as directory:
        asyncio.run(scenario(directory))


@pytest.mark.parametrize(
    "bad",
    [
        MessageRun.of(2, [b""]),
        MessageRun.of(2, [b"\xff"]),
        MessageRun.of(2, [recovered(1, b"too short by far"[:3])]),
        MessageRun.of(2, [recovered(1, b"longer than 8")]),
        MessageRun.of(2, [recovered(2), recovered(3)])._replace(records=3),
        MessageRun.of(2, [recovered(2), recovered(3)])._replace(records=1),
    ],
)
async def test_a_recovered_message_that_is_none_is_refused_with_all_that_came_with_it(
    directory: Path, bad: MessageRun
) -> None:
    site = await Site.started(directory)
    site.node.authority.internal["job"] = "secret"
    queue = site.node.stream_server.recovery_queue("job", "/", "q")
    assert isinstance(queue, RecoveryIngest)
    with pytest.raises(ChunkError):
        queue.append("plan", [MessageRun.of(1, [recovered(1)]), bad], lambda: None)
    await site.settle()
    assert site.node.broker.queues["/", "q"].message_count == 0
    assert queue.last_sequence("plan") == 0


@pytest.mark.parametrize(
    ("durable", "owner", "text"), [(False, None, "not durable"), (True, object(), "exclusive")]
)
async def test_a_queue_that_would_not_keep_recovered_messages_gets_none(
    directory: Path, durable: bool, owner: object, text: str
) -> None:
    site = await Site.started(directory)
    site.node.authority.internal["job"] = "secret"
    broker, server = site.node.broker, site.node.stream_server
    early = server.recovery_queue("job", "/", "q")
    broker.declare_queue(QueueDefinition(name="q", vhost="/", durable=durable), owner)
    refusal = f"queue 'q' in vhost '/' is {text}: .*delete it"
    with pytest.raises(PreconditionFailed, match=refusal):
        server.recovery_queue("job", "/", "q")
    with pytest.raises(PreconditionFailed, match=refusal):
        early.append("plan", [MessageRun.of(1, [recovered(1)])], lambda: None)
    assert site.node.broker.queues["/", "q"].message_count == 0
    broker.delete_queue(broker.queues["/", "q"])
    early.append("plan", [MessageRun.of(1, [recovered(1)])], lambda: None)
    await site.settle()
    await site.restart()
    assert site.node.broker.queues["/", "q"].message_count == 1


async def test_other_peoples_messages_never_share_a_chunk_with_recovered_ones(directory: Path) -> None:
    site = await Site.started(directory)
    site.node.authority.internal["job"] = "secret"
    held = site.node.broker.declare_queue(QueueDefinition(name="q", vhost="/"))
    queue = site.node.stream_server.recovery_queue("job", "/", "q")
    held.gathered.add(alike(HEAD, [b"ordinary"]))
    queue.append("plan", [MessageRun.of(1, [recovered(1)])], lambda: None)
    log: Log = site.node._queues.log(held)
    found = [
        (chunk.header.records, Attribute.SEQUENCE in {kind for kind, *_ in decode_trailer(chunk.trailer)})
        for chunk in log.read(0, 1 << 20)
    ]
    assert found == [(1, False), (1, True)]


async def test_a_queue_whose_definition_is_refused_at_start_keeps_its_log(directory: Path) -> None:
    site = await Site.started(directory)
    broker = site.node.broker
    for entity in (QueueDefinition(name="q", vhost="/"), QueueDefinition(name="later", vhost="/")):
        held = broker.declare_queue(entity)
        held.gathered.add(alike(HEAD, [b"12345678"]))
        broker.dirty[held] = None
    await site.settle()
    with pytest.MonkeyPatch.context() as patch:
        refuse_later(patch)
        await site.restart()
        assert list(site.node.broker.queues) == [("/", "q")]
    await site.restart()
    assert {key[1]: queue.ready_count for key, queue in site.node.broker.queues.items()} == {
        "q": 1,
        "later": 1,
    }


def refuse_later(patch: pytest.MonkeyPatch) -> None:
    """As a version would that is stricter about arguments."""
    from leveret.core.broker import broker as broker_module

    def check(queue: QueueDefinition, *, exclusive: bool) -> None:
        if queue.name == "later":
            raise PreconditionFailed("not any more")

    patch.setattr(broker_module, "check_queue", check)


def test_a_segment_that_is_begun_for_a_mirror_holds_a_chunk_and_tells_of_epochs_before(
    tmp_path: Path,
) -> None:
    """Also once all before it is dropped, and after a start: what another epoch had is known by it."""
    store = Store(tmp_path)
    store.publish(b"a", b"b")
    log = store.store.log(store.queue)
    log.epoch = 6
    store.publish(b"c")
    log.epoch = 8
    offset = store.store.begin_segment(store.queue)
    assert (offset, log.newest_segment, log.next_offset) == (3, 3, 4)
    assert store.queue.message_count == 3, "it is no message"
    log.sync()
    store.queue.drop_ready(Reason.PURGED)
    store.store.append_settlements(store.queue)
    assert log.first_offset == 3
    store.restart()
    assert (store.queue.message_count, store.queue.next_offset) == (0, 5)
    assert store.queue.chunk_epochs.ends == {5: 2, 6: 3, 8: 5}


def test_that_a_log_could_not_be_read_is_remembered_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a queue that was deleted it was remembered for good (2026-12-01)."""
    site = Store(tmp_path)
    site.store.home.has_log = lambda epoch: True
    for epoch in range(8, 12):
        monkeypatch.setattr(store_module, "elapsed_ms", lambda epoch=epoch: epoch * store_module.TRY_AGAIN_MS)
        for _ in range(2):
            with pytest.raises(StorageError, match="missing"):
                site.store.log_of(epoch)
    assert list(site.store._unreadable) == [11]
    site.store.close()
