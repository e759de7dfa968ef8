from __future__ import annotations

from pathlib import Path

from tests.suites.record import Record, SuiteRun, read_record
from tests.suites.run import Ended


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = Record()
    results = {"a": Ended("passed"), "b": Ended("failed", "why")}
    record.put("kombu", "rabbitmq", SuiteRun("2026-11-21 08:00 UTC", "3.10.8", results))
    record.put("kombu", "leveret", SuiteRun("2026-11-21 08:10 UTC", "0.1.0", {}))
    record.write(tmp_path / "results.json")
    assert read_record(tmp_path / "results.json") == record


def test_without_a_file_nothing_has_been_run(tmp_path: Path) -> None:
    assert read_record(tmp_path / "results.json").runs == {}
