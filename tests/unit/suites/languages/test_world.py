from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.suites.languages.catalogue import Step
from tests.suites.languages.outcomes import of_tap
from tests.suites.languages.world import run_step, serve_operator
from tests.suites.run import Ended

pytestmark = pytest.mark.process


def test_a_program_that_is_one_test_has_passed_if_its_status_is_0(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    assert run_step(Step(argv=["true"], name="one"), log) == {"one": Ended("passed")}
    failed = run_step(Step(argv=["sh", "-c", "echo why; exit 3"], name="one"), log)
    assert failed == {"one": Ended("failed", "status 3: why\n")}
    late = run_step(Step(argv=["sleep", "60"], name="one", timeout_s=0.05), log)
    assert late["one"].outcome == "failed"


def test_results_are_read_of_what_a_program_writes_to_its_output_or_to_a_file(tmp_path: Path) -> None:
    log, file = tmp_path / "output.log", tmp_path / "results"
    printed = Step(argv=["sh", "-c", "echo ok - a; echo not ok - b; exit 1"], name="x: ", read=of_tap)
    assert run_step(printed, log) == {"x: a": Ended("passed"), "x: b": Ended("failed")}
    written = Step(argv=["sh", "-c", f"echo said; echo ok - c >{file}"], read=of_tap, output=file)
    assert run_step(written, log) == {"c": Ended("passed")}
    assert "said" in log.read_text()


def test_a_suites_commands_reach_the_operator(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def operate(arguments: list[str]) -> tuple[int, str, str]:
        calls.append(arguments)
        return (2, "", "no\n") if arguments == ["fail"] else (0, "done\n", "")

    ctl = serve_operator(operate, tmp_path)
    told = subprocess.run([ctl, "-n", "A", "list_queues"], capture_output=True, text=True, check=True)
    assert told.stdout == "done\n"
    subprocess.run([ctl, "-C", "folder", "stop-rabbit-on-node", "start-rabbit-on-node"], check=True)
    failed = subprocess.run([ctl, "fail"], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stderr) == (2, "no\n")
    assert calls == [["list_queues"], ["stop-node"], ["start-node"], ["fail"]]
