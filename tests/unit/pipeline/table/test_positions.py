"""A stream of the table: each message is in one batch, whatever a compaction merged meanwhile."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.errors import PreconditionFailed
from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest, ManifestState
from leveret.pipeline.table.plan import open_archive
from leveret.pipeline.table.positions import Positions, next_positions, ranges_between
from leveret.pipeline.table.request import TableRequest
from leveret.pipeline.table.scan import read_rows
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.incarnation import INCARNATION_BITS

FAST = "/dev/shm"
"""Where a durable file takes no time."""
TWO_FILES = TableRequest(files_max=2)


def identified(manifest: Manifest, start: Positions, end: Positions) -> list[tuple[int, int, bytes]]:
    ranges = ranges_between(manifest, start, end, TWO_FILES)
    rows = [row for each in ranges for some in read_rows(each) for row in some.to_pylist()]
    return [(row["incarnation"], row["offset"], row["body"]) for row in rows]


def batch(manifest: Manifest, start: Positions, end: Positions) -> list[bytes]:
    return [body for _, _, body in identified(manifest, start, end)]


def published(vhosts: list[str], count: int) -> StandbyUpstream:
    upstream = StandbyUpstream(vhosts)
    for number in range(count):
        for vhost in vhosts:
            upstream.publish(vhost, "q", [stored_message(f"{vhost}{number}".encode())])
    return upstream


def test_a_batch_has_some_files_of_each_vhost_and_ends_where_a_file_does(tmp_path: Path) -> None:
    manifest = transfer(published(["a", "b"], 4), tmp_path, chunks_per_file=1)
    position: Positions = {}
    found = []
    for _ in range(4):
        end = next_positions(manifest, position, TWO_FILES)
        found.append(sorted(batch(manifest, position, end)))
        position = end
    assert found == [[b"a%d" % number, b"b%d" % number] for number in range(4)]
    assert next_positions(manifest, position, TWO_FILES) == position == {"a": 4, "b": 4}
    assert next_positions(manifest, {}, TWO_FILES, until={"a": 1}) == {"a": 1}
    assert next_positions(manifest, {}, TableRequest(vhosts=frozenset("b"))) == {"b": 4}


@given(
    st.lists(st.sampled_from(["publish", "settle", "again", "return", "read", "compact"]), max_size=10),
    st.data(),
)
@settings(deadline=None, max_examples=25)
def test_each_message_that_was_not_settled_is_in_one_batch(moves: list[str], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        _each_once(Path(name), [*moves, "read"], data)


def _each_once(data_dir: Path, moves: list[str], data: st.DataObject) -> None:
    upstream = StandbyUpstream()
    position: Positions = {}
    found: list[tuple[int, int, bytes]] = []
    number = 0
    for move in ["publish", *moves]:
        log = upstream._incarnation("/", "q")
        if move == "publish":
            upstream.publish("/", "q", [stored_message(b"%d" % (number + i)) for i in range(2)])
            number += 2
        elif move == "settle":
            offset = data.draw(st.integers(0, log.next_offset - 1))
            upstream.settle("/", "q", [(offset, 1)])
        elif move == "again":
            upstream.copy_again("/", "q", 2)
        elif move == "return":
            before, copies, gone = log, list(log.copies), set(log.settled)
            upstream.settle("/", "q", [(0, before.next_offset)])
            epoch = before.epoch + (1 << INCARNATION_BITS)
            for offset, bodies, kind, at_ms in copies:
                upstream.logs["/"].append_copy("q", epoch, offset, bodies, kind, at_ms)
            after = type(before)(epoch, before.next_offset - 1, dict(before.messages), gone, copies)
            upstream.incarnations["/", "q"].append(after)
        manifest = transfer(upstream, data_dir, chunks_per_file=1)
        files = manifest.files()
        if move == "compact" and len(files) > 1:
            some = files[: data.draw(st.integers(1, len(files)))]
            manifest.append([compact(data_dir, some)], removed=[file.path for file in some])
        elif move == "read":
            while (end := next_positions(manifest, position, TWO_FILES)) != position:
                found += identified(manifest, position, end)
                position = end
    assert len(found) == len(set(found)), "each once"
    read = {body for _, _, body in found}
    assert read <= {b"%d" % each for each in range(number)}
    pending = {*upstream.unsettled("/", "q")}
    assert pending <= {stored_message(body) for body in read}, "what is pending was in some batch"


def test_what_a_compaction_merged_across_the_position_is_told_apart_or_refused(tmp_path: Path) -> None:
    transfer(published(["/"], 6), tmp_path, chunks_per_file=2)
    manifest = open_archive(str(tmp_path))
    files = manifest.files()
    manifest.append([compact(tmp_path, files)], removed=[file.path for file in files])
    assert batch(manifest, {"/": 2}, {"/": 4}) == [b"/2", b"/3"], "a batch once more, after the compaction"
    assert batch(manifest, {"/": 2}, {"/": 6}) == [b"/2", b"/3", b"/4", b"/5"]
    assert batch(manifest, {}, {"/": 6}) == [b"/%d" % number for number in range(6)]
    state = ManifestState(
        files=manifest.files(), next_by_log=dict(manifest.next_by_log), forgotten_by_vhost={}
    )
    manifest._take(manifest._entry(state=state))
    with pytest.raises(PreconditionFailed, match="a compaction merged messages that this stream has read"):
        batch(manifest, {"/": 2}, {"/": 6})
    assert batch(manifest, {}, {"/": 6}) == [b"/%d" % number for number in range(6)]


def test_a_position_beyond_the_archive_is_another_archives(tmp_path: Path) -> None:
    manifest = transfer(published(["/"], 2), tmp_path)
    with pytest.raises(PreconditionFailed, match="read up to offset 9, and the archive ends at 2"):
        batch(manifest, {"/": 2}, {"/": 9})
