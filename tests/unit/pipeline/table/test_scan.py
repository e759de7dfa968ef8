"""The archive as rows, without Spark: each message once, with its state, and no octet more read than is needed."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.model.errors import PreconditionFailed, StorageError
from leveret.model.reasons import Reason
from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.decode import SETTLEMENTS
from leveret.pipeline.archive.documents import line_of
from leveret.pipeline.archive.manifest import FORMAT, Manifest, ManifestEntry
from leveret.pipeline.archive.recovery_plan import read_order
from leveret.pipeline.archive.tables import read_table, write_table
from leveret.pipeline.files.files import Place, delete_tree, opened
from leveret.pipeline.jobs.job import Selection
from leveret.pipeline.table import plan, scan
from leveret.pipeline.table.plan import open_archive, plan_ranges
from leveret.pipeline.table.request import request_of
from leveret.pipeline.table.scan import read_rows
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.incarnation import INCARNATION_BITS, epoch_of, next_count
from leveret.wire.message10 import encode_before_body
from leveret.wire.stream_entry import PROPERTIES, entries_of, pack_entries

VHOST = "/"


def rows(data_dir: Place, **options: str) -> list[dict[str, Any]]:
    request = request_of({"path": str(data_dir), **options})
    ranges = plan_ranges(open_archive(str(data_dir)), request)
    return [row for each in ranges for batch in read_rows(each) for row in batch.to_pylist()]


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def text(ms: int) -> str:
    return at(ms).isoformat(timespec="milliseconds")


@pytest.fixture
def upstream() -> StandbyUpstream:
    upstream = StandbyUpstream([VHOST, "b"])
    upstream.types = {(VHOST, "q"): "classic", (VHOST, "s"): "stream"}
    for turn in range(4):
        bodies = [stored_message(b"%d" % (turn * 5 + i), b"ex", b"k%d" % i) for i in range(5)]
        upstream.publish(VHOST, "q", bodies)
        upstream.publish(VHOST, "s", [stored_message(b"s", b"", b"s")] * 2)
        upstream.settle(VHOST, "q", [(turn, 1)], reason=turn)
    upstream.publish("b", "p", [stored_message(b"y", b"", b"\xff")])
    return upstream


def test_each_message_is_a_row_with_its_state_and_when_and_why_it_was_settled(
    data_dir: Place, upstream: StandbyUpstream
) -> None:
    began_ms = upstream.now_ms - 13
    transfer(upstream, data_dir, chunks_per_file=3)
    found = rows(data_dir)
    assert len(found) == 20 + 8 + 1
    settled = [row for row in found if row["state"] == "settled"]
    assert [(row["offset"], row["settled_reason"], row["settled_at"]) for row in settled] == [
        (turn, Reason(turn).name.lower(), at(began_ms + 3 * turn + 2)) for turn in range(4)
    ]
    assert {(row["vhost"], row["queue"], row["queue_type"]) for row in found} == {
        (VHOST, "q", "classic"),
        (VHOST, "s", "stream"),
        ("b", "p", None),
    }
    [strange] = [row for row in found if row["vhost"] == "b"]
    assert (strange["routing_key"], strange["exchange"], strange["body"]) == ("\ufffd", "", b"y")
    assert found[0]["timestamp"] == at(began_ms)
    assert {row["body_bytes"] for row in found if row["queue"] == "q"} == {1, 2}


def test_an_entry_of_a_stream_is_its_messages(tmp_path: Path) -> None:
    """As publishers of both protocols sent them: with properties, in batches, compressed or not, as other octets."""
    properties = header.ContentHeader(0, 3, commands.Basic.Properties(app_id="a", headers={"n": 1})).marshal()
    by_amqp = encode_before_body(b"ex", b"key", properties, 3) + b"abc"
    plain = [b"one", b"two"]
    batch = b"".join(len(each).to_bytes(4, "big") + each for each in plain)
    entries = [
        len(by_amqp).to_bytes(4, "big") + by_amqp,
        b"\0\0\0\x03raw",
        bytes([0x80]) + (2).to_bytes(2, "big") + len(batch).to_bytes(4, "big") * 2 + batch,
        bytes([0x80 | 4 << 4])
        + (2).to_bytes(2, "big")
        + (9).to_bytes(4, "big")
        + (4).to_bytes(4, "big")
        + b"zstd",
    ]
    packed = [entry[4:] for entry in entries_of(pack_entries(b"".join(entries))[0])]
    upstream = StandbyUpstream()
    upstream.types[VHOST, "s"] = "stream"
    upstream.publish(VHOST, "s", [*packed, stored_message(b"no entry", b"", b"s")])
    transfer(upstream, tmp_path)
    found = rows(tmp_path)
    assert [(row["offset"], row["exchange"], row["routing_key"], row["body"]) for row in found] == [
        (0, "ex", "key", b"abc"),
        (1, "", "s", b"raw"),
        (2, "", "s", b"one"),
        (2, "", "s", b"two"),
        (3, "", "", entries[3]),
        (4, "", "s", b"no entry"),
    ]
    assert (found[0]["app_id"], dict(found[0]["headers"])["n"]["integer"]) == ("a", 1)
    assert [row["body_bytes"] for row in rows(tmp_path, columns="body_bytes")] == [3, 3, 3, 3, 17 - 2, 8]
    assert {row["routing_key"] for row in rows(tmp_path, columns="routing_key")} == {"key", "s", ""}
    assert len(rows(tmp_path, columns="offset")) == 6, "whatever columns are wanted"


def test_a_message_with_the_content_type_of_an_entry_in_a_queue_of_no_known_type_is_a_row(
    tmp_path: Path,
) -> None:
    """An earlier upstream named no types; one such message, without a body, ended all queries (2026-12-01)."""
    upstream = StandbyUpstream([VHOST])
    bodies = [b"", b"\x80", b"abc"]
    upstream.publish(VHOST, "q", [stored_message(body, b"", b"q", PROPERTIES) for body in bodies])
    transfer(upstream, tmp_path)
    assert [row["body"] for row in rows(tmp_path)] == bodies


def test_the_first_settlement_of_a_message_counts(tmp_path: Path) -> None:
    """As the end of its queue settles all offsets once more."""
    upstream = StandbyUpstream()
    upstream.publish(VHOST, "q", [stored_message(b"%d" % i) for i in range(4)])
    upstream.settle(VHOST, "q", [(1, 2)], reason=Reason.DEAD_LETTERED)
    upstream.settle(VHOST, "q", [(0, 2)], reason=Reason.ACKED)
    upstream.begin_incarnation(VHOST, "q")
    transfer(upstream, tmp_path)
    reasons = ["acked", "dead_lettered", "dead_lettered", "dropped"]
    assert [row["settled_reason"] for row in rows(tmp_path)] == reasons


def test_options_choose_rows_and_columns(data_dir: Place, upstream: StandbyUpstream) -> None:
    began_ms = upstream.now_ms - 13
    transfer(upstream, data_dir, chunks_per_file=3)
    assert rows(data_dir, vhost="b", columns="queue, body") == [{"queue": "p", "body": b"y"}]
    assert [row["body"] for row in rows(data_dir, queue="q", **{"from": text(began_ms + 9)})] == [
        b"%d" % number for number in range(15, 20)
    ]
    cut = rows(data_dir, **{"from": text(began_ms + 3), "to": text(began_ms + 4)}, columns="offset,queue")
    assert cut == [{"offset": offset, "queue": "q"} for offset in range(6, 11)]
    pending = rows(data_dir, state="pending", queue="q", columns="offset")
    assert len(pending) == 16
    assert len(rows(data_dir, state="settled", columns="offset")) == 4
    assert rows(data_dir, vhost="nowhere") == []


def test_as_of_a_moment_later_messages_and_settlements_are_not_there_yet(
    data_dir: Place, upstream: StandbyUpstream
) -> None:
    began_ms = upstream.now_ms - 13
    transfer(upstream, data_dir, chunks_per_file=40)
    found = rows(data_dir, queue="q", asOf=text(began_ms + 4))
    assert [row["offset"] for row in found] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert [row["state"] for row in found] == ["settled"] + ["pending"] * 9
    with pytest.raises(PreconditionFailed, match=f"begins at {text(began_ms)},".replace("+", r"\+")):
        rows(data_dir, asOf=text(began_ms - 1))


def test_a_sidecar_of_an_earlier_version_has_no_times_and_the_records_have_them(
    data_dir: Place, upstream: StandbyUpstream
) -> None:
    manifest = transfer(upstream, data_dir, chunks_per_file=6)
    expected = rows(data_dir)
    for file in manifest.files():
        if file.settlements:
            place = data_dir / file.settlements
            write_table(place, read_table(place).drop_columns(["timestamp_ms"]))
            assert "timestamp_ms" in SETTLEMENTS.names
    assert rows(data_dir) == expected
    moment = text(upstream.now_ms - 9)
    assert rows(data_dir, asOf=moment, columns="offset,state") == [
        {
            "offset": row["offset"],
            "state": "settled" if row["offset"] == 0 and row["queue"] == "q" else "pending",
        }
        for row in expected
        if row["timestamp"] <= at(upstream.now_ms - 9)
    ]


def test_what_a_compaction_merged_is_settled_at_an_unknown_time(tmp_path: Path) -> None:
    upstream = StandbyUpstream()
    upstream.types[VHOST, "q"] = "quorum"
    upstream.publish(VHOST, "q", [stored_message(b"%d" % i) for i in range(6)])
    upstream.settle(VHOST, "q", [(0, 4)])
    manifest = transfer(upstream, tmp_path)
    files = manifest.files()
    manifest.append([compact(tmp_path, files)], removed=[file.path for file in files])
    upstream.copy_again(VHOST, "q", 2)
    transfer(upstream, tmp_path)
    found = rows(tmp_path)
    assert [row["body"] for row in found if row["state"] == "pending"] == [b"4", b"5"]
    assert {row["queue_type"] for row in found if row["state"] == "pending"} == {"quorum"}
    assert all(row["settled_reason"] in (None, "acked") for row in found if row["state"] == "settled")


@pytest.mark.parametrize("chunks_per_file", [1, 2, 40])
def test_what_was_collected_again_is_one_row(tmp_path: Path, chunks_per_file: int) -> None:
    upstream = StandbyUpstream()
    for turn in range(3):
        upstream.publish(VHOST, "q", [stored_message(b"%d" % (turn * 5 + i)) for i in range(5)])
        upstream.settle(VHOST, "q", [(turn, 1)])
    upstream.copy_again(VHOST, "q", 3)
    upstream.copy_again(VHOST, "q", 6)
    transfer(upstream, tmp_path, chunks_per_file=chunks_per_file)
    assert [row["body"] for row in rows(tmp_path)] == [b"%d" % number for number in range(15)]


moves = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.integers(0, 12), st.integers(1, 5), st.sampled_from(Reason)),
        st.tuples(st.just("again"), st.integers(1, 4)),
        st.tuples(st.just("return")),
        st.tuples(st.just("lose"), st.integers(0, 4)),
    ),
    min_size=1,
    max_size=14,
)


@given(moves, st.integers(1, 4), st.integers(0, 14))
@settings(deadline=None)
def test_the_rows_are_what_the_books_and_a_recovery_say(moved: list[Any], per_file: int, moment: int) -> None:
    """Pending rows are what a recovery would bring, now and as of any moment; no row comes twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "RANGE_FILES_MAX", 2)
        _compare(moved, per_file, moment)


