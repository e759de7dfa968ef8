"""What was transferred, counted by Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.progress import Inbox
from leveret.pipeline.table.inspect import count_messages
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message

pytestmark = pytest.mark.spark


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    upstream = StandbyUpstream(["/", "b"])
    for turn in range(3):
        upstream.publish("/", "q", [stored_message(b"x", b"ex", b"k%d" % (turn % 2))] * 5)
        upstream.settle("/", "q", [(turn, 1)])
    upstream.publish("b", "p", [stored_message(b"y", b"", b"\xff"), stored_message(b"y", b"", b"\xfe")])
    return transfer(upstream, tmp_path, chunks_per_file=2)


def test_messages_are_counted_by_vhost_queue_exchange_and_routing_key(
    spark: SparkSession, manifest: Manifest
) -> None:
    rows = [tuple(row.values()) for row in count_messages(spark, manifest)]
    assert rows == [("/", "q", "ex", "k0", 10), ("/", "q", "ex", "k1", 5), ("b", "p", "", "\ufffd", 2)]


@pytest.mark.parametrize("chunks_per_file", [1, 2, 40])
def test_what_was_collected_again_counts_once(
    spark: SparkSession, tmp_path: Path, chunks_per_file: int
) -> None:
    """In a file of its own, in one with more, and in the very one that has it."""
    upstream = StandbyUpstream()
    for turn in range(3):
        upstream.publish("/", "q", [stored_message(b"x", b"ex", b"k%d" % turn)] * 5)
        upstream.publish("/", "p", [stored_message(b"x", b"", b"p")] * 2)
        upstream.settle("/", "q", [(turn, 1)])
    upstream.copy_again("/", "q", 3)
    upstream.publish("/", "q", [stored_message(b"x", b"ex", b"k2")])
    upstream.copy_again("/", "q", 1)
    upstream.begin_incarnation("/", "q")
    upstream.publish("/", "q", [stored_message(b"x", b"ex", b"k0")])
    manifest = transfer(upstream, tmp_path, chunks_per_file=chunks_per_file)
    rows = [tuple(row.values()) for row in count_messages(spark, manifest)]
    assert rows == [
        ("/", "p", "", "p", 6),
        ("/", "q", "ex", "k0", 6),
        ("/", "q", "ex", "k1", 5),
        ("/", "q", "ex", "k2", 6),
    ]


@pytest.mark.story
def test_how_far_it_is_is_told_while_it_counts(spark: SparkSession, manifest: Manifest) -> None:
    with Inbox() as inbox:
        count_messages(spark, manifest, inbox.address)
        progress = inbox.wait(0)
    assert progress[0] == {"event": "counting", "messages": 17}
    assert {event["event"] for event in progress[1:]} == {"counted"}
    assert sum(event["messages"] for event in progress[1:]) == 17


def test_without_data_spark_is_not_started(
    start_pipeline: Callable[[str, dict[str, Any]], Any], tmp_path: Path
) -> None:
    child = start_pipeline("inspect", {"data_dir": str(tmp_path), "spark": {"master": "nowhere"}})
    assert child.wait() == 0
    assert child.events == [{"event": "done", "rows": []}]
