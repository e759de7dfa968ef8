"""The archive as a data source of Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.files.files import make_directory, opened
from leveret.pipeline.jobs.progress import Inbox
from leveret.pipeline.table.columns import MESSAGES
from leveret.pipeline.table.export import COMPLETE, export_messages
from leveret.pipeline.table.source import register
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message

pytestmark = pytest.mark.spark


@pytest.fixture
def upstream() -> StandbyUpstream:
    upstream = StandbyUpstream(["a", "b"])
    upstream.types["a", "q0"] = "classic"
    for turn in range(6):
        for vhost in ("a", "b"):
            bodies = [stored_message(b"%s%d.%d" % (vhost.encode(), turn, i), b"ex", b"k") for i in range(4)]
            upstream.publish(vhost, f"q{turn % 2}", bodies)
        upstream.settle("a", f"q{turn % 2}", [(turn * 2, 1)])
        upstream.now_ms += 60_000
    return upstream


@pytest.fixture
def table(spark: SparkSession, upstream: StandbyUpstream, data_dir: Any) -> Callable[..., DataFrame]:
    register(spark)
    transfer(upstream, data_dir, chunks_per_file=3)

    def load(schema: str = "", **options: str) -> DataFrame:
        reader = spark.read.format("leveret").options(**options)
        return (reader.schema(schema) if schema else reader).load(str(data_dir))

    return load


def test_sql_finds_what_was_published_and_what_is_settled(
    spark: SparkSession, upstream: StandbyUpstream, table: Callable[..., DataFrame]
) -> None:
    whole = table()
    assert whole.schema.names == MESSAGES.names
    whole.createOrReplaceTempView("messages")
    rows = spark.sql(
        "SELECT vhost, queue, state, settled_reason, count(*) AS messages FROM messages "
        "GROUP BY ALL ORDER BY vhost, queue, state, settled_reason"
    ).collect()
    assert [tuple(row) for row in rows] == [
        ("a", "q0", "pending", None, 10),
        ("a", "q0", "settled", "acked", 2),
        ("a", "q1", "pending", None, 9),
        ("a", "q1", "settled", "acked", 3),
        ("b", "q0", "pending", None, 12),
        ("b", "q1", "pending", None, 12),
    ]
    pending = {bytes(row.body) for row in whole.where("state = 'pending' AND vhost = 'a'").collect()}
    books = [message for queue in ("q0", "q1") for message in upstream.unsettled("a", queue)]
    assert {
        message[-len(body) :] for message, body in zip(sorted(books), sorted(pending), strict=True)
    } == pending


def test_a_table_is_whole_again_after_a_query_with_a_filter(table: Callable[..., DataFrame]) -> None:
    """Spark kept the first query's plan, which a filter had narrowed, for all later ones (2026-11-30)."""
    whole = table()
    count = whole.count()
    assert 0 < whole.where("state = 'pending'").count() < count
    assert whole.count() == count