def _compare(moved: list[Any], per_file: int, moment: int) -> None:
    upstream = StandbyUpstream()
    upstream.publish(VHOST, "q", [stored_message(b"first")])
    for move in moved:
        log = upstream.incarnations[VHOST, "q"][-1]
        match move:
            case ("publish", count):
                first = log.next_offset
                bodies = [stored_message(b"%d.%d" % (log.epoch, first + i)) for i in range(count)]
                upstream.publish(VHOST, "q", bodies)
            case ("settle", first, count, reason):
                if first < log.next_offset:
                    upstream.settle(VHOST, "q", [(first, min(count, log.next_offset - first))], reason)
            case ("again", last):
                upstream.copy_again(VHOST, "q", last)
            case ("lose", kept):
                _lose_the_end(upstream, kept)
            case _:
                _come_back(upstream)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        data_dir = Path(name)
        manifest = transfer(upstream, data_dir, chunks_per_file=per_file)
        for as_of_ms in (None, min(1_700_000_000_000 + moment, upstream.now_ms)):
            options = {} if as_of_ms is None else {"asOf": text(as_of_ms)}
            found = rows(data_dir, **options)
            identities = [(row["incarnation"], row["offset"]) for row in found]
            assert len(identities) == len(set(identities))
            pending = sorted(row["body"] for row in found if row["state"] == "pending")
            assert pending == sorted(_recovered(manifest, as_of_ms))
            assert sorted(row["body"] for row in rows(data_dir, state="pending", **options)) == pending


