"""Counting by names, a batch of rows at a time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import StorageError
from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.job import InspectJob
from leveret.pipeline.spark import session
from leveret.pipeline.spark.session import locked_scratch
from leveret.pipeline.table import inspect as module
from leveret.pipeline.table.columns import schema_of
from leveret.pipeline.table.inspect import COUNTED, MessageCounts, has_replaced, run_inspection
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message

names = st.sampled_from(["", "a", "b"])
batches = st.lists(st.lists(st.tuples(names, names, names, names), min_size=1, max_size=20), max_size=6)


@pytest.mark.parametrize("merged_rows", [0, 1000])
@given(batches)
def test_messages_are_counted_once_by_their_names(
    merged_rows: int, found: list[list[tuple[str, str, str, str]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MERGED_ROWS", merged_rows)
        parts = [MessageCounts(), MessageCounts()]
        for number, rows in enumerate(found):
            columns = [pa.array(column) for column in zip(*rows, strict=True)]
            parts[number % 2].add(pa.RecordBatch.from_arrays(columns, schema=schema_of(COUNTED)))
        whole = MessageCounts()
        for part in parts:
            whole.add_counted(part.rows())
        counted = [tuple(row.values()) for row in whole.rows()]
    expected = Counter(row for rows in found for row in rows)
    assert counted == [(*row, count) for row, count in sorted(expected.items())]


def test_files_that_the_transfer_replaced_while_they_were_read_are_told_from_damaged_ones(
    tmp_path: Path,
) -> None:
    upstream = StandbyUpstream()
    for _ in range(3):
        upstream.publish("/", "q", [stored_message(b"x")])
    seen = transfer(upstream, tmp_path, chunks_per_file=1)
    files = seen.files()
    upstream.publish("/", "q", [stored_message(b"x")])
    transferring = transfer(upstream, tmp_path)
    assert not has_replaced(seen, files), "there is only more"
    transferring.append([compact(tmp_path, files)], removed=[file.path for file in files])
    assert has_replaced(seen, files)
    assert seen.files() == Manifest(tmp_path).files()
    assert not has_replaced(seen, seen.files())


def test_an_inspection_beside_another_one_is_refused_and_deletes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = StandbyUpstream()
    upstream.publish("/", "q", [stored_message(b"1")])
    transfer(upstream, tmp_path)
    job = InspectJob(data_dir=str(tmp_path))
    monkeypatch.setattr(session, "LOCK_TIMEOUT_S", 0)
    with locked_scratch(job.work, "inspect", "inspecting") as scratch:
        (scratch / "block").touch()
        with pytest.raises(StorageError, match="another process is inspecting"):
            run_inspection(job, cast(Any, None))
        assert (scratch / "block").exists()
