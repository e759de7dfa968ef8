"""runtime.integrity.divergent: the messages that were set aside are those that a queue and a stream were given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from leveret.core.queues.messages import alike
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import NotFound
from leveret.runtime.integrity import divergent
from leveret.runtime.integrity.divergent import DivergentParts, divergent_messages, divergent_reports
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.log_store import LogStore
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport
from leveret.storage.tree import Tree
from tests.unit.runtime.collecting.site import head_of

QUEUE = "queues/0000000000000007"
STREAM = "streams/0000000000000008"
NAMES = {QUEUE: ("v", "q"), STREAM: ("v", "s")}


def fail(error: BaseException) -> None:
    raise AssertionError(error)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Of a node whose queue had five messages, of which it gave away two, and whose stream had three."""
    commit = GroupCommit(fsync=False, on_failure=fail)
    stores = LogStore(Tree(tmp_path), commit, lambda: 1234, 300)
    queue = Queue(QueueDefinition(name="q", vhost="v", epoch=7), stores.read)
    stream = Stream(QueueDefinition(name="s", vhost="v", epoch=8), stores.read)
    for body in (b"one", b"two", b"three", b"four", b"\xff"):
        queue.gathered.add(alike(head_of(len(body)), [body]))
        stores.append_messages(queue)
        if len(body) <= 3:
            stream.gathered.add(alike(head_of(len(body)), [body]))
            stores.append_messages(stream)
    for offset in (1, 3):
        queue.settle(offset, 1)
        stores.append_settlements(queue)
    stores.close()
    commit.close()
    return tmp_path


def quarantine(data_dir: Path, at_ms: int, **offsets: int) -> str:
    join = DivergentReport.begun(at_ms, from_epoch=1, to_epoch=2, node_id="here", leader_id="there")
    quarantine = Quarantine(data_dir, join, NAMES.get)
    for kind, path in (("queue", QUEUE), ("stream", STREAM)):
        if kind in offsets:
            quarantine.add(path, offsets[kind])
    report = quarantine.finish()
    assert report is not None
    return report.id


def test_nothing_was_set_aside(tmp_path: Path) -> None:
    assert divergent_reports(tmp_path) == []
    assert list(divergent_messages(tmp_path, None)) == []


def test_messages_are_listed_as_they_were_published(data_dir: Path) -> None:
    report = quarantine(data_dir, 0, queue=2, stream=1)
    found = list(divergent_messages(data_dir, None))
    assert [
        (row["queue"], row["offset"], row["payload"], row["payload_encoding"], row["settled"])
        for row in found
    ] == [
        ("q", 2, "three", "string", False),
        ("q", 3, "four", "string", True),
        ("q", 4, "/w==", "base64", False),
        ("s", 1, "two", "string", False),
        ("s", 2, "/w==", "base64", False),
    ]
    assert {(row["report"], row["vhost"], row["timestamp_ms"]) for row in found} == {(report, "v", 1234)}
    (summary,) = divergent_reports(data_dir)
    assert (summary["messages"], summary["settlements"], summary["settlements_lost"]) == (5, 2, 1)
    assert summary["queues"] == [
        {"vhost": "v", "queue": "q", "messages": 3},
        {"vhost": "v", "queue": "s", "messages": 2},
    ]


def test_a_tail_of_settlements_alone_is_kept_and_makes_no_report(data_dir: Path) -> None:
    """Their messages are delivered again by the leader: a report of 0 messages asks an operator for nothing."""
    report = quarantine(data_dir, 0, queue=5)
    assert divergent_reports(data_dir) == []
    assert list((data_dir / "divergent" / report / QUEUE).glob("*.segment"))
    quarantine(data_dir, 90_000, queue=5, stream=1)
    (summary,) = divergent_reports(data_dir)
    assert summary["queues"] == [{"vhost": "v", "queue": "s", "messages": 2}]
    assert summary["settlements_lost"] == 2


def test_messages_of_one_report_are_listed(data_dir: Path) -> None:
    earlier = quarantine(data_dir, 5000, stream=1)
    later = quarantine(data_dir, 90_000, queue=4)
    assert [report["id"] for report in divergent_reports(data_dir)] == [earlier, later]
    assert [row["queue"] for row in divergent_messages(data_dir, later)] == ["q"]
    assert [row["queue"] for row in divergent_messages(data_dir, None)] == ["s", "s", "q"]
    with pytest.raises(NotFound):
        next(divergent_messages(data_dir, "20260101T000000-e9"))


def test_parts_are_read_on_where_the_one_before_ended(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with 500,000 quarantined messages read all earlier ones again for each part, longer than anyone waits."""
    quarantine(data_dir, 0, queue=0, stream=0)
    whole = list(divergent_messages(data_dir, None))
    read = list[int]()

    def counted(folder: Path, report_id: str | None) -> Iterator[dict[str, Any]]:
        for row in divergent_messages(folder, report_id):
            read.append(row["offset"])
            yield row

    monkeypatch.setattr(divergent, "divergent_messages", counted)
    parts = DivergentParts(data_dir)

    def part(first: int, count: int) -> list[dict[str, Any]]:
        with closing(parts.read(None, first)) as rows:
            return list(islice(rows, count))

    assert [*part(0, 3), *part(3, 3), *part(6, 9)] == whole
    assert len(read) == len(whole) == 8
    assert part(3, 3) == whole[3:6], "asked for again, as after a lost answer"
    assert len(read) == 8 + 6
    monkeypatch.setattr(divergent, "_WAITING_S", -1.0)
    assert part(6, 1) == whole[6:7]
    assert len(read) == 8 + 6 + 7, "nobody has continued for long"
    for first in range(7):
        part(first, 1)
    assert len(parts._waiting) <= 4


def test_damage_is_listed_and_what_is_behind_it(data_dir: Path) -> None:
    quarantine(data_dir, 0, queue=0)
    (first, *_) = sorted((data_dir / "divergent").glob(f"*/{QUEUE}/*.segment"))
    octets = bytearray(first.read_bytes())
    octets[60] ^= 1
    first.write_bytes(octets)
    found = list(divergent_messages(data_dir, None))
    assert [(row["offset"], row["payload"]) for row in found][1:] == [
        (1, "two"), (2, "three"), (3, "four"), (4, "/w=="),
    ]  # fmt: skip
    assert found[0]["offset"] == 0
    assert "CRC of its data does not match" in found[0]["damage"]


def test_files_that_were_taken_away_are_told(data_dir: Path) -> None:
    quarantine(data_dir, 0, stream=1)
    for path in (data_dir / "divergent").glob(f"*/{STREAM}/*.segment"):
        path.unlink()
    (row,) = divergent_messages(data_dir, None)
    assert "files are missing" in row["damage"]
