"""Starting Spark: what an operator reads when it does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pytest
from pyspark.errors import PySparkRuntimeError

from leveret.pipeline import session
from leveret.pipeline.job import SparkSettings
from leveret.pipeline.spark_error import SparkFailed


class Builder:
    """Spark's, as far as it gets with a master that is none."""

    def appName(self, name: str) -> Self:
        return self

    def master(self, master: str) -> Self:
        return self

    def config(self, key: str, value: str) -> Self:
        return self

    def getOrCreate(self) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})


class Spark:
    """What stands for SparkSession."""

    builder = Builder()


def test_a_spark_that_does_not_start_is_told_with_its_master_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SparkSession", Spark)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("JAVA_HOME", "")
    with pytest.raises(SparkFailed, match=r"with master nonsense: .*JAVA_GATEWAY_EXITED") as caught:
        session.start_session("transfer", SparkSettings(master="nonsense"), tmp_path / "transfer")
    assert f"its log is in {tmp_path}; see spark.master" in str(caught.value)