def test_columns_reach_the_source_and_filters_hold(table: Callable[..., DataFrame]) -> None:
    narrow = table("body binary, queue string", state="pending")
    assert narrow.schema.names == ["body", "queue"]
    assert narrow.count() == 43
    filtered = table().where("vhost = 'b' AND queue IN ('q1', 'x') AND timestamp >= '2023-11-14T22:17:00Z'")
    assert [bytes(row.body) for row in filtered.collect()] == [b"b5.%d" % i for i in range(4)]
    asked = table(columns="body", vhost="b", queue="q1", **{"from": "2023-11-14T22:17:00Z"})
    assert asked.collect() == filtered.select("body").collect()
    assert table().where("vhost = 'nowhere'").collect() == []
    assert table(asOf="2023-11-14 22:13:20.000").count() == 4


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        ({"vhots": "a"}, "", "there is no option 'vhots'"),
        ({"asOf": "2001-01-01"}, "", "history of these queues begins at 2023-11-14T22:13:20.000+00:00"),
        ({}, "queue int", "column 'queue' is of type string, and not int"),
        ({}, "que string", "there is no column 'que'"),
    ],
)
def test_what_cannot_be_answered_is_a_sentence(
    table: Callable[..., DataFrame], options: dict[str, str], schema: str, text: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        table(schema, **options).collect()
    assert text in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.story
def test_a_stream_has_each_message_once_over_restarts_and_a_compaction(
    spark: SparkSession, upstream: StandbyUpstream, tmp_path: Path
) -> None:
    register(spark)
    archive, out = tmp_path / "archive", tmp_path / "out"
    manifest = transfer(upstream, archive, chunks_per_file=2)

    def run() -> None:
        source = spark.readStream.format("leveret").option("maxFilesPerTrigger", "3").load(str(archive))
        sink = source.select("vhost", "queue", "offset", "body").writeStream.format("parquet")
        options = {"checkpointLocation": str(tmp_path / "checkpoint"), "path": str(out)}
        query = sink.options(**options).trigger(availableNow=True).start()
        query.awaitTermination()
        assert len(query.recentProgress) > 1

    run()
    upstream.copy_again("a", "q0", 2)
    for vhost in ("a", "b"):
        upstream.publish(vhost, "q9", [stored_message(b"later")] * 3)
        upstream.publish(vhost, "q9", [stored_message(b"last")] * 2)
    transfer(upstream, archive, chunks_per_file=1)
    manifest = Manifest(archive)
    files = manifest.files_of("b")
    manifest.append([compact(archive, files)], removed=[file.path for file in files])
    run()
    rows = [(row.vhost, row.queue, row.offset) for row in spark.read.parquet(str(out)).collect()]
    assert len(rows) == len(set(rows)) == 48 + 2 * 5
    asked = spark.readStream.format("leveret").option("asOf", "2023-11-15").load(str(archive))
    with pytest.raises(PySparkException, match=r"option asOf is for spark\.read"):
        asked.writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "other")
        ).start().awaitTermination()


@pytest.mark.story
def test_an_export_that_cannot_be_whole_leaves_nothing(
    start_pipeline: Callable[[str, dict[str, Any]], Any], upstream: StandbyUpstream, tmp_path: Path
) -> None:
    archive, target = tmp_path / "archive", tmp_path / "export"
    manifest = transfer(upstream, archive, chunks_per_file=40)

    def error(**changes: Any) -> str:
        job = {"data_dir": str(archive), "target": str(target)} | changes
        child = start_pipeline("export", job)
        assert child.wait() == 1
        return str(child.events[-1]["error"])

    assert "there is no format 'csv' to export to: there is parquet" in error(format="csv")
    assert "is in the archive itself" in error(target=str(archive / "x"))
    assert "there is no option 'queues'" in error(options={"queues": "q"})
    assert "the history of these queues begins" in error(options={"asOf": "2001-01-01"})
    assert "is no absolute path" in error(target="here")
    (archive / manifest.files()[-1].path).unlink()
    assert "restore the file from a copy" in error()
    assert list(target.iterdir()) == []
    target.joinpath("mine").write_bytes(b"")
    assert "has files already" in error()
    assert [path.name for path in target.iterdir()] == ["mine"]


@pytest.mark.story
def test_an_export_to_a_store_has_the_chosen_rows_and_columns(
    spark: SparkSession, upstream: StandbyUpstream, data_dir: Any
) -> None:
    manifest = transfer(upstream, data_dir, chunks_per_file=3)
    target = data_dir / "elsewhere"
    make_directory(target)
    with Inbox() as inbox:
        options = {"vhost": "a", "columns": "queue,body"}
        rows = export_messages(spark, manifest, target, options, inbox.address)
        progress = inbox.wait(0)
    assert rows == [
        {"vhost": "a", "queue": "q0", "messages": 12, "pending": 10},
        {"vhost": "a", "queue": "q1", "messages": 12, "pending": 9},
    ]
    assert progress[0] == {"event": "exporting", "messages": 24}
    assert sum(event["messages"] for event in progress[1:]) == 24
    document = msgspec.json.decode((target / COMPLETE).read_bytes())
    [name] = document["files"]
    with opened(target / name) as source:
        table = pq.read_table(source)
    assert table.schema.names == ["queue", "body"]
    assert table.num_rows == document["messages"] == 24