def _come_back(upstream: StandbyUpstream) -> None:
    """The policy is taken away and comes back: the queue is collected anew, under another incarnation."""
    before = upstream.incarnations[VHOST, "q"][-1]
    copies = list(before.copies)
    upstream.settle(VHOST, "q", [(0, before.next_offset)], reason=2)
    epoch = before.epoch + (1 << INCARNATION_BITS)
    for offset, bodies, kind, at_ms in copies:
        upstream.logs[VHOST].append_copy("q", epoch, offset, bodies, kind, at_ms)
    after = type(before)(epoch, before.next_offset - 1, copies=copies)
    upstream.incarnations[VHOST, "q"].append(after)


def _lose_the_end(upstream: StandbyUpstream, kept: int) -> None:
    """The next leader has the first chunks only, and copies them in another numbering; the earlier one does not end."""
    before = upstream.incarnations[VHOST, "q"][-1]
    count = next_count(before.epoch >> INCARNATION_BITS, renumbers=True)
    after = type(before)(epoch_of(before.epoch) | count << INCARNATION_BITS)
    upstream.incarnations[VHOST, "q"].append(after)
    for offset, bodies, kind, at_ms in before.copies[:kept]:
        after.copies.append((offset, bodies, kind, at_ms))
        after.next_offset = offset + len(bodies)
        upstream.logs[VHOST].append_copy("q", after.epoch, offset, bodies, kind, at_ms)


