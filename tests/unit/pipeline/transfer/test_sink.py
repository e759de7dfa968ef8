"""What one vhost's trouble costs the others: nothing of what came."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.job import LoginCredentials, TransferJob
from leveret.pipeline.transfer import sink
from leveret.pipeline.transfer.sink import Stored, StoreWriter, TransferCut
from leveret.pipeline.transfer.source import TransferOptions
from leveret.pipeline.upstream.link import link_of
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.chunk import ChunkType, encode_entry, encode_header

CHUNK_RECORDS = 10


@pytest.fixture
def upstream() -> StandbyUpstream:
    """Four chunks in each of two vhosts."""
    upstream = StandbyUpstream(["a", "b"])
    for turn in range(4):
        for vhost in "ab":
            upstream.publish(vhost, "q", [stored_message(b"%d" % turn)] * CHUNK_RECORDS)
    return upstream


def job_of(data_dir: Path, port: int) -> TransferJob:
    return TransferJob(
        data_dir=str(data_dir),
        reference="eu",
        endpoints=[f"127.0.0.1:{port}"],
        credentials=LoginCredentials(username="standby", password="secret"),
        vhosts=["a", "b"],
    )


def writer_of(job: TransferJob) -> StoreWriter:
    return StoreWriter(TransferOptions(job=job, inbox="", cores=2))


def slices(*found: tuple[str, int, int] | tuple[str, int, int, int]) -> Iterator[pa.RecordBatch]:
    """Descriptors as a task reads them."""
    rows = [
        dict.fromkeys(("log_id", "writer"), 0)
        | {"log": log, "first": first, "next": end, "most": most, "endpoint": "", "label": ""}
        for log, first, end, most in ((*each, 0)[:4] for each in found)
    ]
    yield pa.RecordBatch.from_pylist(rows)


def test_a_vhost_that_cannot_be_read_is_cut_and_the_others_come(
    tmp_path: Path, upstream: StandbyUpstream
) -> None:
    with upstream.serving() as port:
        job = job_of(tmp_path, port)
        writer = writer_of(job)
        kept = link_of(job, "b").client(job)
        upstream.logs["a"].fails_with = StorageError("a queue's log is damaged")
        stored = writer.write(slices(("a", 0, 20), ("a", 20, 40), ("b", 0, 40)))
        assert [(cut.log, cut.offset) for cut in stored.cuts] == [("a", 0), ("a", 20)]
        assert upstream.logs["a"].reads == 1, "not asked for what lies behind"
        assert link_of(job, "b").client(job) is kept
    with pytest.raises(TransferCut, match="vhost 'a': "):
        writer.commit([stored], 0)
    assert Manifest(tmp_path).next_by_log == {"b": 40}


def test_when_one_connection_was_lost_the_others_are_made_anew(
    tmp_path: Path, upstream: StandbyUpstream
) -> None:
    with upstream.serving() as port:
        job = job_of(tmp_path, port)
        kept = link_of(job, "b").client(job)
        upstream.logs["a"].fails_with = RuntimeError("the connection ends with this")
        stored = writer_of(job).write(slices(("a", 0, 20), ("b", 0, 40)))
        assert [cut.log for cut in stored.cuts] == ["a"]
        assert kept.connection.closed, "the silence of one that leads nowhere would be waited for"
    assert [file.next for file in stored.files] == [40]


def test_what_lies_behind_a_cut_is_not_taken_for_the_beginning(
    tmp_path: Path, upstream: StandbyUpstream
) -> None:
    with upstream.serving() as port:
        writer = writer_of(job_of(tmp_path, port))
        second = writer.write(slices(("a", 20, 40)))
        upstream.logs["a"].fails_with = StorageError("a queue's log is damaged")
        first = writer.write(slices(("a", 0, 20)))
    with pytest.raises(TransferCut):
        writer.commit([first, second], 0)
    assert Manifest(tmp_path).next_by_log == {}


def test_what_came_before_a_cut_is_recorded(tmp_path: Path, upstream: StandbyUpstream) -> None:
    with upstream.serving() as port:
        writer = writer_of(job_of(tmp_path, port))
        upstream.logs["a"].replace(20, b"\0" * 100)
        stored = writer.write(slices(("a", 0, 40)))
    with pytest.raises(TransferCut):
        writer.commit([stored], 0)
    assert Manifest(tmp_path).next_by_log == {"a": 20}


def test_a_batch_is_told_of_once_it_is_recorded_and_not_again(
    tmp_path: Path, upstream: StandbyUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hears of it lets go of what the upstream kept for this."""
    told: list[tuple[str, int | None]] = []
    monkeypatch.setattr(
        sink, "report", lambda _, event, **more: told.append((event, Manifest(tmp_path).next_by_log.get("a")))
    )
    with upstream.serving() as port:
        writer = writer_of(job_of(tmp_path, port))
        stored = writer.write(slices(("a", 0, 40)))
    for _ in range(2):
        writer.commit([stored], 0)
        assert told == [("recorded", 40), ("stored", 40)]


def no_identity(upstream: StandbyUpstream, data_dir: Path) -> None:
    """A chunk that is whole, and of no queue."""
    data = encode_entry(stored_message(b"x")) * CHUNK_RECORDS
    header = encode_header(
        ChunkType.USER, CHUNK_RECORDS, CHUNK_RECORDS, 1, 1, 20, zlib.crc32(data), len(data), 0
    )
    upstream.logs["a"].replace(20, header + data)


def no_directory(upstream: StandbyUpstream, data_dir: Path) -> None:
    """A file is where the vhost's directory is to be."""
    (data_dir / "data").mkdir()
    (data_dir / "data" / "vhost-a").write_bytes(b"")


@pytest.mark.parametrize("break_it", [no_identity, no_directory])
def test_a_vhost_that_cannot_be_stored_is_cut_and_the_others_come(
    tmp_path: Path, upstream: StandbyUpstream, break_it: Callable[[StandbyUpstream, Path], None]
) -> None:
    break_it(upstream, tmp_path)
    with upstream.serving() as port:
        writer = writer_of(job_of(tmp_path, port))
        stored = writer.write(slices(("a", 0, 40), ("b", 0, 40)))
        again = writer.write(slices(("a", 0, 10)))
    with pytest.raises(TransferCut, match="vhost 'a': "):
        writer.commit([stored], 0)
    assert Manifest(tmp_path).next_by_log == {"b": 40}
    assert bool(again.files) is (break_it is no_identity), "its connection is of use still"


@contextmanager
def turning_away() -> Iterator[tuple[int, list[object]]]:
    """A port that lets go of every connection; and who came."""
    came: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    connection, peer = server.accept()
                    came.append(peer)
                    connection.close()
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], came
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_an_upstream_that_is_away_is_not_waited_for_again_for_each_vhost(tmp_path: Path) -> None:
    with turning_away() as (port, came):
        stored = writer_of(job_of(tmp_path, port)).write(slices(("a", 0, 20), ("b", 5, 20)))
    assert len(came) == 1
    assert isinstance(stored, Stored)
    assert [(cut.log, cut.offset) for cut in stored.cuts] == [("a", 0), ("b", 5)]
