from __future__ import annotations

import os
from pathlib import Path

from bench.machine import facts


def test_the_facts_name_this_machine(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["kernel"] == os.uname().release
    assert found["processor"]


def test_the_file_system_is_that_of_the_folder() -> None:
    assert facts(Path("/proc"))["file_system"] == "proc"
