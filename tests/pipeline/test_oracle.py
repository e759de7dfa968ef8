"""Three ways to say what survives: masks, Spark's own anti-join, and a model message by message."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.recovery_plan import PlanDirectory, QueueOrder
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.archive.tables import read_table
from leveret.pipeline.recovery.counting import with_unsettled
from leveret.pipeline.recovery.unsettled import NumberedFile, not_to_recover, write_run
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.seeds import seeds

pytestmark = pytest.mark.spark
VHOST = "eu/1"
QUEUES = [f"queue {i}" for i in range(7)]
IDENTITY = ["queue", "queue_epoch", "queue_offset"]


def history(seed: int) -> StandbyUpstream:
    """Some thousand messages: acked in order and at random, dropped, expired, copied twice, queues redeclared."""
    rng = random.Random(seed)
    upstream = StandbyUpstream([VHOST])
    for turn in range(250):
        queue = rng.choice(QUEUES)
        step = rng.random()
        if step < 0.5 or (VHOST, queue) not in upstream.incarnations:
            count = rng.randint(1, 30)
            upstream.publish(VHOST, queue, [stored_message(b"%d.%d" % (turn, i)) for i in range(count)])
        elif step < 0.9:
            end = upstream.incarnations[VHOST, queue][-1].next_offset + 1
            ranges = [(rng.randrange(end), rng.randint(1, 4)) for _ in range(rng.randint(1, 9))]
            upstream.settle(VHOST, queue, ranges, reason=rng.randrange(4))
        elif step < 0.96:
            upstream.copy_again(VHOST, queue, rng.randint(1, 5))
        else:
            upstream.begin_incarnation(VHOST, queue)
    return upstream


def by_masks(manifest: Manifest, directory: PlanDirectory) -> list[tuple[str, int, int]]:
    masks = not_to_recover(manifest, VHOST)
    found = []
    for number, file in enumerate(manifest.files()):
        if not with_unsettled([file], masks):
            continue
        run = directory.runs / f"{number}.arrow"
        for part in write_run(
            manifest.data_dir, VHOST, [NumberedFile(number, file.path, file.records)], masks, run
        ).parts:
            with pa.ipc.open_file(run) as reader:
                batch = reader.get_batch(part.batch)
            rows = zip(batch["queue_epoch"].to_pylist(), batch["queue_offset"].to_pylist(), strict=True)
            found += [(part.queue, epoch, offset) for epoch, offset in rows]
            assert len(QueueOrder(pa.Table.from_batches([batch]))) <= part.rows
    return sorted(set(found))


def by_anti_join(spark: SparkSession, manifest: Manifest) -> list[tuple[str, int, int]]:
    root = manifest.data_dir
    messages = spark.read.parquet(*[str(root / file.path) for file in manifest.files()]).where("kind = 0")
    sidecars = [read_table(root / file.settlements) for file in manifest.files() if file.settlements]
    table = pa.concat_tables(sidecars, promote_options="permissive").unify_dictionaries()
    ranges = table.select(["queue_epoch", "first", "count"])
    settled = spark.createDataFrame(ranges.append_column("queue", table["queue"].cast(pa.string())))
    return sorted(tuple(row) for row in unsettled(messages, settled).collect())


def unsettled(messages: DataFrame, settled: DataFrame) -> DataFrame:
    """Messages whose offset no settlement of their queue's life names."""
    message, settlement = messages.alias("m"), settled.alias("s")
    is_named = (
        (F.col("m.queue") == F.col("s.queue"))
        & (F.col("m.queue_epoch") == F.col("s.queue_epoch"))
        & F.col("m.queue_offset").between(F.col("s.first"), F.col("s.first") + F.col("s.count") - 1)
    )
    return message.join(settlement, on=is_named, how="left_anti").select(*IDENTITY).distinct()


def by_model(upstream: StandbyUpstream) -> list[tuple[str, int, int]]:
    return sorted(
        (queue, incarnation.epoch, offset)
        for (_, queue), incarnations in upstream.incarnations.items()
        for incarnation in incarnations
        for offset in incarnation.messages
        if offset not in incarnation.settled
    )


@pytest.mark.parametrize("seed", seeds(4, each_time=1))
def test_masks_anti_join_and_model_agree(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    upstream = history(seed)
    manifest = Manifest(tmp_path)
    chunks = upstream.logs[VHOST].read(0, 1 << 40)
    for first in range(0, len(chunks), 17):
        file = store_range(tmp_path, VHOST, chunks[first : first + 17])
        assert file is not None
        manifest.append([file])
    expected = by_model(upstream)
    assert len(expected) > 100
    assert by_masks(manifest, PlanDirectory.new(tmp_path, VHOST)) == expected
    assert by_anti_join(spark, manifest) == expected
