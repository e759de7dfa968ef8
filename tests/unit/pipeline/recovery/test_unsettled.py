"""The recovery without Spark: what survives, in which order, published how often."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.errors import PreconditionFailed, StorageError
from leveret.pipeline.archive.decode import RECORDS
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.recovery_plan import (
    PlanDirectory,
    PlanOutcome,
    QueueOutcome,
    covered_number,
    delete_unfrozen,
    finished,
    read_order,
    unfinished,
)
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.archive.tables import messages_in
from leveret.pipeline.files.files import Place, opened
from leveret.pipeline.jobs.job import EVERYTHING, Selection
from leveret.pipeline.recovery import publish
from leveret.pipeline.recovery.counting import with_unsettled
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.recovery.unsettled import not_to_recover
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.incarnation import INCARNATION_BITS, next_count
from leveret.wire.record import decode_message
from leveret.wire.stream.publish import MessageRun

VHOST = "/"
QUEUES = ("a", "b")


class Lost(Exception):
    """The broker went away."""


class FakeBroker:
    """Queues that drop ids they have, as the node does; may go away after some messages.

    A message is stored when its confirm is waited for: nothing else may count as recovered. A broker that goes away
    had stored the present queue's messages under way, or loses them.
    """

    def __init__(self) -> None:
        self.queues: dict[str, list[bytes]] = {}
        self.last: dict[tuple[str, str], int] = {}
        self.goes_away_after: int | None = None
        self.loses_under_way = False
        self.connections = 0

    def connect(self) -> FakeBroker:
        self.connections += 1
        return self

    def declare_publisher(self, reference: str, stream: str) -> FakePublisher:
        return FakePublisher(self, reference, stream.removeprefix("leveret.recovery/"))

    def close(self) -> None:
        self.connections -= 1


class FakePublisher:
    def __init__(self, broker: FakeBroker, reference: str, queue: str) -> None:
        self.broker = broker
        self.key = (queue, reference)
        self.last_sequence = broker.last.get(self.key, 0)
        self._under_way: deque[tuple[int, bytes]] = deque()

    def publish(self, run: MessageRun) -> None:
        for publishing_id, body in run.messages():
            if self.broker.goes_away_after == 0:
                if not self.broker.loses_under_way:
                    self._store(publishing_id)
                raise Lost
            if self.broker.goes_away_after is not None:
                self.broker.goes_away_after -= 1
            self._under_way.append((publishing_id, body))

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        self._store(up_to)
        assert self.broker.last.get(self.key, 0) >= up_to

    def _store(self, up_to: int) -> None:
        while self._under_way and self._under_way[0][0] <= up_to:
            publishing_id, body = self._under_way.popleft()
            last = self.broker.last.get(self.key, 0)
            if publishing_id > last:
                assert publishing_id == last + 1, "an id was left out"
                self.broker.last[self.key] = publishing_id
                self.broker.queues.setdefault(self.key[0], []).append(body)


class Standby:
    """A data directory, filled from an upstream in files of some chunks each, and promoted."""

    def __init__(self, data_dir: Place, chunks_per_file: int = 4) -> None:
        self.data_dir = data_dir
        self.manifest = Manifest(data_dir)
        self.broker = FakeBroker()
        self._chunks_per_file = chunks_per_file

    def transfer(self, upstream: StandbyUpstream) -> None:
        self.manifest = transfer(upstream, self.data_dir, chunks_per_file=self._chunks_per_file)

    def plan(self, selection: Selection = EVERYTHING) -> PlanDirectory | None:
        return freeze_plan(self.manifest, VHOST, selection)

    def publish(self, directory: PlanDirectory) -> PlanOutcome:
        plan = directory.load()
        publisher = PlanPublisher(directory, self.broker.connect, lambda count: None)
        queues = publisher.publish(sorted(plan.queues)) if plan.queues else []
        assert {queue.queue: queue.messages for queue in queues} == plan.queues, "as it was counted before"
        outcome = PlanOutcome(
            plan_id=plan.plan_id,
            vhost=VHOST,
            number=plan.number,
            selection=plan.selection,
            finished_ms=1,
            queues=queues,
            unreadable_records=sum(plan.unreadable.values()),
        )
        directory.finish(outcome)
        return outcome

    def promote(self, **wanted: Any) -> int:
        """Recover; returns how many messages."""
        directory = self.plan(Selection(**wanted))
        return 0 if directory is None else sum(queue.messages for queue in self.publish(directory).queues)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(QUEUES), st.integers(1, 6)),
        st.tuples(
            st.just("settle"),
            st.sampled_from(QUEUES),
            st.lists(st.tuples(st.integers(0, 25), st.integers(1, 4)), min_size=1, max_size=3),
        ),
        st.tuples(st.just("again"), st.sampled_from(QUEUES), st.integers(1, 3)),
        st.tuples(st.just("new life"), st.sampled_from(QUEUES), st.none()),
    ),
    max_size=25,
)


def play(upstream: StandbyUpstream, played: list[Any], base: int = 0) -> None:
    for number, (step, queue, argument) in enumerate(played, base):
        if step == "publish":
            bodies = [stored_message(b"%d.%d" % (number, i), b"ex", queue.encode()) for i in range(argument)]
            upstream.publish(VHOST, queue, bodies)
        elif step == "settle":
            upstream.settle(VHOST, queue, argument)
        elif step == "again":
            upstream.copy_again(VHOST, queue, argument)
        else:
            upstream.begin_incarnation(VHOST, queue)


def expected(upstream: StandbyUpstream) -> dict[str, list[bytes]]:
    found = {queue: upstream.unsettled(VHOST, queue) for queue in QUEUES}
    return {queue: messages for queue, messages in found.items() if messages}


@given(played=steps, chunks_per_file=st.integers(1, 6))
def test_what_survives_is_what_a_simple_model_says(
    played: list[Any], chunks_per_file: int, new_path: Callable[[], Path]
) -> None:
    upstream = StandbyUpstream()
    play(upstream, played)
    standby = Standby(new_path(), chunks_per_file)
    standby.transfer(upstream)
    count = standby.promote()
    assert standby.broker.queues == expected(upstream)
    assert count == sum(map(len, expected(upstream).values()))
    assert standby.promote() == 0, "a second promotion recovers nothing again"
    assert standby.broker.queues == expected(upstream)
    assert standby.broker.connections == 0


@given(before=steps, after=steps)
@settings(max_examples=50)
def test_a_later_promotion_recovers_only_what_is_newer(
    before: list[Any], after: list[Any], new_path: Callable[[], Path]
) -> None:
    upstream = StandbyUpstream()
    play(upstream, before)
    standby = Standby(new_path())
    standby.transfer(upstream)
    standby.promote()
    recovered = {queue: set(messages) for queue, messages in standby.broker.queues.items()}
    first_part = {queue: list(messages) for queue, messages in standby.broker.queues.items()}
    incarnations = {
        key: [set(incarnation.messages) for incarnation in logs]
        for key, logs in upstream.incarnations.items()
    }
    play(upstream, after, base=1000)
    standby.transfer(upstream)
    standby.promote()
    for queue in QUEUES:
        newer = [
            message
            for index, incarnation in enumerate(upstream.incarnations.get((VHOST, queue), []))
            for offset, message in incarnation.messages.items()
            if offset not in incarnation.settled
            and not (
                index < len(incarnations.get((VHOST, queue), []))
                and offset in incarnations[VHOST, queue][index]
            )
        ]
        assert standby.broker.queues.get(queue, []) == first_part.get(queue, []) + newer
        assert not recovered.get(queue, set()) & set(newer)


@given(before=steps, after=steps, chunks_per_file=st.integers(1, 6))
@settings(max_examples=60)
def test_as_of_any_moment_a_queue_is_as_it_stood_and_the_rest_comes_with_a_later_promotion(
    before: list[Any], after: list[Any], chunks_per_file: int, new_path: Callable[[], Path]
) -> None:
    upstream = StandbyUpstream()
    play(upstream, before)
    as_of_ms, then = upstream.now_ms - 1, expected(upstream)
    play(upstream, after, base=1000)
    standby = Standby(new_path(), chunks_per_file)
    standby.transfer(upstream)
    standby.promote(as_of_ms=as_of_ms)
    assert standby.broker.queues == then
    assert standby.promote(as_of_ms=as_of_ms) == 0, "nothing twice"
    standby.promote()
    for queue in QUEUES:
        had, left = then.get(queue, []), expected(upstream).get(queue, [])
        assert standby.broker.queues.get(queue, []) == had + [each for each in left if each not in had]


def test_a_moment_before_a_transfer_that_found_only_a_part_began_is_refused(data_dir: Place) -> None:
    upstream = StandbyUpstream()
    upstream.publish(VHOST, "a", [stored_message(b"%d" % number) for number in range(10)])
    upstream.settle(VHOST, "a", [(0, 8)])
    upstream.publish(VHOST, "a", [stored_message(b"later")])
    whole, part = Standby(data_dir / "whole"), Standby(data_dir / "part")
    whole.transfer(upstream)
    chunks = upstream.logs[VHOST].read(0, 1 << 40)
    file = store_range(data_dir / "part", VHOST, chunks[1:])
    assert file is not None
    part.manifest.append([file])
    begun_ms = upstream.now_ms + 5
    UpstreamIdentities(data_dir / "whole").note_begin(VHOST, begun_ms, is_whole=True)
    UpstreamIdentities(data_dir / "part").note_begin(VHOST, begun_ms, is_whole=False)
    for moment_ms in (0, upstream.now_ms - 3, upstream.now_ms, begun_ms - 1):
        whole.plan(Selection(as_of_ms=moment_ms))
        with pytest.raises(
            PreconditionFailed, match=r"begins at 20.* when the transfer began; name a later moment"
        ):
            part.plan(Selection(as_of_ms=moment_ms))
    assert part.promote(as_of_ms=begun_ms) == 1
    part.manifest.forget([VHOST])
    UpstreamIdentities(data_dir / "part").forget([VHOST])
    again = store_range(data_dir / "part", VHOST, chunks)
    assert again is not None
    part.manifest.append([again])
    part.plan(Selection(as_of_ms=0))


def test_as_of_a_moment_after_a_promotion_what_was_settled_by_then_comes_back_and_nothing_twice(
    tmp_path: Path,
) -> None:
    upstream = StandbyUpstream()
    upstream.publish(VHOST, "a", [stored_message(b"%d" % i) for i in range(10)])
    before_the_ruin_ms = upstream.now_ms - 1
    upstream.settle(VHOST, "a", [(0, 7)])
    standby = Standby(tmp_path)
    standby.transfer(upstream)
    assert standby.promote() == 3
    assert standby.promote(as_of_ms=before_the_ruin_ms) == 7
    assert sorted(standby.broker.queues["a"]) == sorted(stored_message(b"%d" % i) for i in range(10))
    assert standby.promote(as_of_ms=before_the_ruin_ms) == 0
    assert standby.promote() == 0


def test_only_the_queues_that_are_asked_for_come_back_and_the_others_with_a_later_promotion(
    tmp_path: Path,
) -> None:
    upstream = StandbyUpstream()
    for queue in QUEUES:
        upstream.publish(VHOST, queue, [stored_message(queue.encode())] * 3)
    standby = Standby(tmp_path)
    standby.transfer(upstream)
    assert standby.promote(queues=["b"]) == 3
    assert set(standby.broker.queues) == {"b"}
    assert standby.promote(queues=["b"]) == 0
    assert standby.promote() == 3
    assert set(standby.broker.queues) == {"a", "b"}


@given(played=steps, cuts=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=4))
@settings(max_examples=60)
def test_killed_at_any_message_and_run_again_nothing_is_lost_or_doubled(
    played: list[Any], cuts: list[tuple[int, bool]], new_path: Callable[[], Path]
) -> None:
    upstream = StandbyUpstream()
    play(upstream, played)
    standby = Standby(new_path())
    standby.transfer(upstream)
    directory = standby.plan()
    for cut in cuts:
        standby.broker.goes_away_after, standby.broker.loses_under_way = cut
        if directory is not None and not directory.is_done:
            try:
                standby.publish(directory)
            except Lost:
                assert [each.path for each in unfinished(standby.data_dir)] == [directory.path]
    standby.broker.goes_away_after = None
    if directory is not None and not directory.is_done:
        standby.publish(directory)
    assert standby.broker.queues == expected(upstream)
    assert unfinished(standby.data_dir) == []


def test_from_scratch_recovers_settled_and_recovered_messages_too(data_dir: Place) -> None:
    upstream = StandbyUpstream()
    upstream.publish(VHOST, "a", [stored_message(b"%d" % i) for i in range(5)])
    upstream.settle(VHOST, "a", [(0, 4)])
    standby = Standby(data_dir)
    standby.transfer(upstream)
    assert standby.promote() == 1
    assert standby.promote(start_from_scratch=True) == 5
    assert standby.promote() == 0


def test_a_file_all_of_whose_messages_are_settled_is_not_opened(data_dir: Place) -> None:
    upstream = StandbyUpstream()
    upstream.publish(VHOST, "a", [stored_message(b"x")] * 10)
    upstream.settle(VHOST, "a", [(0, 10)])
    standby = Standby(data_dir, chunks_per_file=1)
    standby.transfer(upstream)
    masks = not_to_recover(standby.manifest, VHOST)
    assert with_unsettled(standby.manifest.files(), masks) == []


def test_a_vhost_is_recovered_once_however_long_its_name_is(data_dir: Place) -> None:
    vhost = "ж" * 42
    upstream = StandbyUpstream([vhost])
    upstream.publish(vhost, "a", [stored_message(b"x")])
    manifest = transfer(upstream, data_dir)
    directory = freeze_plan(manifest, vhost)
    assert directory is not None
    [pending] = unfinished(data_dir)
    assert (pending.path, pending.load().vhost) == (directory.path, vhost)
    outcome = PlanOutcome(
        plan_id=directory.path.name,
        vhost=vhost,
        number=manifest.number,
        finished_ms=1,
        queues=[QueueOutcome(queue="a", messages=1, first_ms=1, last_ms=1)],
    )
    directory.finish(outcome)
    assert unfinished(data_dir) == []
    assert [each.path for each in finished(manifest, vhost)] == [directory.path]
    assert freeze_plan(manifest, vhost) is None


def test_unknown_settlements_stop_a_promotion_unless_all_available_is_asked_for(data_dir: Place) -> None:
    upstream = StandbyUpstream()
    upstream.publish(VHOST, "a", [stored_message(b"x")])
    upstream.settle(VHOST, "a", [(0, 1)])
    standby = Standby(data_dir)
    standby.transfer(upstream)
    (file,) = standby.manifest.files()
    (data_dir / file.settlements).write_bytes(b"torn")
    with pytest.raises(StorageError, match="--all-available"):
        not_to_recover(standby.manifest, VHOST)
    assert not_to_recover(standby.manifest, VHOST, Selection(all_available=True)) == {}


def test_a_disk_that_is_full_when_a_plan_is_made_costs_nothing_but_that_attempt(tmp_path: Path) -> None:
    upstream = StandbyUpstream()
    for turn in range(60):
        upstream.publish(VHOST, "a", [stored_message(b"%d.%d" % (turn, i)) for i in range(9)])
        upstream.settle(VHOST, "a", [(turn * 10 + 3, 2)])
    standby = Standby(tmp_path)
    standby.transfer(upstream)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot be written"):
            standby.plan()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert unfinished(tmp_path) == []
    delete_unfrozen(tmp_path)
    directory = standby.plan()
    assert directory is not None
    plan = directory.load()
    outcome = PlanPublisher(directory, standby.broker.connect, lambda count: None).publish(["a"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot be written"):
            directory.finish(
                PlanOutcome(plan_id=plan.plan_id, vhost=VHOST, number=1, finished_ms=1, queues=outcome)
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [each.path for each in unfinished(tmp_path)] == [directory.path]
    standby.publish(directory)
    assert standby.broker.queues["a"] == upstream.unsettled(VHOST, "a")
    assert standby.promote() == 0


def test_a_damaged_file_is_named(data_dir: Place) -> None:
    upstream = StandbyUpstream()
    upstream.publish(VHOST, "a", [stored_message(b"x")])
    standby = Standby(data_dir)
    standby.transfer(upstream)
    (file,) = standby.manifest.files()
    (data_dir / file.path).write_bytes(b"torn")
    with pytest.raises(StorageError, match=r"parquet.*restore"):
        standby.plan()


@pytest.mark.parametrize("harm", ["one bit", "all of it"])
def test_all_that_can_be_read_is_recovered_if_that_is_asked_for_and_the_rest_when_the_file_is_restored(
    data_dir: Place, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """By row groups: with a bit of one its other messages are lost as well, and with all of a file all of them."""
    monkeypatch.setattr("leveret.pipeline.archive.store.ROW_GROUP_ROWS", 4)
    upstream = StandbyUpstream()
    bodies = [b"%02d" % number + bytes(range(250)) for number in range(24)]
    for first in range(0, 24, 12):
        upstream.publish(VHOST, "a", [stored_message(body) for body in bodies[first : first + 12]])
    standby = Standby(data_dir, chunks_per_file=1)
    standby.transfer(upstream)
    path = data_dir / standby.manifest.files()[0].path
    whole = path.read_bytes()
    harmed = bytearray(whole) if harm == "one bit" else bytearray(b"torn")
    if harm == "one bit":
        with opened(path) as source, messages_in(source, dictionaries=()) as file:
            pages = file.metadata.row_group(1).column(RECORDS.get_field_index("body"))
            harmed[pages.data_page_offset + pages.total_compressed_size // 2] ^= 1
    path.write_bytes(bytes(harmed))
    lost = range(4, 8) if harm == "one bit" else range(12)
    directory = standby.plan(Selection(all_available=True))
    assert directory is not None
    outcome = standby.publish(directory)
    assert (outcome.unreadable_records, outcome.saw_all) == (len(lost), False)
    readable = [number for number in range(24) if number not in lost]
    assert numbers(standby) == readable
    path.write_bytes(whole)
    assert standby.promote() == len(lost)
    assert numbers(standby) == [*readable, *lost]
    assert standby.promote() == 0


def numbers(standby: Standby) -> list[int]:
    """Which of the messages of the test before are in queue `a`."""
    return [int(decode_message(stored).body[:2]) for stored in standby.broker.queues["a"]]


def test_a_plan_that_was_never_frozen_counts_for_nothing(data_dir: Place) -> None:
    directory = PlanDirectory.new(data_dir, VHOST)
    assert unfinished(data_dir) == []
    delete_unfrozen(data_dir)
    assert not directory.path.exists()
    assert covered_number(Manifest(data_dir), VHOST) == 0


def test_order_is_epoch_then_offset_wherever_the_rows_lie(data_dir: Place) -> None:
    upstream = StandbyUpstream()
    upstream.begin_incarnation(VHOST, "a")
    old = upstream.incarnations[VHOST, "a"][0]
    upstream.publish(VHOST, "a", [stored_message(b"old%d" % i) for i in range(3)])
    upstream.incarnations[VHOST, "a"].append(type(old)(epoch=old.epoch + 1))
    upstream.publish(VHOST, "a", [stored_message(b"new%d" % i) for i in range(3)])
    # The log may have them the other way round: a copy made late.
    offset, bodies, kind, at_ms = old.copies[0]
    upstream.logs[VHOST] = type(upstream.logs[VHOST])()
    incarnation = upstream.incarnations[VHOST, "a"][1]
    upstream.logs[VHOST].append_copy("a", incarnation.epoch, 0, incarnation.copies[0][1], kind, at_ms)
    upstream.logs[VHOST].append_copy("a", old.epoch, offset, bodies, kind, at_ms)
    standby = Standby(data_dir, chunks_per_file=1)
    standby.transfer(upstream)
    directory = standby.plan()
    assert directory is not None
    order = read_order(directory.runs, directory.load().parts)
    assert [piece.tolist() for piece in order.sweeps(0)] == [[1, 2, 3], [4, 5, 6]]
    assert [piece.tolist() for piece in order.sweeps(2)] == [[3], [4, 5, 6]]
    assert order.sweeps(6) == []
    standby.publish(directory)
    assert standby.broker.queues["a"] == upstream.unsettled(VHOST, "a")
    assert len(standby.broker.queues["a"]) == 6


@pytest.mark.parametrize("renumbers", [False, True])
def test_only_of_another_numbering_is_a_recovered_offset_another_message(
    data_dir: Place, renumbers: bool
) -> None:
    upstream, standby = StandbyUpstream(), Standby(data_dir)
    upstream.publish(VHOST, "a", [stored_message(b"%d" % i) for i in range(3)])
    standby.transfer(upstream)
    assert standby.promote() == 3
    former = upstream.incarnations[VHOST, "a"][0]
    upstream.settle(VHOST, "a", [(0, 3)], reason=2)
    count = next_count(0, renumbers=renumbers)
    upstream.incarnations[VHOST, "a"].append(type(former)(epoch=former.epoch + (count << INCARNATION_BITS)))
    upstream.publish(VHOST, "a", [stored_message(b"again %d" % i) for i in range(4)])
    standby.transfer(upstream)
    assert standby.promote() == (4 if renumbers else 1)
    assert standby.promote() == 0


def test_files_that_no_task_reads_any_more_make_place_for_what_the_broker_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = StandbyUpstream()
    for turn in range(12):
        upstream.publish(VHOST, QUEUES[turn % 2], [stored_message(b"%d" % turn)])
    directory = freeze_plan(transfer(upstream, tmp_path, chunks_per_file=2), VHOST)
    assert directory is not None
    files = [tmp_path / name for name in directory.load().files]
    let_go: list[Place] = []
    monkeypatch.setattr(publish, "uncache", let_go.append)
    PlanPublisher(directory, FakeBroker().connect, lambda count: None).publish(["a"])
    assert let_go == files[: -publish.FILES_KEPT], "whoever publishes the other queue reads them too"
    let_go.clear()
    PlanPublisher(directory, FakeBroker().connect, lambda count: None).publish(["a", "b"])
    assert let_go == files
