"""A connection that leads to another upstream by the time the executors fetch brings nothing of that one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from leveret.pipeline.job import Credentials, TransferJob
from leveret.pipeline.link import BACKOFF_MIN_S
from leveret.pipeline.manifest import Manifest
from leveret.pipeline.progress import Inbox
from leveret.pipeline.sink import StoreWriter, TransferCut
from leveret.pipeline.source import TransferOptions, UpstreamReader
from leveret.testing.standby_upstream import StandbyUpstream, stored_message

LIMIT: Any = None


def upstream(log_id: int) -> StandbyUpstream:
    made = StandbyUpstream()
    made.logs["/"].log_id = log_id
    for _ in range(4):
        made.publish("/", "q", [stored_message(b"%d" % log_id)] * 10)
    return made


def test_a_batch_that_was_planned_from_another_log_stores_nothing_of_the_one_that_is_there(
    tmp_path: Path,
) -> None:
    def carried_out(start: dict[str, int], end: dict[str, int]) -> None:
        [task] = reader.partitions(start, end)
        writer.commit([writer.write(reader.read(task))], 0)

    with Inbox() as inbox:
        with upstream(1).serving() as port:
            job = TransferJob(
                data_dir=str(tmp_path),
                cluster_name="eu.2",
                endpoints=[f"127.0.0.1:{port}"],
                vhosts=["/"],
                credentials=Credentials(username="standby", password="secret"),
            )
            options = TransferOptions(job=job, inbox=inbox.address, cores=1)
            reader, writer = UpstreamReader(options), StoreWriter(options)
            begin = reader.latestOffset({}, LIMIT)
            half = begin | {"/": 20}
            carried_out(begin, half)
            end = reader.latestOffset(half, LIMIT)
        assert end == {"/": 40}
        with upstream(2).serving(port):
            with pytest.raises(TransferCut, match="another log than the one that was begun with"):
                carried_out(half, end)
            assert Manifest(tmp_path).next_by_vhost == {"/": 20}
        with upstream(1).serving(port):
            time.sleep(BACKOFF_MIN_S)
            carried_out(half, end)
            assert Manifest(tmp_path).next_by_vhost == {"/": 40}
