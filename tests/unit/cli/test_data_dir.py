from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.cli.data_dir import DataDirBusy, DataDirError, claimed, holder

pytestmark = pytest.mark.process

HOLD = """
import sys
from pathlib import Path
from leveret.cli.data_dir import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_data_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    with claimed(tmp_path / "a" / "b") as path:
        assert mode_of(path) == 0o700
        assert {mode_of(each) for each in path.iterdir()} == {0o600}


def test_an_empty_directory_that_is_open_to_others_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with claimed(tmp_path):
        assert mode_of(tmp_path) == 0o700


def test_a_directory_full_of_somebodys_files_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(DataDirError, match="chmod 700"), claimed(tmp_path):
        pass
    assert mode_of(tmp_path) == 0o755
    assert sorted(each.name for each in tmp_path.iterdir()) == ["letter.txt"]


def test_a_second_node_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(DataDirBusy, match=f"process {first.pid}"), claimed(tmp_path):
            pass
        first.kill()
        first.wait()
    with claimed(tmp_path):
        assert (tmp_path / "node.lock").read_text() == f"{os.getpid()}\n"


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="file"), claimed(tmp_path / "file"):
        pass


def test_who_holds_a_data_directory_is_told_as_long_as_it_is_held(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert holder(tmp_path) == other.pid
        other.communicate()
    assert holder(tmp_path) is None
