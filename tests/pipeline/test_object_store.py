"""An archive in a store, from the transfer to its end: a real Spark, a real server that speaks S3, a real HDFS."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leveret.pipeline.archive.contents import contents
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.files.files import place_of
from leveret.pipeline.jobs.job import Job
from leveret.pipeline.table.inspect import count_messages
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.hdfs import NAME_SERVICE, Hdfs
from leveret.testing.servers.object_store import ObjectStore
from leveret.testing.sites.standby_upstream import StandbyUpstream
from tests.pipeline.test_transfer import TIMEOUT_S, assert_all_is_there_once, publish_some, transferring

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


# What is an HDFS's own is asked in tests/unit/pipeline: files/test_hdfs.py, archive/test_manifest_in_a_store.py.
@pytest.mark.story
@pytest.mark.parametrize(
    "any_store", ["object_store", pytest.param("hdfs", marks=pytest.mark.torture)], indirect=True
)
def test_an_archive_in_a_store_is_transferred_into_recovered_from_and_set_aside(
    spark: SparkSession,
    any_store: ObjectStore | Hdfs,
    start_pipeline: Callable[[str, dict[str, Any]], Any],
    transfer_job: Callable[..., dict[str, Any]],
    recover_job: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leveret.pipeline.archive.compact.FILES_MIN", 2)
    where = {"data_dir": any_store.new_place(), "work_dir": str(tmp_path / "work")}
    archive = place_of(where["data_dir"])
    upstream, node = StandbyUpstream(), StandbyUpstream()
    rng = random.Random(5)

    def all_came() -> bool:
        return said.last("stored").get("next") == upstream.logs["/"].committed_offset

    with upstream.serving() as port, transferring(spark, transfer_job(port, **where)) as said:
        publish_some(upstream, 20, rng)
        wait_until(all_came, "the first", TIMEOUT_S)
        with any_store.outage():
            publish_some(upstream, 20, rng)
            # The second time it is missed before a query is started.
            wait_until(lambda: said.count("restarting") > 1, "the store to be missed", TIMEOUT_S)
        publish_some(upstream, 20, rng)
        wait_until(all_came, "what came meanwhile", TIMEOUT_S)
    assert_all_is_there_once(archive, upstream)
    [row] = contents(archive)["vhosts"]
    total = sum(
        len(incarnation.messages)
        for incarnations in upstream.incarnations.values()
        for incarnation in incarnations
    )
    assert (row["transferred"], row["records"]) == (upstream.logs["/"].committed_offset,) * 2
    assert sum(each["messages"] for each in count_messages(spark, Manifest(archive))) == total

    if isinstance(any_store, Hdfs):
        # Another machine may have Hadoop's configuration, and another name for the same place.
        monkeypatch.setenv("HADOOP_CONF_DIR", str(any_store.configuration))
        where["data_dir"] = where["data_dir"].replace(any_store.url, f"hdfs://{NAME_SERVICE}")
    with node.serving() as port:
        child = start_pipeline("recover", recover_job(port, **where))
        assert child.wait() == 0, child.events[-1]
    for queue in ("a", "b"):
        assert node.recovered("/", queue) == upstream.unsettled("/", queue)

    child = start_pipeline("set_aside", {**where, "at_ms": 5})
    assert child.wait() == 0
    assert contents(archive)["vhosts"] == []
    assert contents(archive / "former" / "5")["vhosts"] == [row], "it is all there"
    assert start_pipeline("delete", where).wait() == 0
    assert contents(archive / "former" / "5")["vhosts"] == [row], "what was set aside stays"
    kept = [
        path for path in (tmp_path / "work").rglob("*") if path.suffix in (".parquet", ".settled", ".tmp")
    ]
    assert kept == [], "nothing of it stays on this machine"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("webhdfs://host/archive", "no store that an archive can be kept in"),
        ("hdfs://host:rpc/archive", "is no place in an HDFS"),
        ("hdfs://host:8020", "is no place in an HDFS"),
        ("file://host/archive", "another machine's file"),
        ("s3://key:secret@bucket/archive", "a URI with credentials is refused"),
        ("relative", "no absolute path"),
        ("s3:///archive", "names no bucket"),
        ("s3://bucket/archive?x=y", "has a query"),
    ],
)
def test_places_that_cannot_hold_an_archive_are_refused(
    start_pipeline: Callable[[str, dict[str, Any]], Any], place: str, text: str
) -> None:
    child = start_pipeline("contents", {"data_dir": place})
    assert child.wait() == 1
    assert text in child.events[-1]["error"]
    assert "secret" not in child.events[-1]["error"]


def test_a_uri_of_a_file_is_its_path(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    job = Job(data_dir=(tmp_path / "a b").as_uri())
    assert (job.root, job.work) == (tmp_path / "a b",) * 2
