"""The parts that need no Spark; the rest is in tests/pipeline/test_transfer.py."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.job import LoginCredentials, TransferJob
from leveret.pipeline.jobs.progress import Inbox, report
from leveret.pipeline.transfer import source
from leveret.pipeline.transfer.sink import StoreWriter
from leveret.pipeline.transfer.source import (
    DRAIN,
    LARGE_BATCH_BYTES,
    LARGE_BATCH_SHARE,
    RECORD_BYTES,
    VHOSTS,
    Slices,
    TransferOptions,
    UpstreamReader,
    source_address,
)
from leveret.pipeline.upstream.stream_client import StreamClient
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.record import OUTGOING_STREAM

LIMIT: Any = None

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize(
    ("new_bytes", "since_s", "waits"),
    [
        ({"a": 10_000}, 0.1, False),
        ({"a": 50_000}, 0.5, True),
        ({"a": 10_000, "b": 10_000}, 0.1, True),
        ({"a": 20_000}, 0.9, False),
        ({"a": 80_000}, 1.1, False),
        ({"a": 110_000}, 0.5, False),
        ({"a": 60_000, "b": 60_000}, 0.5, False),
        ({}, 0.5, False),
    ],
)
def test_a_batch_is_made_larger_while_much_comes_but_not_so_much_that_it_is_large_already(
    tmp_path: Path, new_bytes: dict[str, int], since_s: float, waits: bool
) -> None:
    job = TransferJob(
        data_dir=str(tmp_path),
        reference="eu.2",
        endpoints=["127.0.0.1:1"],
        credentials=LoginCredentials(username="", password=""),
        vhosts=["a", "b"],
        batch_bytes_max=120_000_000,
    )
    reader = UpstreamReader(TransferOptions(job=job, inbox="", cores=2))
    start = dict.fromkeys(job.vhosts, 7)
    # As long as the upstream has not said otherwise, a record has 1000 octets.
    ends = start | {vhost: 7 + count for vhost, count in new_bytes.items()}
    assert reader._is_flood(start, ends, since_s) is waits


def options_of(
    data_dir: Path, port: int, inbox: str = "", vhosts: str = "/", cores: int = 2
) -> TransferOptions:
    job = TransferJob(
        data_dir=str(data_dir),
        reference="eu.2",
        endpoints=[f"127.0.0.1:{port}"],
        credentials=LoginCredentials(username="standby", password="secret"),
        vhosts=list(vhosts),
        batch_interval_ms=0,
    )
    return TransferOptions(job=job, inbox=inbox, cores=cores)


def test_who_has_little_waits_behind_nobodys_backlog(tmp_path: Path) -> None:
    reader = UpstreamReader(options_of(tmp_path, 1, vhosts="abc"))
    start = dict.fromkeys("abc", 0)
    # Records of 1000 octets, and a slice has eight million of them at least.
    tasks = reader.partitions(start, {"a": 32_000, "b": 10, "c": 16_000})
    assert [
        isinstance(task, Slices) and [(each.log, each.first) for each in task.slices] for task in tasks
    ] == [
        [("b", 0), ("c", 8_000), ("a", 16_000)],
        [("c", 0), ("a", 0)],
    ]


def upstream_of(chunks: int) -> StandbyUpstream:
    upstream = StandbyUpstream()
    for _ in range(chunks):
        upstream.publish("/", "q", [stored_message(b"m")] * 10)
    return upstream


def test_what_is_here_of_a_chunk_within_which_a_batch_ended_may_be_gone_at_the_upstream(
    tmp_path: Path,
) -> None:
    upstream = upstream_of(2)
    with upstream.serving() as port, Inbox() as inbox:
        options = options_of(tmp_path, port, inbox.address)
        reader, writer = UpstreamReader(options), StoreWriter(options)
        start = reader.latestOffset({}, LIMIT)
        within = start | {"/": 15}
        for end in (within, {"/": 30}):
            [task] = reader.partitions(start, end)
            writer.commit([writer.write(reader.read(task))], 0)
            if end is within:
                assert Manifest(tmp_path).next_by_log == {"/": 20}
                upstream.publish("/", "q", [stored_message(b"m")] * 10)
                upstream.logs["/"].retain_from(20)
                assert reader.latestOffset(within, LIMIT) == {"/": 30}
            start = end
        assert Manifest(tmp_path).next_by_log == {"/": 30}
        assert {each["state"] for each in inbox.wait(0.1) if each["event"] == "link"} == {
            "connecting",
            "connected",
        }


def test_the_upstream_is_told_of_what_is_stored_and_of_no_more(tmp_path: Path) -> None:
    upstream = upstream_of(1)
    stored = upstream.host.offsets
    with upstream.serving() as port:
        options = options_of(tmp_path, port)
        reader, writer = UpstreamReader(options), StoreWriter(options)
        start = reader.latestOffset({}, LIMIT)
        # It is not answered.
        wait_until(lambda: bool(stored), "the begin, told", 60)
        assert stored == {("/", "eu.2"): 0}
        [task] = reader.partitions(start, {"/": 10})
        writer.commit([writer.write(reader.read(task))], 0)
        upstream.publish("/", "q", [stored_message(b"m")] * 10)
        reader.latestOffset({"/": 10}, LIMIT)
        wait_until(lambda: any(stored.values()), "what is stored, told", 60)
        assert stored == {("/", "eu.2"): 10}


def test_the_upstream_is_told_as_soon_as_a_batch_is_recorded(tmp_path: Path) -> None:
    upstream = upstream_of(1)
    stored = upstream.host.offsets
    with upstream.serving() as port, Inbox() as inbox:
        options = options_of(tmp_path, port, inbox.address)
        reader, writer = UpstreamReader(options), StoreWriter(options)
        start = reader.latestOffset(reader.initialOffset(), LIMIT)
        wait_until(Path(source_address(inbox.address)).exists, "the source listens", 60)
        [task] = reader.partitions(start, {"/": 10})
        writer.commit([writer.write(reader.read(task))], 0)
        wait_until(lambda: stored.get(("/", "eu.2")) == 10, "the batch, told without another look", 60)


def test_an_upstream_that_answers_instead_of_another_one_is_told_nothing_of_that_ones_log(
    tmp_path: Path,
) -> None:
    """The other node of the cluster dropped what its downstream lacked, as if that had it (returns 20360651)."""
    upstream, other = upstream_of(1), upstream_of(3)
    with other.serving() as other_port:
        with upstream.serving() as port:
            options = options_of(tmp_path, port)
            options.job.endpoints.append(f"127.0.0.1:{other_port}")
            reader, writer = UpstreamReader(options), StoreWriter(options)
            start = reader.latestOffset({}, LIMIT)
            [task] = reader.partitions(start, {"/": 10})
            writer.commit([writer.write(reader.read(task))], 0)
            reader._acknowledge()
            wait_until(lambda: upstream.host.offsets.get(("/", "eu.2")) == 10, "what is stored, told", 60)
        [(_, link)] = reader._upstream.links()
        assert link.connected is not None
        link.connected.connection.close()
        reader._acknowledge()
        client = link.client(reader._job)
        assert client.connection.peer == f"127.0.0.1:{other_port}"
        reader._acknowledge()
        # Its answer comes after everything that it was told.
        assert client.stats(OUTGOING_STREAM)["committed_offset"] == 30
        assert other.host.offsets == {}


def test_what_came_while_a_batch_was_planned_comes_with_it(tmp_path: Path) -> None:
    upstream = upstream_of(1)
    with upstream.serving() as port:
        options = options_of(tmp_path, port)
        reader, writer = UpstreamReader(options), StoreWriter(options)
        begin = reader.latestOffset({}, LIMIT)
        end = reader.latestOffset(begin, LIMIT)
        [task] = reader.partitions(begin, end)
        upstream.publish("/", "q", [stored_message(b"m")] * 10)
        writer.commit([writer.write(reader.read(task))], 0)
        assert Manifest(tmp_path).next_by_log == {"/": 20}
        assert reader.latestOffset(end, LIMIT) == end, "nothing is new, so there is no batch of nothing"
        upstream.publish("/", "q", [stored_message(b"m")] * 10)
        last = reader.latestOffset(end, LIMIT)
        [task] = reader.partitions(end, last)
        writer.commit([writer.write(reader.read(task))], 0)
        assert Manifest(tmp_path).next_by_log == {"/": 30}


def told_of_drain(reader: UpstreamReader, inbox: Inbox) -> None:
    wait_until(Path(source_address(inbox.address)).exists, "the source listens", 60)
    report(source_address(inbox.address), DRAIN)
    wait_until(lambda: reader._drains is not None and reader._drains.is_set(), "the source is told", 60)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_drain_is_told_at_once_what_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """A promotion waited a third of a second for that, while clients waited for the promotion."""
    monkeypatch.setattr(source, "REPORT_INTERVAL_S", 3600.0)
    upstream = upstream_of(1)
    with upstream.serving() as port, Inbox() as inbox:
        reader = UpstreamReader(options_of(tmp_path, 1 if is_lost else port, inbox.address))
        start = reader.latestOffset(reader.initialOffset(), LIMIT)
        reader._next_ends(start)
        inbox.wait(0)
        reader._next_ends(start)
        assert inbox.wait(0) == [], "nothing has changed"
        told_of_drain(reader, inbox)
        reader._next_ends(start)
        [event] = inbox.wait(0)
        assert (event["event"], event["log"], "error" in event) == ("link", "/", is_lost)


def test_a_drain_ends_the_wait_for_an_interval(tmp_path: Path) -> None:
    upstream = upstream_of(1)
    with upstream.serving() as port, Inbox() as inbox:
        options = options_of(tmp_path, port, inbox.address)
        patient = msgspec.structs.replace(options.job, batch_interval_ms=3_600_000)
        reader = UpstreamReader(msgspec.structs.replace(options, job=patient))
        begin = reader.latestOffset(reader.initialOffset(), LIMIT)
        told_of_drain(reader, inbox)
        assert reader.latestOffset(begin, LIMIT) == {"/": 10}


def test_a_log_that_is_far_behind_brings_no_more_than_its_share(tmp_path: Path) -> None:
    reader = UpstreamReader(options_of(tmp_path, 1, vhosts="ab"))
    share = reader._job.batch_bytes_max // 2 // RECORD_BYTES
    begin = dict.fromkeys("ab", 0)
    end = reader._limited(begin, {"a": 10 * share, "b": 10})
    tasks = [task for task in reader.partitions(begin, end) if isinstance(task, Slices)]
    most = {log: max(each.most for task in tasks for each in task.slices if each.log == log) for log in "ab"}
    assert most == {"a": share, "b": share}


def test_no_batch_waits_while_confirms_wait(tmp_path: Path) -> None:
    upstream = upstream_of(1)
    with upstream.serving() as port:
        options = options_of(tmp_path, port)
        patient = msgspec.structs.replace(options.job, batch_interval_ms=3_600_000)
        reader = UpstreamReader(msgspec.structs.replace(options, job=patient))
        begin = {"/": 0}
        upstream.logs["/"].confirms_waiting = 1
        assert reader._is_flood(begin, {"/": 60_000}, 0.5)
        for _ in range(2):
            assert reader.latestOffset(begin, LIMIT) == {"/": 10}, "the second one would wait for an hour"
        assert not reader._is_flood(begin, {"/": 60_000}, 0.5)


def test_a_batch_of_much_data_is_followed_sooner(tmp_path: Path) -> None:
    upstream = upstream_of(1)
    with upstream.serving() as port:
        options = options_of(tmp_path, port)
        patient = msgspec.structs.replace(options.job, batch_interval_ms=1000)
        reader = UpstreamReader(msgspec.structs.replace(options, job=patient))
        reader._next_ends({"/": 0})
        assert reader._interval_s() == 1
        reader._record_bytes["/"] = LARGE_BATCH_BYTES // 10
        assert reader._new_bytes({"/": 0}, {"/": 10}) == LARGE_BATCH_BYTES
        reader._batch_bytes = LARGE_BATCH_BYTES
        assert reader._interval_s() == LARGE_BATCH_SHARE
        upstream.logs["/"].confirms_waiting = 1
        reader._next_ends({"/": 0})
        assert reader._interval_s() == 0


def test_the_first_batch_after_the_boot_of_a_machine_waits_for_no_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted_s, slept = time.monotonic() - 60, list[float]()
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() - booted_s, sleep=slept.append, time_ns=time.time_ns
    )
    monkeypatch.setattr(source, "time", clock)
    upstream = upstream_of(1)
    with upstream.serving() as port:
        options = options_of(tmp_path, port)
        patient = msgspec.structs.replace(options.job, batch_interval_ms=3_600_000)
        reader = UpstreamReader(msgspec.structs.replace(options, job=patient))
        assert reader.latestOffset({"/": 0}, LIMIT) == {"/": 10}
    assert max(slept) < 1


def test_who_has_all_of_an_upstream_that_serves_no_more_is_told_and_who_has_not_gets_it(
    tmp_path: Path,
) -> None:
    upstream = upstream_of(3)
    upstream.logs["/"].has_stopped = True
    with upstream.serving() as port, Inbox() as inbox:
        reader = UpstreamReader(options_of(tmp_path, port, inbox.address))
        begin = reader.latestOffset({}, LIMIT)
        end = reader.latestOffset(begin, LIMIT)
        assert end == {"/": 30}
        assert [each["state"] for each in inbox.wait(0.1) if each["event"] == "link"][-1] == "connected"
        assert reader.latestOffset(end, LIMIT) == end
        link = [each for each in inbox.wait(0.1) if each["event"] == "link"][-1]
        assert (link["state"], "restart it" in link["error"]) == ("recover", True)


def test_what_an_upstream_could_not_collect_is_a_lag_of_who_has_all_that_it_serves(tmp_path: Path) -> None:
    upstream = upstream_of(3)
    with upstream.serving() as port, Inbox() as inbox:
        reader = UpstreamReader(options_of(tmp_path, port, inbox.address))
        end = reader.latestOffset(reader.latestOffset({}, LIMIT), LIMIT)
        for uncollected, error in ((7, "could not add 7 records"), (0, "")):
            upstream.logs["/"].uncollected = uncollected
            assert reader.latestOffset(end, LIMIT) == end
            link = [each for each in inbox.wait(0.1) if each["event"] == "link"][-1]
            assert (link["state"], link["committed"]) == ("connected", 30 + uncollected)
            assert error in link.get("error", "")
            assert bool(link.get("error")) == bool(uncollected)


@pytest.mark.parametrize("has_data", [False, True])
def test_nothing_is_taken_from_a_node_that_is_a_downstream_itself(tmp_path: Path, has_data: bool) -> None:
    """Such as an upstream that came back: its queues are emptied, which is no news. Once promoted it is an upstream."""
    upstream = upstream_of(3)
    with upstream.serving() as port, Inbox() as inbox:
        reader = UpstreamReader(options_of(tmp_path, port, inbox.address))
        before = reader.latestOffset({}, LIMIT) if has_data else {}
        upstream.host.is_downstream = True
        assert reader.latestOffset(before, LIMIT) == before
        link = [each for each in inbox.wait(0.1) if each["event"] == "link"][-1]
        assert (link["state"], "is no upstream now" in link["error"]) == ("recover", True)
        assert "committed" not in link, "nothing is known of an upstream"
        upstream.host.is_downstream = False
        assert reader.latestOffset({"/": 0}, LIMIT) == {"/": 30}


def test_another_brokers_stream_of_the_same_name_is_no_outgoing_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = {"first_chunk_id": 0, "committed_chunk_id": 9}
    monkeypatch.setattr(StreamClient, "stats", lambda client, stream: statistics)
    with upstream_of(2).serving() as port, Inbox() as inbox:
        reader = UpstreamReader(options_of(tmp_path, port, inbox.address))
        assert reader.latestOffset({}, LIMIT) == {}
        event = next(each for each in inbox.wait(1.0) if each["event"] == "link")
    assert event["state"] == "recover"
    assert "is no outgoing log of Leveret" in event["error"]


def test_a_known_gap_is_told_while_the_upstream_is_away_too(tmp_path: Path) -> None:
    def standing() -> tuple[str, int]:
        reader = UpstreamReader(options)
        assert reader.latestOffset({}, LIMIT) == {"/": 20}, "as far as it is here"
        last = inbox.wait(0.1)[-1]
        return last["state"], last["missing"]

    upstream = upstream_of(2)
    transfer(upstream, tmp_path)
    for _ in range(2):
        upstream.publish("/", "q", [stored_message(b"m")] * 10)
    with Inbox() as inbox:
        with upstream.serving() as port:
            options = options_of(tmp_path, port, inbox.address)
            upstream.logs["/"].retain_from(30)
            assert standing() == ("recover", 10)
        # The link waits before it tries again.
        wait_until(lambda: standing() == ("connecting", 10), "the gap, told without the upstream", 60)


def test_a_node_that_takes_a_vhost_over_takes_nothing_of_another_log_than_the_holders(tmp_path: Path) -> None:
    """A single node has records of the former log, and waits for the operator; so does a cluster's next owner."""
    upstream = upstream_of(2)
    upstream.logs["/"].log_id = 8
    with upstream.serving() as port, Inbox() as inbox:
        options = options_of(tmp_path, port, inbox.address)
        for origins, end in (({"/": 7}, {}), ({"/": 8}, {"/": 0})):
            job = msgspec.structs.replace(options.job, origins=origins)
            reader = UpstreamReader(msgspec.structs.replace(options, job=job))
            assert reader.latestOffset({}, LIMIT) == end
            last = [event for event in inbox.wait(1) if event["event"] == "link"][-1]
            assert (last["state"], last["log_id"]) == (("connecting", 8) if end else ("recover", 0))


