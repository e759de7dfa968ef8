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


def test_what_another_run_put_there_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    ours, theirs = Record(), Record()
    old, new = SuiteRun("yesterday", "0.1.0", {}), SuiteRun("today", "0.1.0", {})
    ours.put("kombu", "leveret", new)
    ours.put("kombu", "rabbitmq", old)
    theirs.put("kombu", "rabbitmq", new)
    theirs.put("aiormq", "leveret", new)
    theirs.write(target)
    ours.merge_into(target, "kombu", ["leveret"])
    assert read_record(target).runs == {
        "kombu": {"rabbitmq": new, "leveret": new},
        "aiormq": {"leveret": new},
    }
