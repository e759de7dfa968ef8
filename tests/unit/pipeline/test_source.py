"""The parts that need no upstream; the rest is in tests/pipeline/test_transfer.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.pipeline.job import Credentials, TransferJob
from leveret.pipeline.source import TransferOptions, UpstreamReader


@pytest.mark.parametrize(
    ("news", "since_s", "waits"),
    [
        ({"a": 10_000}, 0.1, False),
        ({"a": 50_000}, 0.5, True),
        ({"a": 10_000, "b": 10_000}, 0.1, True),
        ({"a": 20_000}, 0.9, False),
        ({"a": 80_000}, 1.1, False),
        ({"a": 110_000}, 0.5, False),
        ({"a": 60_000, "b": 60_000}, 0.5, False),
        ({}, 0.5, False),
    ],
)
def test_a_batch_is_made_larger_while_much_comes_but_not_so_much_that_it_is_large_already(
    tmp_path: Path, news: dict[str, int], since_s: float, waits: bool
) -> None:
    job = TransferJob(
        data_dir=str(tmp_path),
        cluster_name="eu.2",
        endpoints=["127.0.0.1:1"],
        credentials=Credentials(username="", password=""),
        vhosts=["a", "b"],
        batch_bytes_max=120_000_000,
    )
    reader = UpstreamReader(TransferOptions(job=job, inbox="", cores=2))
    start = dict.fromkeys(job.vhosts, 7)
    # As long as the upstream has not said otherwise, a record has 1000 octets.
    ends = start | {vhost: 7 + count for vhost, count in news.items()}
    assert reader._is_flood(start, ends, since_s) is waits
