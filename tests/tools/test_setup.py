"""tools/setup on this machine, where everything is installed: it was what started this test."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def setup(*arguments: str, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "tools/setup", *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def bare_tree(tmp_path: Path) -> Path:
    """A clone's tools and locks, without an environment."""
    for part in ("tools", "requirements", "pyproject.toml"):
        (tmp_path / part).symlink_to(ROOT / part)
    # The script goes by its own place, so it has to be a file of this tree.
    (tmp_path / "tools").unlink()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/setup").write_text((ROOT / "tools/setup").read_text())
    (tmp_path / "tools/setup").chmod(0o755)
    return tmp_path


def test_an_unknown_argument_is_refused_with_the_usage() -> None:
    answer = setup("tests")
    assert answer.returncode == 1
    assert 'what is "tests"? usage: tools/setup [cluster | docs | fuzz | test]' in answer.stderr


def test_a_python_that_is_too_old_or_missing_is_named_with_the_remedy(bare_tree: Path) -> None:
    answer = setup(root=bare_tree, PYTHON="no-such-python")
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "needs Python 3.11 or newer: none of no-such-python is" in answer.stderr
    assert not (bare_tree / ".venv").exists()


def test_an_environment_that_is_a_link_is_left_as_it_is(
    bare_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Python's venv empties the directory behind a link, such as the environment of another checkout."""
    other = tmp_path_factory.mktemp("other")
    (other / "kept").touch()
    (bare_tree / ".venv").symlink_to(other)
    answer = setup(root=bare_tree)
    assert answer.returncode == 1
    assert f".venv is a link to {other}" in answer.stderr
    assert (other / "kept").exists()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_holds_a_hash_for_each_version_and_names_no_index_or_place(lock: Path) -> None:
    lines = lock.read_text().splitlines()
    for line, following in itertools.pairwise(lines):
        if not line.startswith(" "):
            assert "==" in line
            assert following.startswith("    --hash=sha256:")
    assert not [line for line in lines if "://" in line or line.startswith(("-", "/", "#"))]


def test_no_lock_brings_a_machine_learning_framework_in() -> None:
    names = {line.split("==")[0] for lock in LOCKS for line in lock.read_text().splitlines() if "==" in line}
    assert not [name for name in names if name.startswith(("nvidia", "torch", "tensorflow"))]
