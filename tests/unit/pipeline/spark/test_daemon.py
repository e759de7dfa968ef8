"""Which Spark the workers load; that they do not load it again, see tests/pipeline/test_daemon.py."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from leveret.pipeline.spark.daemon import without_zips


def test_an_installed_spark_is_loaded_instead_of_the_same_in_a_zip(tmp_path: Path) -> None:
    own = tmp_path / "own.zip"
    zips = [
        str(_zipped(tmp_path / "pyspark.zip", "pyspark")),
        str(_zipped(tmp_path / "py4j-1-src.zip", "py4j")),
    ]
    installed = tmp_path / "installed"
    for name in ("pyspark", "py4j"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").touch()
    path = [zips[0], str(own), zips[1], str(installed)]
    assert without_zips(path) == [str(own), str(installed)]


def test_a_spark_that_is_nowhere_else_is_loaded_from_its_zip(tmp_path: Path) -> None:
    zips = [
        str(_zipped(tmp_path / "pyspark.zip", "pyspark")),
        str(_zipped(tmp_path / "py4j-1-src.zip", "py4j")),
    ]
    assert without_zips([*zips, str(tmp_path)]) == [*zips, str(tmp_path)]


def _zipped(path: Path, package: str) -> Path:
    with ZipFile(path, "w") as file:
        file.writestr(f"{package}/__init__.py", "")
    return path
