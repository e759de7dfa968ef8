"""Starting Spark: what an operator reads when it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError

from leveret.model.secrets import SECRET_NAMES
from leveret.pipeline.jobs.job import SparkSettings
from leveret.pipeline.spark import session
from leveret.pipeline.spark.errors import SparkFailed


def ends(conf: object) -> None:
    """A JVM that ends at once, as with a master that is none."""
    raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})


def test_a_spark_that_does_not_start_is_told_with_its_master_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "launch_gateway", ends)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("JAVA_HOME", "")
    with pytest.raises(SparkFailed, match=r"with master nonsense: .*JAVA_GATEWAY_EXITED") as caught:
        session.start_session("transfer", SparkSettings(master="nonsense"), tmp_path / "transfer")
    assert f"its log is in {tmp_path}; see spark.master" in str(caught.value)


def test_what_spark_is_launched_with_has_no_secrets_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may list the processes of the machine reads it."""
    shown: list[tuple[str, str]] = []

    def launch(conf: SparkConf) -> None:
        shown.extend(conf.getAll())
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(session, "launch_gateway", launch)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    hidden = (
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.container.store.blob.core.windows.net",
        "spark.executorEnv.A",
    )
    conf = dict.fromkeys(hidden, "hush") | {"spark.a": "seen"}
    with pytest.raises(SparkFailed):
        session.start_session("transfer", SparkSettings(conf=conf), tmp_path)
    assert ("spark.a", "seen") in shown
    assert "hush" not in dict(shown).values()
    assert dict(shown)["spark.redaction.regex"] == SECRET_NAMES, "so that its event log has none either"
