"""A pipeline process says why it failed, whatever became of the log that it prints to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

pytestmark = pytest.mark.process

_FAILING = """
import sys
import msgspec
from leveret.model.errors import StorageError
from leveret.pipeline import __main__ as process

def run(task, console):
    raise {error}

process.run = run
sys.argv = ["leveret.pipeline", "recover"]
process.main()
"""
TIMEOUT_S = 30.0


@pytest.mark.parametrize("log", ["/dev/null", "/dev/full"])
def test_why_it_failed_is_told_although_the_log_cannot_be_written(log: str) -> None:
    with Path(log).open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-c", _FAILING.format(error="RuntimeError('no more room')")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert msgspec.json.decode(done.stdout) == {"event": "failed", "error": "RuntimeError: no more room"}
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("StorageError('the archive is damaged')", "the archive is damaged"),
        ("msgspec.DecodeError('no JSON')", "the job on standard input is malformed: no JSON"),
        ("OSError(13, 'Permission denied', 'the/archive')", "the/archive: Permission denied"),
    ],
)
def test_whatever_fails_is_told_in_a_sentence_and_ends_with_a_status(error: str, sentence: str) -> None:
    argv = [sys.executable, "-c", _FAILING.format(error=error)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    event = msgspec.json.decode(done.stdout)
    assert (event["event"], event["error"][: len(sentence)], done.returncode) == ("failed", sentence, 1)


@pytest.mark.parametrize(("task", "left"), [("set_aside", ["former/7/data/file"]), ("delete", [])])
def test_an_archive_is_set_aside_or_deleted_as_the_task_says(
    tmp_path: Path, task: str, left: list[str]
) -> None:
    archive = tmp_path / "archive"
    (archive / "data").mkdir(parents=True)
    (archive / "data/file").touch()
    job = {"data_dir": str(archive), "work_dir": str(tmp_path / "work"), "at_ms": 7}
    argv = [sys.executable, "-m", "leveret.pipeline", task]
    done = subprocess.run(
        argv, input=msgspec.json.encode(job), capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, msgspec.json.decode(done.stdout)["event"]) == (0, "done")
    assert [str(each.relative_to(archive)) for each in archive.rglob("*") if each.is_file()] == left
