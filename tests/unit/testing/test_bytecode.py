"""tests.bytecode: the cache that pytest finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bytecode import is_rewritten, make


def test_a_test_is_rewritten_until_it_changes(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    good.write_text("def test_it():\n    assert 1\n")
    bad.write_text("def test_it(:\n")
    assert not is_rewritten(good)
    make([bad, good], pytestconfig, with_sources=False)
    assert is_rewritten(good)
    assert not is_rewritten(bad)
    os.utime(good, (1, 1))
    assert not is_rewritten(good)
