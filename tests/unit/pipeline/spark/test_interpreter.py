"""Which Spark its Python processes load; that they do, see tests/pipeline/test_daemon.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.pipeline.spark.interpreter import local_python

SHOW = "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], sys.argv[1:]]))"


@pytest.mark.process
def test_spark_is_not_loaded_from_its_zips_and_all_else_stays_on_the_path(tmp_path: Path) -> None:
    path = ["/spark/pyspark.zip", "/spark/py4j-1-src.zip", "/of the user/*", "/own.zip"]
    shown = subprocess.run(
        [local_python(tmp_path), "-c", SHOW, "an argument", "$HOME"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        check=True,
    )
    assert json.loads(shown.stdout) == [os.pathsep.join(path[2:]), ["an argument", "$HOME"]]


def test_a_spark_that_is_nowhere_else_is_loaded_from_its_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__file__", "/spark/python/lib/pyspark.zip/pyspark/__init__.py")
    assert local_python(tmp_path) == sys.executable


def test_where_nothing_may_be_executed_this_interpreter_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert local_python(tmp_path) == sys.executable
