"""A Spark elsewhere: its workers get this package with the job, and what they lack, or that it is dead, is said."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.pipeline.files.files import place_of
from leveret.pipeline.spark import workers
from leveret.pipeline.spark.errors import SparkFailed
from leveret.testing.network.ports import LOOPBACK, free_port
from leveret.testing.servers.spark_cluster import CONF, SparkCluster, python_without_us
from leveret.testing.sites.standby_upstream import StandbyUpstream
from tests.pipeline.test_transfer import assert_all_is_there_once, publish_some

Start = Callable[[str, dict[str, Any]], Any]
Job = Callable[..., dict[str, Any]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path, workers=2) as cluster:
        yield cluster


@pytest.mark.torture  # Six JVMs take minutes of two cores.
@pytest.mark.timeout(600)
def test_on_workers_that_know_nothing_of_us_it_transfers_and_recovers_though_one_of_them_is_lost(
    cluster: SparkCluster, start_pipeline: Start, transfer_job: Job, recover_job: Job, tmp_path: Path
) -> None:
    spark = {"master": cluster.master, "conf": CONF, "python": str(cluster.python)}
    upstream, node = StandbyUpstream(), StandbyUpstream()
    rng = random.Random(24)

    with upstream.serving() as port:
        transfer = start_pipeline("transfer", transfer_job(port, spark=spark))

        def all_came() -> None:
            end = upstream.logs["/"].committed_offset
            transfer.wait_for(lambda event: event["event"] == "stored" and event["next"] == end)

        publish_some(upstream, 20, rng)
        all_came()
        cluster.workers[0].kill9()
        publish_some(upstream, 20, rng)
        all_came()
        transfer.kill9()
    assert_all_is_there_once(place_of(str(tmp_path / "standby")), upstream)

    cluster.start_worker(0)
    with node.serving() as port:
        recovery = start_pipeline("recover", recover_job(port, spark=spark))
        recovery.wait_for(lambda event: event["event"] == "planned")
        cluster.workers[1].kill9()
        assert recovery.wait() == 0, recovery.events[-3:]
    for queue in ("a", "b"):
        assert node.recovered("/", queue) == upstream.unsettled("/", queue)


@pytest.mark.torture  # Six JVMs take minutes of two cores.
@pytest.mark.timeout(300)
def test_what_workers_lack_is_said_at_once(
    cluster: SparkCluster, start_pipeline: Start, transfer_job: Job, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    spark = {"master": cluster.master, "conf": CONF, "python": str(bare / "bin" / "python")}
    child = start_pipeline("transfer", transfer_job(free_port(), spark=spark))
    assert child.wait() == 1
    error = child.events[-1]["error"]
    assert cluster.master in error
    for part in (
        f"{socket.gethostname()} ({bare}/bin/python) lacks",
        "pyarrow",
        "msgspec",
        "docs/spark-cluster.md",
    ):
        assert part in error


@pytest.mark.parametrize("others", [0, 2])
def test_a_master_that_is_dead_is_said_before_spark_is_started(others: int) -> None:
    addresses = [f"{LOOPBACK}:{free_port()}" for _ in range(others + 1)]
    began_s = time.monotonic()
    with pytest.raises(SparkFailed, match="no Spark master answers") as caught:
        workers.check_master(f"spark://{','.join(addresses)}")
    assert time.monotonic() - began_s < 15
    assert all(address in str(caught.value) for address in addresses)


def test_one_master_of_several_is_enough() -> None:
    with socket.create_server((LOOPBACK, 0)) as there:
        port = there.getsockname()[1]
        workers.check_master(f"spark://{LOOPBACK}:{free_port()},{LOOPBACK}:{port}")


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://10.0.0.1:6443"])
def test_other_masters_are_spark_s_to_find(master: str) -> None:
    workers.check_master(master)


@pytest.mark.parametrize("master", ["spark://nonsense", "spark://127.0.0.1:x", "spark://"])
def test_a_master_s_address_that_is_none_is_said(master: str) -> None:
    with pytest.raises(SparkFailed, match="no Spark master answers"):
        workers.check_master(master)


def test_a_worker_needs_no_more_than_is_listed(tmp_path: Path) -> None:
    """In a Python with the listed wheels, and Spark, all that tasks use is imported from the zip file."""
    python = python_without_us(tmp_path / "python")
    [there] = (tmp_path / "python").glob("lib/*/site-packages")
    kept = {*workers.WHEELS, "pyspark", "py4j", "typing_extensions", "dateutil", "pytz", "six", "tzdata"}
    for each in there.iterdir():
        is_of_a_wheel = each.name.split(".")[0] in kept or each.suffix in (".libs", ".so")
        if each.is_symlink() and not is_of_a_wheel:
            each.unlink()
    code = f"import sys; sys.path.insert(0, {str(workers.pack(tmp_path))!r})\n"
    code += "from leveret.pipeline.spark.workers import look_around\nfound = look_around(None)\n"
    code += (
        "import leveret; assert '.zip' in leveret.__file__, leveret.__file__\nassert not found.missing, found"
    )
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "python")