def _recovered(manifest: Manifest, as_of_ms: int | None) -> list[bytes]:
    """The bodies that a recovery's plan has."""
    directory = freeze_plan(manifest, VHOST, Selection(as_of_ms=as_of_ms), plans="exports/x")
    if directory is None:
        return []
    made = directory.load()
    order = read_order(directory.runs, made.parts)
    bodies = []
    for place in order.places.tolist():
        name = made.files[place >> 32]
        with opened(manifest.data_dir / name) as source:
            table = pq.read_table(source, partitioning=None)
        bodies.append(table.column("body")[place & 0xFFFFFFFF].as_py())
    delete_tree(directory.path)
    return bodies


class Octets:
    """Counts what is read of files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        monkeypatch.setattr(scan, "opened", self._opened)

    def _opened(self, place: Path) -> pa.NativeFile:
        counting, octets = place.open("rb", buffering=0), self

        class Counted:
            closed = False

            def read(self, size: int = -1) -> bytes:
                found = counting.read(size)
                octets.read += len(found)
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(counting, name)

        return pa.PythonFile(Counted(), "r")

    def of(self, data_dir: Path, **options: str) -> int:
        self.read = 0
        assert rows(data_dir, **options)
        return self.read


def test_columns_that_are_not_wanted_and_files_without_wanted_rows_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = StandbyUpstream(["a", "b"])
    random = np.random.default_rng(7)
    for turn in range(8):
        for vhost in ("a", "b"):
            bodies = [stored_message(random.bytes(40_000), b"ex", b"%d" % turn) for _ in range(25)]
            upstream.publish(vhost, f"q{turn % 4}", bodies)
            upstream.settle(vhost, f"q{turn % 4}", [(0, 25)])
        upstream.now_ms += 60_000
    transfer(upstream, tmp_path, chunks_per_file=2)
    octets = Octets(monkeypatch)
    whole = octets.of(tmp_path)
    assert whole > 16 * 25 * 40_000
    assert octets.of(tmp_path, columns="vhost,queue,timestamp,routing_key,state") < whole / 10
    assert whole * 0.45 < octets.of(tmp_path, vhost="a") < whole * 0.55
    assert whole * 0.2 < octets.of(tmp_path, queue="q3") < whole * 0.3
    minute = {"from": text(upstream.now_ms - 65_000)}
    assert whole * 0.1 < octets.of(tmp_path, **minute) < whole * 0.15
    assert octets.of(tmp_path, state="pending", columns="body") < whole * 0.55, (
        "half of the files are settled"
    )


def test_a_damaged_missing_or_newer_archive_is_an_error_with_its_name(
    tmp_path: Path, upstream: StandbyUpstream
) -> None:
    manifest = transfer(upstream, tmp_path, chunks_per_file=40)
    file = next(file for file in manifest.files() if file.vhost == VHOST)
    place = tmp_path / file.path
    whole = place.read_bytes()
    body = pq.ParquetFile(place).metadata.row_group(0).column(9)
    last = body.data_page_offset + body.total_compressed_size - 2
    for octets in (
        whole[: len(whole) // 2],
        b"",
        whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :],
    ):
        place.write_bytes(octets)
        with pytest.raises(StorageError, match="damaged, missing"):
            rows(tmp_path)
    place.unlink()
    with pytest.raises(StorageError, match="restore the file from a copy"):
        rows(tmp_path)
    place.write_bytes(whole)
    sidecar = tmp_path / file.settlements
    whole_sidecar = sidecar.read_bytes()
    sidecar.write_bytes(whole_sidecar[:-9] + bytes([whole_sidecar[-9] ^ 1]) + whole_sidecar[-8:])
    with pytest.raises(StorageError, match="checksum"):
        rows(tmp_path)
    assert len(rows(tmp_path, columns="offset")) == 29, "its settlements are not needed"
    [log] = (tmp_path / "manifest").glob("*.log")
    entry = ManifestEntry(number=manifest.number + 1, at_ms=0, format=FORMAT + 1)
    log.write_bytes(log.read_bytes() + line_of(entry))
    with pytest.raises(StorageError, match=f"format {FORMAT + 1}, of a later version"):
        rows(tmp_path)
    log.write_bytes(b"x" + log.read_bytes())
    with pytest.raises(StorageError, match="is damaged"):
        rows(tmp_path)
    with pytest.raises(StorageError, match="there is no archive here"):
        rows(tmp_path / "data")


def test_a_place_that_may_not_be_read_is_an_error_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: object) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(StorageError, match=r"cannot be read: .*Permission denied"):
        open_archive(str(tmp_path))
