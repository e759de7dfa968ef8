"""The order of an upstream cluster's logs, from what its nodes answer and what is stored."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.model.reasons import Reason
from leveret.pipeline.archive.manifest import Manifest, Moves
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.jobs.job import LoginCredentials, TransferJob
from leveret.pipeline.transfer.order import SiteOrder
from leveret.pipeline.transfer.upstream_logs import UpstreamLog
from leveret.pipeline.upstream.stream_client import UpstreamUnreachable
from leveret.testing.sites.standby_upstream import FakeOutgoingLog, stored_message
from leveret.wire.chunk import ChunkType
from leveret.wire.log_name import LABEL_PROPERTY, log_name
from leveret.wire.record import Settlement, encode_settlements
from leveret.wire.site_order import (
    EARLIER_LEADER,
    ORDER_STATISTIC,
    ORDER_STREAM,
    LogCoverage,
    mark_of,
    sum_of,
)

A, B = "a@x#1", "b@x#2"
QUEUES = ("q1", "q2", "q3")


class Node:
    """A node of the upstream: its link, its client, and what is stored of its log."""

    def __init__(self, label: str, data_dir: Path) -> None:
        self.label, self.log = label, log_name("v", label)
        self.coverage = LogCoverage(1, 0, led=0, known=0)
        self.is_open = True
        self.connection = SimpleNamespace(server_properties={LABEL_PROPERTY: label})
        self.statistics = {ORDER_STATISTIC: 1}
        self._data_dir = data_dir
        self._log = FakeOutgoingLog()
        self._chunks: list[bytes] = []

    def client(self, job: TransferJob) -> Node:
        if not self.is_open:
            raise UpstreamUnreachable(self.label)
        return self

    def stats(self, stream: str) -> dict[str, int]:
        return self.coverage._asdict() if stream == ORDER_STREAM else self.statistics

    def failed(self, error: Exception) -> None:
        """See UpstreamLink."""

    def settles(
        self, offset: int, reason: int = Reason.DEAD_LETTERED, queue: str = "source", at: int = 0
    ) -> None:
        body = encode_settlements([Settlement(reason, offset, 1)])
        self._add(queue, at, body, ChunkType.TRACKING)

    def copies(self, queue: str = "dead", at: int = 0) -> None:
        self._add(queue, at, stored_message(b"m"), ChunkType.USER)

    def _add(self, queue: str, at: int, body: bytes, kind: ChunkType) -> None:
        self._chunks.append(self._log.append_copy(queue, 1, at, [body], kind, 1000))
        self.coverage = self.coverage._replace(end=self.end)

    @property
    def end(self) -> int:
        return self._log.committed_offset

    def store(self, manifest: Manifest) -> None:
        if not self._chunks:
            return
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
    whole = site.b.coverage
    match lack:
        case "missed":
            site.is_missed = True
        case "silent":
            site.b.is_open = False
        case _:
            site.b.coverage = whole._replace(**{lack: -1 if lack == "end" else 9})
    site.b.store(site.manifest)
    assert not site.counts()
    site.b.coverage, site.is_missed, site.b.is_open = whole, False, True
    assert site.counts()


def test_an_end_that_another_writer_named_does_not_count(site: Site) -> None:
    """The node lost its power: what was behind the durable end is another record by now."""
    assert not site.counts()
    site.writers[site.b.log] = (7, 2)
    site.b.store(site.manifest)
    assert not site.counts()
    site.b.coverage = site.b.coverage._replace(writer=2)
    assert site.counts()


def test_a_node_that_is_lost_before_its_end_is_stored_holds_no_later_move_back(site: Site) -> None:
    assert not site.counts()
    site.b.is_open = False
    assert not site.counts()
    # Another node leads its queues and has collected them.
    site.b.is_open = True
    site.b.coverage = LogCoverage(1, 0, 0, 0)
    site.a.copies()
    site.a.store(site.manifest)
    assert site.counts()


def test_nodes_of_earlier_versions_are_not_asked(site: Site) -> None:
    site.b.statistics = {}
    assert site.counts()


class Cascade:
    """Queues whose messages die into each other, led by two nodes that hand them over; no message is ever consumed.

    A new leader copies what the queue holds some time later.
    """

    def __init__(self, site: Site, random: Random) -> None:
        self._site, self._random = site, random
        self._nodes = [site.a, site.b]
        self._leader = {name: random.choice(self._nodes) for name in QUEUES}
        self._held: dict[str, dict[int, int]] = {name: {} for name in QUEUES}
        """By queue, the messages by offset."""
        self._ends = dict.fromkeys(QUEUES, 0)
        self._uncopied: set[str] = set()
        self._published = 0
        self.entries: dict[str, list[tuple[str, int, int]]] = {each.log: [] for each in self._nodes}
        """By log, (queue, offset, message) of copies; -1 for a move."""

    def step(self) -> None:
        """Do anything that a site does, or its downstream."""
        name, other = self._random.sample(QUEUES, 2)
        match self._random.choice(("publish", "die", "die", "hand over", "copy", "store", "store", "turn")):
            case "publish":
                self._append(name, self._published)
                self._published += 1
            case "die" if self._held[name]:
                offset = min(self._held[name])
                self._append(other, self._held[name].pop(offset))
                self._log(name, offset, -1, Reason.DEAD_LETTERED)
            case "hand over":
                leader = self._leader[name]
                self._leader[name] = self._nodes[leader is self._nodes[0]]
                self._uncopied.add(name)
            case "copy":
                self._copy(name)
            case "store":
                self._random.choice(self._nodes).store(self._site.manifest)
            case "turn":
                self.ask()

    def ask(self) -> bool:
        """Take a turn, with the coverages of now; return whether all moves count."""
        for node in self._nodes:
            is_whole = all(self._leader[name] is not node for name in self._uncopied)
            led = sum_of(sum(mark_of(name, 1) for name in QUEUES if self._leader[name] is node))
            known = sum_of(sum(mark_of(name, 1) for name in QUEUES))
            node.coverage = LogCoverage(1, node.end if is_whole else -1, led, known)
        return self._site.counts()

    def rest(self) -> bool:
        """Copy and store everything; return whether all moves count then."""
        for name in QUEUES:
            self._copy(name)
        for node in self._nodes:
            node.store(self._site.manifest)
        return self.ask() or self.ask()

    def _append(self, name: str, message: int) -> None:
        offset = self._ends[name]
        self._ends[name] += 1
        self._held[name][offset] = message
        if name not in self._uncopied:
            self._add(name, offset, message)

    def _add(self, name: str, offset: int, message: int) -> None:
        self._leader[name].copies(name, offset)
        self.entries[self._leader[name].log].append((name, offset, message))

    def _log(self, name: str, offset: int, message: int, reason: int) -> None:
        if name not in self._uncopied:
            self._leader[name].settles(offset, reason, name, self._ends[name])
            self.entries[self._leader[name].log].append((name, offset, message))
            self._ends[name] += 1

    def _copy(self, name: str) -> None:
        if name in self._uncopied:
            self._uncopied.discard(name)
            held = self._held[name]
            for offset in range(self._ends[name]):
                if offset in held:
                    self._add(name, offset, held[offset])
                else:
                    self._log(name, offset, -1, EARLIER_LEADER)

    def judge(self) -> None:
        """Each message that was ever stored would be recovered into one queue at least."""
        manifest = self._site.manifest
        stored: dict[tuple[str, int], int] = {}
        settled: set[tuple[str, int]] = set()
        for file in manifest.files():
            for name, offset, message in self.entries[file.log][file.first : file.next]:
                if message >= 0:
                    stored[name, offset] = message
                elif file.moves is not Moves.WAIT:
                    settled.add((name, offset))
        left = {message for place, message in stored.items() if place not in settled}
        assert left == set(stored.values())


@pytest.mark.parametrize("seed", range(8))
def test_no_message_of_a_cascade_is_ever_in_no_queue(tmp_path: Path, seed: int) -> None:
    cascade = Cascade(Site(tmp_path), Random(seed))
    for _ in range(60):
        cascade.step()
        cascade.judge()
    assert cascade.rest(), "nothing waits for ever"
    cascade.judge()
