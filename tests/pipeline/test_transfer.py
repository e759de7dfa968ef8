"""The transfer: everything arrives, once, whatever is killed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from leveret.config.sections.tls import TlsOptions
from leveret.model.errors import StorageError
from leveret.pipeline.archive.contents import contents
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.sweep import delete_orphans
from leveret.pipeline.files.files import Place, matching, name_in, opened, place_of
from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.jobs.progress import Inbox
from leveret.pipeline.transfer.compaction import Compaction
from leveret.pipeline.transfer.driver import Transfer, UntransferredRecords
from leveret.pipeline.transfer.sink import StoreSink
from leveret.pipeline.transfer.source import UpstreamSource
from leveret.runtime.sockets.tls import ListenerTls
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.certificates import CertificateAuthority, Issued
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.record import BEGINNING_PREFIX
from tests.pipeline.conftest import OF_THEIR_OWN

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
Job = Callable[..., dict[str, Any]]
TIMEOUT_S = 120.0


class Recorder:
    """Stands for the console: keeps what is said, hands out commands."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.to_send: list[dict[str, Any]] = []
        self.failed: Callable[[], BaseException | None] = lambda: None

    def say(self, event: str, **details: Any) -> None:
        self.events.append({"event": event, **details})

    def pass_on(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def commands(self) -> list[dict[str, Any]]:
        commands, self.to_send = self.to_send, []
        return commands

    def count(self, event: str) -> int:
        assert self.failed() is None
        return sum(each["event"] == event for each in self.events)

    def last(self, event: str, vhost: str = "/") -> dict[str, Any]:
        assert self.failed() is None
        found = [each for each in self.events if each["event"] == event and each.get("vhost", vhost) == vhost]
        return found[-1] if found else {}

    def has_stored(self, vhost: str, end: int) -> bool:
        return bool(self.last("stored", vhost).get("next") == end)


@contextmanager
def transferring(spark: SparkSession, job: dict[str, Any]) -> Iterator[Recorder]:
    """Run the driver's loop in a thread on the tests' own session; drained at the end."""
    spark.dataSource.register(UpstreamSource)
    spark.dataSource.register(StoreSink)
    recorder = Recorder()
    with Inbox() as inbox:
        decoded = msgspec.convert(job, TransferJob)
        driver = Transfer(decoded, spark, inbox, recorder)  # type: ignore[arg-type]  # a stand-in
        with ThreadPoolExecutor(1) as pool:

            def run() -> None:
                # Java knows the session of the thread that made it, and this is another one.
                assert spark.sparkContext._jvm is not None
                spark.sparkContext._jvm.SparkSession.setActiveSession(spark._jsparkSession)
                driver.run()

            running = pool.submit(run)
            recorder.failed = lambda: running.exception() if running.done() else None
            try:
                yield recorder
            finally:
                recorder.to_send.append({"command": "drain", "timeout_ms": 10_000})
                running.result(TIMEOUT_S)


def publish_some(upstream: StandbyUpstream, turns: int, rng: random.Random) -> None:
    for _ in range(turns):
        queue = rng.choice(["a", "b"])
        upstream.publish("/", queue, [stored_message(rng.randbytes(rng.randint(0, 200))) for _ in range(20)])
        upstream.settle("/", queue, [(rng.randrange(40), 3)])


def assert_all_is_there_once(data_dir: Place, upstream: StandbyUpstream, vhost: str = "/") -> None:
    """The tables hold the outgoing log, record by record."""
    manifest = Manifest(data_dir)
    files = [file for file in manifest.files() if file.vhost == vhost]
    assert [file.next for file in files[:-1]] == [file.first for file in files[1:]]
    rows = [
        (row["queue"], row["queue_epoch"], row["queue_offset"], row["kind"], row["body"])
        for file in files
        for row in pq.read_table(opened(data_dir / file.path), partitioning=None).to_pylist()
    ]
    appended = [
        (queue, incarnation.epoch, offset + i, int(kind), body)
        for (name, queue), incarnations in upstream.incarnations.items()
        if name == vhost
        for incarnation in incarnations
        for offset, bodies, kind, _ in incarnation.copies
        for i, body in enumerate(bodies)
    ]
    assert len(rows) == upstream.logs[vhost].committed_offset
    assert sorted(row[:4] for row in rows) == sorted(row[:4] for row in appended)
    assert sum(len(row[4]) for row in rows if row[3] == 1) == sum(
        len(row[4]) for row in appended if row[3] == 1
    )


def _files_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """All files with their octets, beside a Spark that removes its own as it ends."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield Path(parent, name), Path(parent, name).read_bytes()


def _on_disk(data_dir: Place) -> set[str]:
    return {name_in(data_dir, path) for path in matching(data_dir, "data/*/*")}


def _known(manifest: Manifest) -> set[str]:
    return {name for file in manifest.files() for name in (file.path, file.settlements) if name}


def test_messages_and_settlements_of_all_vhosts_arrive(
    spark: SparkSession, transfer_job: Job, tmp_path: Path
) -> None:
    upstream = StandbyUpstream(["/", "other"])
    upstream.publish("/", "a", [stored_message(b"early")] * 3)
    with upstream.serving() as port:
        with transferring(spark, transfer_job(port, vhosts=["/", "other"])) as said:
            wait_until(lambda: said.last("stored").get("next") == 3, "the early ones", TIMEOUT_S)
            publish_some(upstream, 30, random.Random(1))
            upstream.publish("other", "c", [stored_message(b"late")])
            end = upstream.logs["/"].committed_offset
            wait_until(lambda: said.last("stored").get("next") == end, "the late ones", TIMEOUT_S)
            wait_until(
                lambda: upstream.host.offsets.get(("/", "eu.2")) == end, "the upstream's note", TIMEOUT_S
            )
        assert said.events[-1] == {"event": "drained", "complete": True}
        first = next(event for event in said.events if event["event"] == "archived")
        assert (first["next"], first["newest_ms"]) == (0, None), "nothing is there yet"
        with transferring(spark, transfer_job(port, vhosts=["/"])) as again:
            wait_until(lambda: bool(again.last("archived")), "what is there", TIMEOUT_S)
    assert_all_is_there_once(tmp_path / "standby", upstream)
    assert_all_is_there_once(tmp_path / "standby", upstream, "other")
    assert said.last("link", "other")["state"] == "connected"
    newest_ms = said.last("stored")["newest_ms"]
    archived = again.last("archived")
    assert archived.pop("bytes") == sum(file.bytes for file in Manifest(tmp_path / "standby").files_of("/"))
    assert archived == {
        "event": "archived",
        "vhost": "/",
        "node": "",
        "log": "/",
        "next": end,
        "newest_ms": newest_ms,
    }
    assert again.last("archived", "other") == {}


def test_the_upstream_may_restart_and_the_first_reachable_endpoint_is_used(
    spark: SparkSession, transfer_job: Job, tmp_path: Path
) -> None:
    upstream = StandbyUpstream()
    rng = random.Random(2)
    with upstream.serving() as port:
        publish_some(upstream, 10, rng)
    # Port 1 is nobody's: the second endpoint is the first one reachable.
    with transferring(spark, transfer_job(1, port)) as said:
        wait_until(lambda: said.last("link").get("state") == "connecting", "trouble", TIMEOUT_S)
        assert "no endpoint answers" in said.last("link")["error"]
        for _ in range(2):
            with upstream.serving(port):
                publish_some(upstream, 10, rng)
                end = upstream.logs["/"].committed_offset
                wait_until(lambda end=end: said.last("stored").get("next") == end, "all", TIMEOUT_S)  # type: ignore[misc]
            publish_some(upstream, 5, rng)
        with upstream.serving(port):
            end = upstream.logs["/"].committed_offset
            wait_until(lambda: said.last("stored").get("next") == end, "the last", TIMEOUT_S)
    assert_all_is_there_once(tmp_path / "standby", upstream)


def test_what_fails_for_days_is_tried_again_once_a_minute() -> None:
    trouble, holds = None, []
    for _ in range(2000):
        trouble = UntransferredRecords.next(trouble, {"offset": 7, "error": "why"}, 100.0)
        holds.append(trouble.held.until_s - 100.0)
    assert holds[:7] == [0, 2, 4, 8, 16, 32, 60]
    assert set(holds[6:]) == {60}
    assert UntransferredRecords.next(trouble, {"offset": 8, "error": "why"}, 100.0).held.until_s == 100.0


@pytest.mark.story
def test_a_vhost_that_cannot_be_read_on_is_held_back_and_tried_again_before_the_end(
    spark: SparkSession, transfer_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.pipeline.transfer.driver.HOLD_MIN_S", 3600.0)
    monkeypatch.setattr("leveret.pipeline.transfer.driver.HOLD_MAX_S", 3600.0)
    upstream = StandbyUpstream(("/", "other"))
    upstream.publish("/", "a", [stored_message(b"x")] * 10)
    upstream.publish("other", "a", [stored_message(b"x")] * 10)
    log = upstream.logs["/"]
    reads = log.read

    def read(offset: int, bytes_max: int) -> list[bytes]:
        if offset >= 10:
            raise StorageError("damaged chunk at byte 7")
        return reads(offset, bytes_max)

    with upstream.serving() as port:
        job = transfer_job(port) | {"vhosts": ["/", "other"]}
        with transferring(spark, job) as said:
            wait_until(lambda: said.last("stored", "/").get("next") == 10, "what is whole", TIMEOUT_S)
            log.read = read  # type: ignore[method-assign]  # fails from here on
            upstream.publish("/", "a", [stored_message(b"y")] * 10)
            wait_until(lambda: said.count("cut") == 2, "a second try", TIMEOUT_S)
            assert said.last("cut")["offset"] == 10
            wait_until(lambda: said.last("link", "/").get("state") == "recover", "that it is told", TIMEOUT_S)
            assert "went away" in said.last("link", "/")["error"]
            restarts = said.count("restarting")
            for end in (20, 30, 40):
                upstream.publish("other", "a", [stored_message(b"y")] * 10)
                is_there = partial(said.has_stored, "other", end)
                wait_until(is_there, "the other", TIMEOUT_S)
            assert said.count("restarting") == restarts, "the query went on with the other vhost"
            assert Manifest(tmp_path / "standby").next_by_log == {"/": 10, "other": 40}
            log.read = reads  # type: ignore[method-assign]  # works again
    assert Manifest(tmp_path / "standby").next_by_log == {"/": 20, "other": 40}, "it was asked for once more"


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({"credentials": {"username": "standby", "password": "wrong"}}, "recover", "authentication failure"),
        ({"vhosts": ["nowhere"]}, "recover", "vhost access failure"),
        ({"endpoints": ["127.0.0.1:1"]}, "connecting", "127.0.0.1:1"),
    ],
)
def test_trouble_is_told_with_its_state(
    spark: SparkSession, transfer_job: Job, changes: dict[str, Any], state: str, text: str
) -> None:
    upstream = StandbyUpstream()
    with upstream.serving() as port, transferring(spark, transfer_job(port) | changes) as said:
        vhost = changes.get("vhosts", ["/"])[0]
        wait_until(lambda: bool(said.last("link", vhost)), "a word", TIMEOUT_S)
        assert said.last("link", vhost)["state"] == state
        assert text in said.last("link", vhost)["error"]


def test_what_the_upstream_no_longer_has_is_told_with_its_bounds_and_not_skipped(
    spark: SparkSession, transfer_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = StandbyUpstream()
    upstream.publish("/", "a", [stored_message(b"x")] * 10)
    upstream.logs["/"].missing_messages = 11
    asked: list[str] = []
    monkeypatch.setattr(upstream.host, "query_offset", lambda _, reference: asked.append(reference))
    began_ms = time.time_ns() // 1_000_000
    with upstream.serving() as port:
        with transferring(spark, transfer_job(port)) as said:
            wait_until(lambda: said.last("stored").get("next") == 10, "the first", TIMEOUT_S)
            assert said.last("link")["missing_messages"] == 11, (
                "queues hold more than the log did at its begin"
            )
            upstream.logs["/"].missing_messages = 4
            wait_until(
                lambda: said.last("link")["missing_messages"] == 4, "that some are consumed", TIMEOUT_S
            )
            upstream.logs["/"].missing_messages = 7
            assert set(asked) == {f"{BEGINNING_PREFIX}eu.2"}
            asked.clear()
            history_from_ms = UpstreamIdentities(tmp_path / "standby").of("/").history_from_ms
            assert began_ms <= history_from_ms <= time.time_ns() // 1_000_000
        for _ in range(3):
            upstream.publish("/", "a", [stored_message(b"y")] * 10)
        upstream.logs["/"].retain_from(30)
        with transferring(spark, transfer_job(port)) as said:
            wait_until(lambda: said.last("link").get("state") == "recover", "the gap", TIMEOUT_S)
            assert "offsets 10 to 29 are gone" in said.last("link")["error"]
            assert (said.last("link")["missing"], said.last("link")["missing_messages"]) == (20, 4)
            assert f"{BEGINNING_PREFIX}eu.2" not in asked, "who has something does not begin"
    assert Manifest(tmp_path / "standby").next_by_log == {"/": 10}
    [row] = contents(tmp_path / "standby")["vhosts"]
    assert (row["missing"], row["missing_messages"]) == (20, 4), "a promotion has to know"
    assert UpstreamIdentities(tmp_path / "standby").of("/").history_from_ms == history_from_ms, (
        "it does not begin again"
    )


def test_links_are_encrypted_and_the_upstream_is_verified(
    spark: SparkSession, transfer_job: Job, tmp_path: Path
) -> None:
    authority = CertificateAuthority(tmp_path)
    right = authority.issue("server", names="IP:127.0.0.1")
    wrong = authority.issue("other", names="DNS:other.example")
    upstream = StandbyUpstream()
    upstream.publish("/", "a", [stored_message(b"x" * 300_000)] * 10)
    tls = {"verify": True, "cacertfile": str(authority.cacertfile)}
    with (
        upstream.serving(tls=_server(wrong)) as port,
        transferring(spark, transfer_job(port, tls=tls)) as said,
    ):
        wait_until(lambda: bool(said.last("link").get("error")), "the refusal", TIMEOUT_S)
        assert "certificate is refused: IP address mismatch" in said.last("link")["error"]
        assert said.last("link")["state"] == "connecting"
        missing = tls | {"cacertfile": str(tmp_path / "nowhere.pem")}
        said.to_send.append({"command": "job", "job": transfer_job(port + 1, tls=missing)})
        wait_until(lambda: "nowhere.pem" in said.last("link").get("error", ""), "the missing file", TIMEOUT_S)
        assert said.last("link")["state"] == "recover", "an operator has to mend it"
    assert not said.last("stored")
    with (
        upstream.serving(tls=_server(right)) as port,
        transferring(spark, transfer_job(port, tls=tls)) as said,
    ):
        wait_until(lambda: said.last("stored").get("next") == 10, "all", TIMEOUT_S)
    assert_all_is_there_once(tmp_path / "standby", upstream)


def _server(issued: Issued) -> ListenerTls:
    return ListenerTls(TlsOptions(certfile=issued.certfile, keyfile=issued.keyfile), "ssl_options")


@pytest.mark.story
def test_a_vhost_that_is_deleted_mid_way_takes_nothing_of_the_others_with_it(
    spark: SparkSession, transfer_job: Job, tmp_path: Path
) -> None:
    upstream = StandbyUpstream(["/", "other"])
    rng = random.Random(5)
    publish_some(upstream, 10, rng)
    upstream.publish("other", "c", [stored_message(b"x")] * 20)
    with upstream.serving() as port, transferring(spark, transfer_job(port, vhosts=["/", "other"])) as said:
        wait_until(lambda: said.last("stored", "other").get("next") == 20, "the other vhost", TIMEOUT_S)
        upstream.host.vhosts.discard("other")
        upstream.host.logs.pop("other").is_closed = True
        publish_some(upstream, 10, rng)
        end = upstream.logs["/"].committed_offset
        wait_until(lambda: said.last("stored").get("next") == end, "what came since", TIMEOUT_S)
        wait_until(lambda: said.last("link", "other").get("state") == "recover", "a word", TIMEOUT_S)
        starts = said.count("archived")
        said.to_send.append({"command": "vhosts", "vhosts": ["/"]})
        publish_some(upstream, 10, rng)
        end = upstream.logs["/"].committed_offset
        wait_until(lambda: said.last("stored").get("next") == end, "what came after the deletion", TIMEOUT_S)
        assert said.count("archived") == starts, "the query of the others went on"
        # So the schema sync tells it, first that nothing is left, then that there is something again.
        for vhosts in ([], ["/"]):
            said.to_send.append({"command": "job", "job": transfer_job(port, vhosts=vhosts)})
            wait_until(lambda: not said.to_send, "the job to be taken", TIMEOUT_S)
        publish_some(upstream, 5, rng)
        end = upstream.logs["/"].committed_offset
        wait_until(lambda: said.last("stored").get("next") == end, "the last", TIMEOUT_S)
    assert_all_is_there_once(tmp_path / "standby", upstream)
    assert {row["vhost"]: row["records"] for row in contents(tmp_path / "standby")["vhosts"]}["other"] == 20


def test_another_vhost_is_followed_without_another_start(
    spark: SparkSession, transfer_job: Job, tmp_path: Path
) -> None:
    upstream = StandbyUpstream(["/", "other"])
    upstream.publish("/", "a", [stored_message(b"x")])
    upstream.publish("other", "a", [stored_message(b"x")] * 2)
    with upstream.serving() as port, transferring(spark, transfer_job(port)) as said:
        wait_until(lambda: bool(said.last("stored")), "the first vhost", TIMEOUT_S)
        said.to_send.append({"command": "vhosts", "vhosts": ["/", "other"]})
        wait_until(lambda: said.last("stored", "other").get("next") == 2, "the second vhost", TIMEOUT_S)


@pytest.mark.story
@OF_THEIR_OWN
@pytest.mark.parametrize(
    ("kills", "store"),
    [
        (1, None),
        pytest.param(8, None, marks=[pytest.mark.torture, pytest.mark.timeout(1200)]),
        pytest.param(4, "object_store", marks=[pytest.mark.torture, pytest.mark.timeout(1200)]),
        pytest.param(4, "hdfs", marks=[pytest.mark.torture, pytest.mark.timeout(1200)]),
    ],
)
def test_exactly_once_across_kill_9_of_the_driver(
    start_pipeline: Callable[..., Any],
    transfer_job: Job,
    tmp_path: Path,
    kills: int,
    store: str | None,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upstream = StandbyUpstream()
    rng = random.Random(3)
    place = request.getfixturevalue(store).new_place() if store else str(tmp_path / "standby")
    data_dir = place_of(place)
    changes = {"data_dir": place, "work_dir": str(tmp_path / "standby")}
    with upstream.serving() as port:
        for turn in range(kills + 1):
            child = start_pipeline("transfer", transfer_job(port, **changes))
            child.wait_for(lambda event: event["event"] == "started")
            publish_some(upstream, 20, rng)
            child.wait_for(lambda event: event["event"] == "stored")
            publish_some(upstream, 20 + turn, rng)
            if turn < kills:
                child.kill9()
        child.send({"command": "drain", "timeout_ms": 30_000})
        assert child.wait_for(lambda event: event["event"] == "drained")["complete"]
        child.end_input()
        assert child.wait() == 0
    assert_all_is_there_once(data_dir, upstream)
    if store:
        # Orphans stay there for an hour.
        monkeypatch.setattr("leveret.pipeline.files.files.ORPHAN_AGE_S", -3600.0)
        delete_orphans(Manifest(data_dir))
    assert _on_disk(data_dir) == _known(Manifest(data_dir)), "nothing is left over"
    holding = [path for path, octets in _files_below(tmp_path) if b"secret" in octets]
    assert holding == [], "a password was written down"


@pytest.mark.story
@OF_THEIR_OWN
def test_it_ends_with_its_parent(start_pipeline: Callable[..., Any], transfer_job: Job) -> None:
    child = start_pipeline("transfer", transfer_job(1))
    child.wait_for(lambda event: event["event"] == "started")
    child.process.stdin.close()
    assert child.wait() == 0


def test_a_vhost_that_cannot_be_compacted_keeps_no_other_from_it(
    spark: SparkSession, transfer_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.pipeline.archive.compact.FILES_MIN", 2)
    data_dir = tmp_path / "standby"
    upstream = StandbyUpstream(["a", "b"])
    for turn in range(2):
        for vhost in upstream.logs:
            upstream.publish(vhost, "q", [stored_message(b"%d" % turn)])
            upstream.settle(vhost, "q", [(2 * turn, 1)])
    damaged, *_ = transfer(upstream, data_dir, chunks_per_file=2).files()
    (data_dir / damaged.path).write_bytes(b"")
    job = transfer_job(0, retain_ms_max=1, compact_interval_s=0)
    compaction = Compaction(spark)
    rows: list[dict[str, Any]] = []

    def turned() -> bool:
        rows.extend(compaction.turn(msgspec.convert(job, TransferJob)))
        return bool(rows)

    wait_until(turned, "a compaction", TIMEOUT_S)
    compaction.stop()
    assert [(row["vhost"], row.get("files")) for row in rows] == [("a", None), ("b", 2)]
    assert f"{damaged.path}: damaged or missing" in rows[0]["error"]
    files = Manifest(data_dir).files()
    assert [(file.vhost, bool(file.history_from_ms)) for file in files] == [
        ("a", False),
        ("a", False),
        ("b", True),
    ]


@pytest.mark.torture  # Three JVMs take half a minute of two cores.
@pytest.mark.timeout(1200)
def test_on_a_cluster_the_same_job_does_the_same(
    start_pipeline: Callable[..., Any], transfer_job: Job, tmp_path: Path
) -> None:
    upstream = StandbyUpstream()
    rng = random.Random(7)
    conf = {"spark.executor.memory": "512m"}
    with upstream.serving() as port:
        for turn in range(2):
            job = transfer_job(port, spark={"master": "local-cluster[2,1,1024]", "conf": conf})
            child = start_pipeline("transfer", job)
            child.wait_for(lambda event: event["event"] == "started")
            publish_some(upstream, 40, rng)
            child.wait_for(lambda event: event["event"] == "stored")
            if not turn:
                child.kill9()
        child.send({"command": "drain", "timeout_ms": 60_000})
        assert child.wait_for(lambda event: event["event"] == "drained")["complete"]
        child.end_input()
        assert child.wait() == 0
    assert_all_is_there_once(tmp_path / "standby", upstream)
    assert _on_disk(tmp_path / "standby") == _known(Manifest(tmp_path / "standby")), "nothing is left over"
