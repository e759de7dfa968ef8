"""An archive of a vhost that several nodes of a cluster collect: their logs say together what one log would say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from leveret.model.reasons import Reason
from leveret.pipeline.archive import compact as compact_module
from leveret.pipeline.archive import manifest_storage
from leveret.pipeline.archive.compact import compact, due
from leveret.pipeline.archive.contents import contents
from leveret.pipeline.archive.identities import AnotherLog, UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.recovery_plan import read_order
from leveret.pipeline.archive.settlements import CLOCKS_MS
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.jobs.job import EVERYTHING, Selection
from leveret.pipeline.table.positions import next_positions, ranges_between
from leveret.pipeline.table.request import TableRequest
from leveret.pipeline.table.scan import read_rows
from leveret.testing.sites.standby_archive import freeze_plan
from leveret.testing.sites.standby_upstream import FakeOutgoingLog, stored_message
from leveret.wire.chunk import ChunkType
from leveret.wire.incarnation import INCARNATION_BITS, next_count
from leveret.wire.log_name import label_of, log_name, vhost_of
from leveret.wire.record import Settlement, encode_settlements
from leveret.wire.site_order import MOVES

A, B = "a@x#11111111", "b@x#22222222"
EPOCH = 7
RENUMBERED = EPOCH + (next_count(0, renumbers=True) << INCARNATION_BITS)


class Node:
    """What one node collects of queue q, stored in files of one chunk or two."""

    def __init__(self, label: str, data_dir: Path) -> None:
        self.label = label
        self._data_dir = data_dir
        self._log = FakeOutgoingLog()
        self._chunks: list[bytes] = []

    def messages(self, offset: int, numbers: Sequence[int], epoch: int = EPOCH) -> None:
        bodies = [stored_message(b"%d" % number) for number in numbers]
        self._chunks.append(self._log.append_copy("q", epoch, offset, bodies, ChunkType.USER, 1000))

    def settle(
        self, at: int, *ranges: tuple[int, int], epoch: int = EPOCH, reason: int = 0, at_ms: int = 1000
    ) -> None:
        body = encode_settlements([Settlement(reason, first, count) for first, count in ranges])
        self._chunks.append(self._log.append_copy("q", epoch, at, [body], ChunkType.TRACKING, at_ms))

    def store(self, manifest: Manifest) -> None:
        file = store_range(self._data_dir, "v", self._chunks, node=self.label, is_of_cluster=bool(self.label))
        assert file is not None
        manifest.append([file])
        self._chunks.clear()


def recovered(manifest: Manifest, selection: Selection = EVERYTHING) -> list[tuple[int, int]]:
    """(incarnation, offset) of what a recovery would bring."""
    directory = freeze_plan(manifest, "v", selection)
    if directory is None:
        return []
    plan = directory.load()
    order = read_order(directory.runs, [part for part in plan.parts if part.queue == "q"])
    return list(zip(order.epochs.tolist(), order.offsets.tolist(), strict=True))


@pytest.fixture
def failed_over(tmp_path: Path) -> Manifest:
    """A leads 0 to 9 and settles some; B takes over with what is left from 4 on, settles some, and gets more."""
    manifest, a, b = Manifest(tmp_path), Node(A, tmp_path), Node(B, tmp_path)
    a.messages(0, range(10))
    a.settle(10, (0, 3))
    a.store(manifest)
    b.messages(5, range(5, 10))
    b.settle(4, (0, 5))
    b.settle(10, (0, 3))
    b.store(manifest)
    b.messages(11, [11, 12])
    b.settle(13, (6, 1), (12, 1))
    b.store(manifest)
    return manifest


def test_what_two_nodes_collected_counts_once_and_is_settled_by_either(failed_over: Manifest) -> None:
    assert failed_over.vhosts == ["v"]
    assert failed_over.next_by_log == {log_name("v", A): 11, log_name("v", B): 10}
    assert recovered(failed_over) == [(EPOCH, offset) for offset in (5, 7, 8, 9, 11)]


def test_a_compaction_of_one_log_leaves_what_the_other_settles(failed_over: Manifest) -> None:
    files = failed_over.files_of_log(log_name("v", B))
    merged = compact(failed_over.data_dir, files)
    failed_over.append([merged], removed=[each.path for each in files])
    assert recovered(Manifest(failed_over.data_dir)) == [(EPOCH, offset) for offset in (5, 7, 8, 9, 11)]


def test_a_stream_of_the_table_has_each_message_once_whichever_log_comes_first(failed_over: Manifest) -> None:
    request, found = TableRequest(files_max=1), []
    position: dict[str, int] = {}
    while (end := next_positions(failed_over, position, request)) != position:
        ranges = ranges_between(failed_over, position, end, request)
        found += [row["offset"] for each in ranges for some in read_rows(each) for row in some.to_pylist()]
        position = end
    assert sorted(found) == [*range(10), 11, 12]


def test_of_an_offset_that_was_given_twice_the_later_numbering_counts(tmp_path: Path) -> None:
    manifest, a, b = Manifest(tmp_path), Node(A, tmp_path), Node(B, tmp_path)
    a.messages(0, range(10))
    a.store(manifest)
    assert recovered(manifest) == [(EPOCH, offset) for offset in range(10)]
    b.settle(1, (0, 2), epoch=RENUMBERED)
    b.messages(2, range(2, 6), epoch=RENUMBERED)
    b.messages(6, [106, 107], epoch=RENUMBERED)
    b.store(manifest)
    later = [(RENUMBERED, offset) for offset in range(2, 8)]
    assert recovered(manifest) == [(EPOCH, 8), (EPOCH, 9), *later], "its end is yet to come"
    b.settle(10, (0, 10))
    b.store(manifest)
    assert recovered(manifest) == later


def test_a_compaction_remembers_a_later_numbering_of_which_nothing_is_left(tmp_path: Path) -> None:
    """The earlier one, in the log of the node that led before, has not ended yet."""
    manifest, a, b = Manifest(tmp_path), Node(A, tmp_path), Node(B, tmp_path)
    a.messages(0, range(6))
    a.store(manifest)
    b.messages(0, range(4), epoch=RENUMBERED)
    b.settle(4, (0, 4), epoch=RENUMBERED)
    b.store(manifest)
    assert recovered(manifest) == [(EPOCH, 5)], "what the next leader lacked"
    for _ in range(2):
        files = manifest.files_of_log(log_name("v", B))
        manifest.append([compact(tmp_path, files)], removed=[file.path for file in files])
        assert recovered(Manifest(tmp_path)) == [(EPOCH, 5)]
        b.settle(0, (0, 1), epoch=EPOCH + 1)
        b.store(manifest)
    b.settle(6, (0, 6))
    b.store(manifest)
    assert recovered(Manifest(tmp_path)) == []


@pytest.mark.parametrize("reason", MOVES)
def test_a_move_counts_once_the_logs_are_ordered_up_to_it_and_an_ack_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    monkeypatch.setattr(compact_module, "FILES_MIN", 1)
    manifest, a = Manifest(tmp_path), Node(A, tmp_path)
    a.messages(0, range(4))
    a.settle(4, (0, 1))
    a.settle(5, (1, 1), reason=reason)
    a.store(manifest)
    a.settle(6, (2, 1), reason=reason)
    a.store(manifest)
    log = log_name("v", A)
    assert [len(manifest.waiting), recovered(manifest)] == [2, [(EPOCH, 1), (EPOCH, 2), (EPOCH, 3)]]
    assert due(manifest, log, 10**6, bytes_max=0, retain_ms=0) == [], "compaction would lose it"
    manifest.order({log: 6, log_name("v", B): 3})
    assert recovered(manifest) == [(EPOCH, 2), (EPOCH, 3)]
    assert [file.next for file in due(manifest, log, 10**6, bytes_max=0, retain_ms=0)] == [6]
    other = Manifest(tmp_path)
    assert [len(other.waiting), recovered(other)] == [1, [(EPOCH, 2), (EPOCH, 3)]]
    before = other.number
    other.order({log: 6})
    assert other.number == before, "no entry for what is known"
    other.order({log: 7})
    manifest.refresh()
    assert [manifest.waiting, recovered(manifest)] == [{}, [(EPOCH, 3)]]


def test_a_stream_of_the_table_shows_moves_as_settled_once_they_count(tmp_path: Path) -> None:
    manifest, a, b = Manifest(tmp_path), Node(A, tmp_path), Node(B, tmp_path)
    a.messages(0, range(3))
    a.store(manifest)
    b.settle(3, (1, 1), reason=Reason.DEAD_LETTERED)
    b.store(manifest)
    request = TableRequest(state="pending")
    for offsets in ([0, 1, 2], [0, 2]):
        end = next_positions(manifest, {}, request)
        ranges = ranges_between(manifest, {}, end, request)
        assert [
            row["offset"] for each in ranges for some in read_rows(each) for row in some.to_pylist()
        ] == offsets
        manifest.order({log_name("v", B): 1})


def test_the_moves_of_a_single_node_are_in_one_order(tmp_path: Path) -> None:
    manifest, single = Manifest(tmp_path), Node("", tmp_path)
    single.messages(0, range(2))
    single.settle(2, (0, 1), reason=Reason.DEAD_LETTERED)
    single.store(manifest)
    assert [manifest.waiting, recovered(manifest)] == [{}, [(EPOCH, 1)]]


def test_as_of_a_moment_a_move_just_before_it_leaves_the_message_where_it_was(tmp_path: Path) -> None:
    """The clock of the node with the copy may be ahead, so that the copy came after the moment."""
    manifest, a = Manifest(tmp_path), Node(A, tmp_path)
    a.messages(0, range(3))
    a.settle(3, (0, 1), reason=Reason.DEAD_LETTERED, at_ms=2000)
    a.settle(4, (1, 1), at_ms=2000)
    a.store(manifest)
    manifest.order({log_name("v", A): 5})
    for as_of_ms, offsets in ((2000 + CLOCKS_MS - 1, [0, 2]), (2000 + CLOCKS_MS, [2])):
        assert recovered(manifest, Selection(as_of_ms=as_of_ms)) == [(EPOCH, each) for each in offsets]


def test_a_shortened_manifest_knows_which_moves_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, a = Manifest(tmp_path), Node(A, tmp_path)
    for at in range(0, 6, 2):
        a.messages(at, [at])
        a.settle(at + 1, (at, 1), reason=Reason.DEAD_LETTERED)
        a.store(manifest)
        if at == 2:
            manifest.order({log_name("v", A): 2})
            monkeypatch.setattr(manifest_storage, "LOG_BYTES_MAX", 1)
    known = Manifest(tmp_path)
    assert known.entries[0].state is not None
    assert sorted(file.first for file in known.waiting.values()) == [2, 4]


def test_only_entries_that_name_nodes_have_the_second_format(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    single = Node("", tmp_path)
    single.messages(0, [0])
    single.store(manifest)
    node = Node(A, tmp_path)
    node.messages(0, [0])
    node.store(manifest)
    assert [entry.format for entry in manifest.entries] == [1, 2]
    assert [msgspec.to_builtins(entry)["format"] for entry in Manifest(tmp_path).entries] == [1, 2]
    [row] = contents(tmp_path)["vhosts"]
    assert (row["transferred"], row["files"]) == (2, 2)


def test_forgetting_a_vhost_forgets_the_logs_of_all_nodes(failed_over: Manifest) -> None:
    failed_over.forget(["v"])
    assert Manifest(failed_over.data_dir).next_by_log == {}


def test_two_clusters_are_never_one_archive(tmp_path: Path) -> None:
    identities = UpstreamIdentities(tmp_path)
    identities.check(log_name("v", A), 1, has_data=False, site="one")
    identities.check(log_name("v", B), 2, has_data=False, site="one", beside=[log_name("v", A)])
    with pytest.raises(AnotherLog, match="vhost 'v' at node 'b@y'"):
        identities.check(log_name("v", "b@y#3"), 3, has_data=False, site="two", beside=[log_name("v", A)])
    identities.check("w", 4, has_data=True)
    identities.note_founder("w", A, "one")
    identities.check("w", 4, has_data=True, site="one")
    assert UpstreamIdentities(tmp_path).of("w").label == A


@pytest.mark.parametrize(("vhost", "label"), [("v", ""), ("v", A), ("a\0b", ""), ("a\0b", A), ("\0", "")])
def test_the_name_of_a_log_tells_its_vhost_and_its_node(vhost: str, label: str) -> None:
    name = log_name(vhost, label)
    assert (vhost_of(name), label_of(name)) == (vhost, label)