def test_vhosts_come_and_go_while_the_links_of_the_others_stay(tmp_path: Path) -> None:
    upstream = StandbyUpstream(["/", "v"])
    with upstream.serving() as port, Inbox() as inbox:
        reader = UpstreamReader(options_of(tmp_path, port, inbox.address))
        begin = reader.latestOffset({}, LIMIT)

        def told(number: int, **vhosts: object) -> dict[str, int]:
            reader._followed = {"number": number, **vhosts}
            ends = reader.latestOffset(begin, LIMIT)
            assert number in [each.get("number") for each in inbox.wait(0)], "it answers"
            return ends

        [(_, link)] = reader._upstream.links()
        client = link.client(reader._job)
        begin = told(1, vhosts=["/", "v"])
        assert begin == {"/": 0, "v": 0}
        _, (_, other) = reader._upstream.links()
        before = other.client(reader._job)
        told(2, vhosts=["/", "v"], taking_over=["v"])
        after = other.client(reader._job)
        assert before is not after, "it reports under another name"
        assert told(3, vhosts=["/"]) == begin
        assert [log for log, _ in reader._upstream.links()] == ["/"]
        assert (after.connection.closed, link.client(reader._job) is client) == (True, True)


def test_a_running_query_is_told_of_vhosts(tmp_path: Path) -> None:
    with Inbox() as inbox:
        reader = UpstreamReader(options_of(tmp_path, 1, inbox.address))
        reader.initialOffset()

        def told() -> bool:
            report(source_address(inbox.address), VHOSTS, number=1, vhosts=["/", "v"])
            return reader._followed is not None

        wait_until(told, "the source to hear", 60)
