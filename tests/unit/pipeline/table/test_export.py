"""An export is complete when its last file has its name: then everything that the file lists is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow.parquet as pq
import pytest

from leveret.model.errors import InvalidCommand, StorageError
from leveret.pipeline.files.files import Place, write_durably
from leveret.pipeline.jobs.job import ExportJob
from leveret.pipeline.spark import session
from leveret.pipeline.spark.session import locked_scratch
from leveret.pipeline.table import export
from leveret.pipeline.table.columns import schema_of
from leveret.pipeline.table.export import COMPLETE, export_messages, run_export
from leveret.pipeline.table.plan import open_archive
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.pipeline.archive.test_durable import Disk


def test_all_files_of_an_export_are_on_disk_before_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, target = tmp_path / "archive", tmp_path / "export"
    upstream, disk = StandbyUpstream(), Disk(monkeypatch)
    upstream.publish("/", "q", [stored_message(b"%d" % number) for number in range(5)])
    transfer(upstream, archive)
    target.mkdir()

    def write(place: Place, octets: bytes) -> None:
        assert [each.name for each in target.iterdir()] == ["messages-000000.parquet"]
        assert not disk.lacks(target), "and has its name"
        write_durably(place, octets)

    monkeypatch.setattr(export, "run_tasks", lambda spark, ranges, work: [work(0, ranges)])
    monkeypatch.setattr(export, "write_durably", write)
    options = {"path": str(archive)}
    rows = export_messages(cast(Any, None), open_archive(str(archive)), target, options)
    assert rows == [{"vhost": "/", "queue": "q", "messages": 5, "pending": 5}]
    assert msgspec.json.decode((target / COMPLETE).read_bytes())["files"] == ["messages-000000.parquet"]
    assert not disk.lacks(target)


def test_an_export_beside_another_one_is_refused_and_deletes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"
    transfer(StandbyUpstream(), archive)
    job = ExportJob(data_dir=str(archive), target=str(tmp_path / "export"))
    monkeypatch.setattr(session, "LOCK_TIMEOUT_S", 0)
    with locked_scratch(job.work, "export", "exporting") as scratch:
        (scratch / "messages-000000.parquet").touch()
        with pytest.raises(StorageError, match="another process is exporting"):
            run_export(job, cast(Any, None))
        assert (scratch / "messages-000000.parquet").exists()
    assert not Path(job.target).exists()


def test_an_export_without_a_row_has_a_file_with_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB and Spark end with an error at a directory without files: of a queue that was empty that night."""
    archive, target = tmp_path / "archive", tmp_path / "export"
    upstream = StandbyUpstream()
    upstream.publish("/", "q", [stored_message(b"0")])
    upstream.settle("/", "q", [(0, 1)])
    transfer(upstream, archive)
    target.mkdir()
    monkeypatch.setattr(export, "run_tasks", lambda spark, ranges, work: [work(0, ranges)])
    options = {"state": "pending", "columns": "queue,timestamp"}
    assert export_messages(cast(Any, None), open_archive(str(archive)), target, options) == []
    document = msgspec.json.decode((target / COMPLETE).read_bytes())
    assert (document["messages"], document["files"]) == (0, ["messages-000000.parquet"])
    table = pq.read_table(target / "messages-000000.parquet")
    assert (table.schema, table.num_rows) == (schema_of(("queue", "timestamp")), 0)


def test_no_export_goes_into_the_archive_by_another_name_for_it(tmp_path: Path) -> None:
    """The next sweep would delete it."""
    archive = tmp_path / "archive"
    transfer(StandbyUpstream(), archive)
    archive.mkdir(exist_ok=True)
    (tmp_path / "link").symlink_to(archive)
    for target in (archive, archive / "x", tmp_path / "link" / "x", tmp_path / "y" / ".." / "archive" / "x"):
        job = ExportJob(data_dir=str(archive), work_dir=str(tmp_path / "work"), target=str(target))
        with pytest.raises(InvalidCommand, match="is in the archive itself: name another place"):
            run_export(job, cast(Any, None))
    assert not (archive / "x").exists()
