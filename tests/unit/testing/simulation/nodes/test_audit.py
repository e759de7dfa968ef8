"""What is confirmed is on the disks of whoever is counted on, or the audit says who lacks it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.runtime.logs.log_home import directory_of
from leveret.storage.log import Log
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.machine.disk import SimulatedDisk
from leveret.testing.simulation.nodes.audit import CountedOn, PromiseAudit, SegmentHeads
from leveret.wire.chunk import HEADER_BYTES, encode_header

EPOCH = 7
LOG = f"queues/{directory_of(EPOCH)}"


def node(folder: Path, name: str) -> Any:
    (folder / name).mkdir()
    return SimpleNamespace(name=name, data_dir=folder / name, is_open=True, is_up=True)


def written(data_dir: Path, disk: SimulatedDisk, *, synced: bool, text: bytes = b"a message") -> None:
    log = Log(data_dir / LOG, epoch=1)
    log.open(sync=False)
    log.append(0, 1, 1, text, 0)
    log.close()
    if synced:
        disk.settle(data_dir)


@pytest.mark.parametrize(("needed", "is_fault"), [(1, False), (2, True)])
def test_a_promise_that_rests_on_a_page_in_memory_is_found(
    tmp_path: Path, needed: int, is_fault: bool
) -> None:
    nodes = [node(tmp_path, name) for name in ("n1", "n2")]
    with SimulatedDisk(tmp_path) as disk:
        written(nodes[0].data_dir, disk, synced=True)
        written(nodes[1].data_dir, disk, synced=False)
        audit = PromiseAudit(disk, nodes)
        audit.confirmed[EPOCH] = 1
        counted_on = CountedOn(frozenset(("n1", "n2")), needed)
        if is_fault:
            with pytest.raises(BooksFault, match="n2 has it up to"):
                audit.judge(EPOCH, counted_on)
            disk.settle(nodes[1].data_dir)
        audit.judge(EPOCH, counted_on)


def test_a_copy_that_begins_behind_what_is_unsettled_is_found(tmp_path: Path) -> None:
    nodes = [node(tmp_path, "n1")]
    with SimulatedDisk(tmp_path) as disk:
        log = Log(nodes[0].data_dir / LOG, epoch=1)
        log.open(first_offset=5, sync=False)
        log.append(0, 1, 1, b"a message", 0)
        disk.settle(nodes[0].data_dir)
        audit = PromiseAudit(disk, nodes)
        audit.confirmed[EPOCH] = 6
        audit.judge(EPOCH, CountedOn(frozenset(("n1",)), 1), floor=5)
        with pytest.raises(BooksFault, match="from 5 on, and 3 is not settled"):
            audit.judge(EPOCH, CountedOn(frozenset(("n1",)), 1), floor=3)
        log.close()


def test_a_copy_with_another_chunk_at_the_confirmed_end_is_found(tmp_path: Path) -> None:
    nodes = [node(tmp_path, name) for name in ("n1", "n2", "n3")]
    with SimulatedDisk(tmp_path) as disk:
        for each in nodes[:2]:
            written(each.data_dir, disk, synced=True)
        written(nodes[2].data_dir, disk, synced=True, text=b"another one")
        audit = PromiseAudit(disk, nodes)
        audit.confirm("n1", EPOCH, 1)
        audit.judge(EPOCH, CountedOn(frozenset(("n1", "n2")), 2))
        with pytest.raises(BooksFault, match="n3 has other records before 1"):
            audit.judge(EPOCH, CountedOn(frozenset(("n1", "n3")), 2))


def test_a_copy_that_was_removed_is_missed_before_the_removal_is_synced(tmp_path: Path) -> None:
    nodes, removals = [node(tmp_path, "n1")], list[bool]()
    with SimulatedDisk(tmp_path) as disk:
        written(nodes[0].data_dir, disk, synced=True)
        audit = PromiseAudit(disk, nodes)
        audit.confirm("n1", EPOCH, 1)
        disk.on_removed = lambda: removals.append(True)
        for path in (nodes[0].data_dir / LOG).iterdir():
            path.unlink()
        assert removals
        with pytest.raises(BooksFault, match="n1 has it up to nowhere"):
            audit.judge(EPOCH, CountedOn(frozenset(("n1",)), 1))


def test_what_a_leader_takes_for_acked_is_on_the_disk_of_the_mirror(tmp_path: Path) -> None:
    nodes = [node(tmp_path, "n1")]
    with SimulatedDisk(tmp_path) as disk:
        written(nodes[0].data_dir, disk, synced=False)
        audit = PromiseAudit(disk, nodes)
        audit.acked("n2", "n1", LOG, 0)
        with pytest.raises(BooksFault, match=r"n2 counts on n1 for .* up to 1; its disk has it up to"):
            audit.acked("n2", "n1", LOG, 1)
        disk.settle(nodes[0].data_dir)
        audit.acked("n2", "n1", LOG, 1)


def test_a_damaged_copy_is_examined_again_once_a_record_without_it_was_written(tmp_path: Path) -> None:
    nodes = [node(tmp_path, name) for name in ("n1", "n2")]
    both, one = CountedOn(frozenset(("n1", "n2")), 2), CountedOn(frozenset(("n1",)), 1)
    with SimulatedDisk(tmp_path) as disk:
        written(nodes[0].data_dir, disk, synced=True)
        audit = PromiseAudit(disk, nodes)
        audit.confirm("n1", EPOCH, 1)
        audit.damaged(nodes[1].data_dir / LOG / "removed")
        audit.recorded(EPOCH, both)
        audit.judge(EPOCH, both)
        nodes[1].is_up = False
        audit.recorded(EPOCH, one)
        audit.judge(EPOCH, both)
        nodes[1].is_up = True
        audit.recorded(EPOCH, one)
        with pytest.raises(BooksFault, match="n2 has it up to nowhere"):
            audit.judge(EPOCH, both)


def chunk(offset: int, data: bytes) -> bytes:
    return encode_header(0, 1, 1, 0, 1, offset, 0, len(data)) + data


@pytest.mark.parametrize(
    "after",
    [
        chunk(0, b"a") + chunk(1, b"b") + bytes(HEADER_BYTES),
        chunk(0, b"other") + chunk(1, b"b"),
        chunk(0, b"a")[:-1],
        b"",
    ],
)
def test_a_segment_that_was_read_before_has_the_chunks_that_it_has_now(after: bytes) -> None:
    again, fresh = SegmentHeads(), SegmentHeads()
    again.read(chunk(0, b"a") + chunk(1, b"b")[:-1])
    assert (again.end, list(again.heads)) == (1, [1])
    again.read(after)
    fresh.read(after)
    assert (again.end, again.heads) == (fresh.end, fresh.heads)


@pytest.mark.parametrize(("is_open", "is_removed"), [(True, True), (False, False), (False, True)])
def test_an_ack_may_be_under_way_from_a_node_that_ended_and_whose_log_was_removed(
    tmp_path: Path, is_open: bool, is_removed: bool
) -> None:
    """The world took one, 25 ms after it had removed the log, for an ack that came too early (2026-11-30)."""
    mirror = node(tmp_path, "n2")
    mirror.is_open = is_open
    with SimulatedDisk(tmp_path) as disk:
        audit = PromiseAudit(disk, [mirror])
        if is_removed:
            audit.damaged(mirror.data_dir / LOG / "removed")
        if is_removed and not is_open:
            audit.acked("n1", "n2", LOG, 18)
        else:
            with pytest.raises(BooksFault, match="counts on n2"):
                audit.acked("n1", "n2", LOG, 18)
