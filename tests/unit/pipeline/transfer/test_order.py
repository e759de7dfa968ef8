"""The order of an upstream cluster's logs, from what its nodes answer and what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leveret.model.reasons import Reason
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.jobs.job import LoginCredentials, TransferJob
from leveret.pipeline.transfer.order import SiteOrder
from leveret.pipeline.transfer.upstream_logs import UpstreamLog
from leveret.pipeline.upstream.stream_client import UpstreamUnreachable
from leveret.testing.sites.standby_upstream import FakeOutgoingLog, stored_message
from leveret.wire.chunk import ChunkType
from leveret.wire.log_name import log_name
from leveret.wire.record import Settlement, encode_settlements
from leveret.wire.site_order import ORDER_STATISTIC, ORDER_STREAM, LogStanding

A, B = "a@x#1", "b@x#2"


class Node:
    """A node of the upstream: its link, its client, and what is stored of its log."""

    def __init__(self, label: str, data_dir: Path) -> None:
        self.label, self.log = label, log_name("v", label)
        self.standing = LogStanding(1, 0, led=0, known=0)
        self.is_open = True
        self.statistics = {ORDER_STATISTIC: 1}
        self._data_dir = data_dir
        self._log = FakeOutgoingLog()
        self._chunks: list[bytes] = []

    def client(self, job: TransferJob) -> Node:
        if not self.is_open:
            raise UpstreamUnreachable(self.label)
        return self

    def stats(self, stream: str) -> dict[str, int]:
        return self.standing._asdict() if stream == ORDER_STREAM else self.statistics

    def failed(self, error: Exception) -> None:
        """See UpstreamLink."""

    def settles(self, offset: int, reason: int = Reason.DEAD_LETTERED) -> None:
        body = encode_settlements([Settlement(reason, offset, 1)])
        self._add("source", body, ChunkType.TRACKING)

    def copies(self) -> None:
        self._add("dead", stored_message(b"m"), ChunkType.USER)

    def _add(self, queue: str, body: bytes, kind: ChunkType) -> None:
        self._chunks.append(self._log.append_copy(queue, 1, self.end, [body], kind, 1000))
        self.standing = self.standing._replace(end=self.end)

    @property
    def end(self) -> int:
        return self._log.committed_offset

    def store(self, manifest: Manifest) -> None:
        file = store_range(self._data_dir, "v", self._chunks, node=self.label, is_of_cluster=True)
        assert file is not None
        manifest.append([file])
        self._chunks.clear()


class Site:
    """An upstream of two nodes, and the archive of its downstream: what SiteOrder uses of UpstreamLogs."""

    def __init__(self, data_dir: Path) -> None:
        self.manifest = Manifest(data_dir)
        self.a, self.b = Node(A, data_dir), Node(B, data_dir)
        self.is_missed = False
        self.writers = {each.log: (7, 1) for each in (self.a, self.b)}
        job = TransferJob(
            data_dir=str(data_dir),
            reference="eu.2",
            endpoints=[],
            credentials=LoginCredentials(username="", password=""),
            vhosts=["v"],
        )
        upstream: Any = self
        self._order = SiteOrder(job, upstream, self.writers)

    def all_of(self, vhost: str) -> list[UpstreamLog]:
        if self.is_missed:
            raise UpstreamUnreachable("missed")
        nodes: list[Any] = [self.a, self.b]
        return [UpstreamLog(each.log, each, each.label, "one") for each in nodes]

    def links(self) -> list[tuple[str, Node]]:
        return [(each.log, each) for each in (self.a, self.b)]

    def counts(self) -> bool:
        """Take a turn; return whether all moves count."""
        self._order.turn(self.manifest)
        return not self.manifest.waiting


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """B has a dead letter that is not stored here yet; A's settlement of the original is."""
    site = Site(tmp_path)
    site.b.copies()
    site.a.settles(0)
    site.a.store(site.manifest)
    return site


def test_a_move_counts_when_the_copy_is_stored(site: Site) -> None:
    assert not site.counts()
    assert not site.counts()
    site.b.store(site.manifest)
    assert site.counts()


def test_a_move_that_is_stored_after_the_question_waits_for_the_next_one(site: Site) -> None:
    assert not site.counts()
    site.a.settles(1)
    site.a.store(site.manifest)
    site.b.copies()
    site.b.store(site.manifest)
    assert not site.counts()
    assert [file.first for file in site.manifest.waiting.values()] == [1]
    assert site.counts()


@pytest.mark.parametrize("lack", ["end", "led", "known", "missed", "silent"])
def test_no_move_counts_while_something_may_be_elsewhere(site: Site, lack: str) -> None:
    whole = site.b.standing
    match lack:
        case "missed":
            site.is_missed = True
        case "silent":
            site.b.is_open = False
        case _:
            site.b.standing = whole._replace(**{lack: -1 if lack == "end" else 9})
    site.b.store(site.manifest)
    assert not site.counts()
    site.b.standing, site.is_missed, site.b.is_open = whole, False, True
    assert site.counts()


def test_an_end_that_another_writer_named_does_not_count(site: Site) -> None:
    """The node lost its power: what was behind the durable end is another record by now."""
    assert not site.counts()
    site.writers[site.b.log] = (7, 2)
    site.b.store(site.manifest)
    assert not site.counts()
    site.b.standing = site.b.standing._replace(writer=2)
    assert site.counts()


def test_a_node_that_is_lost_before_its_end_is_stored_holds_no_later_move_back(site: Site) -> None:
    assert not site.counts()
    site.b.is_open = False
    assert not site.counts()
    # Another node leads its queues and has collected them.
    site.b.is_open = True
    site.b.standing = LogStanding(1, 0, 0, 0)
    site.a.copies()
    site.a.store(site.manifest)
    assert site.counts()


def test_nodes_of_earlier_versions_are_not_asked(site: Site) -> None:
    site.b.statistics = {}
    assert site.counts()
