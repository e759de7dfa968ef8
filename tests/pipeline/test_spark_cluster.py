"""A Spark elsewhere: its workers get this package with the job, and what they lack, or that it is dead, is said."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leveret.pipeline.spark import worker_modules, workers
from leveret.pipeline.spark.errors import SparkFailed
from leveret.testing.applications.books import Books
from leveret.testing.applications.mixed_messages import declare
from leveret.testing.network.ports import LOOPBACK, free_port, wait_until
from leveret.testing.servers.spark_cluster import CONF, SparkCluster, python_without_us
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_pair import PROMOTE_TIMEOUT_S, StandbyPair
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.e2e.site import Site, background, drain_all
from tests.e2e.test_disaster_crashes import BULK, BULK_MESSAGES, QUEUES, VHOST, fill

Start = Callable[[str, dict[str, Any]], Any]
Job = Callable[..., dict[str, Any]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path, workers=2) as cluster:
        yield cluster


@pytest.mark.torture  # Six JVMs take minutes of two cores.
@pytest.mark.timeout(900)
def test_on_workers_that_know_nothing_of_us_it_transfers_and_promotes_though_one_of_them_is_lost(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    spark = {"spark.master": cluster.master, "spark.python": str(cluster.python)}
    spark |= {f"spark.conf.{key}": text for key, text in CONF.items()}
    with StandbyPair(VHOST, tmp_path, downstream_config=spark) as pair:
        site = Site(pair.upstream, VHOST, tmp_path, seed=24)
        pair.start()
        pair.replicate("osr", "^.*")
        with site.channel() as channel:
            declare(channel, QUEUES)
        pair.follow(PROMOTE_TIMEOUT_S)
        publisher, consumer = site.publisher(QUEUES, rate=500), site.consumer(QUEUES, rate=300)
        with background(publisher, consumer):
            pair.wait_transferred()
            cluster.workers[0].kill9()
            site.wait_confirmed(site.confirmed() + 1000)
            pair.wait_transferred()
            publisher.stop()
            consumer.stop()
        fill(pair, Books(tmp_path / "bulk"))
        pair.wait_transferred()
        covered = pair.covered(QUEUES)
        pair.upstream.kill9()
        cluster.start_worker(0)
        with ThreadPoolExecutor(1) as pool:
            promotion = pool.submit(pair.promote)
            wait_until(lambda: promotion.done() or left(pair), "a promotion half-way", PROMOTE_TIMEOUT_S)
            assert not promotion.done(), promotion.result()
            cluster.workers[1].kill9()
            ended = promotion.result()
        assert ended.returncode == 0, ended.stderr
        total = site.audit(drain_all(pair.downstream, VHOST, QUEUES, keep=False), covered).total
        assert (total.lost_unlawfully, total.resurrected, total.duplicated) == (0, 0, 0), total
        assert (total.altered, total.disordered) == (0, 0), total
        assert total.recovered > 100
        assert total.acked > 100
        for queue, found in drain_all(pair.downstream, VHOST, BULK, keep=False).items():
            assert [message.number for message in found] == list(range(BULK_MESSAGES)), queue


def left(pair: StandbyPair) -> bool:
    """Whether some messages of a promotion that runs are recovered, and some are left."""
    promotion = pair.status()["promotion"]
    rows = promotion["vhosts"] if promotion is not None else []
    return any(0 < row["messages_left"] < row["messages"] for row in rows)


@pytest.mark.torture  # Six JVMs take minutes of two cores.
@pytest.mark.timeout(900)
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


def test_what_is_here_is_told_though_spark_does_not_start(
    start_pipeline: Start, transfer_job: Job, tmp_path: Path
) -> None:
    """Else the status of a standby that was started again would say that nothing is here, for as long as that takes."""
    upstream = StandbyUpstream()
    upstream.publish("/", "q", [stored_message(b"x")] * 3)
    manifest = transfer(upstream, tmp_path / "standby")
    spark = {"master": f"spark://{LOOPBACK}:{free_port()}"}
    child = start_pipeline("transfer", transfer_job(free_port(), spark=spark, vhosts=["/", "new"]))
    assert child.wait() == 1
    *archived, failed = child.events
    newest_ms = max(file.max_ms for file in manifest.files())
    assert [(each["event"], each["vhost"], each["next"], each["newest_ms"]) for each in archived] == [
        ("archived", "/", manifest.next_by_log["/"], newest_ms),
        ("archived", "new", 0, None),
    ]
    assert "no Spark master answers" in failed["error"]


def test_masters_that_are_silent_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Barrier(6, timeout=10)

    def connect(address: tuple[str, int], timeout_s: float) -> socket.socket:
        asked.wait()
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(SparkFailed, match=r"no Spark master answers at .*h5:7077: timed out\)"):
        workers.check_master("spark://" + ",".join(f"h{number}:7077" for number in range(6)))


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
    kept = {
        *worker_modules.WHEELS,
        "pyspark",
        "py4j",
        "typing_extensions",
        "dateutil",
        "pytz",
        "six",
        "tzdata",
    }
    for each in there.iterdir():
        is_of_a_wheel = each.name.split(".")[0] in kept or each.suffix in (".libs", ".so")
        if each.is_symlink() and not is_of_a_wheel:
            each.unlink()
    code = f"import sys; sys.path.insert(0, {str(workers.pack(tmp_path))!r})\n"
    code += "from leveret.pipeline.spark import worker_modules\nfound = worker_modules.find_missing_modules(None)\n"
    code += (
        "import leveret; assert '.zip' in leveret.__file__, leveret.__file__\nassert not found.missing, found"
    )
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "python")


def test_a_worker_without_wheels_finds_out_what_it_lacks(tmp_path: Path) -> None:
    """In a Python with nothing installed at all, which imports what the first task names."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    code = f"import sys; sys.path.insert(0, {str(workers.pack(tmp_path))!r})\n"
    code += f"from {worker_modules.find_missing_modules.__module__} import find_missing_modules\n"
    code += "print(*find_missing_modules(None).missing, sep='\\n')\n"
    python = tmp_path / "bare" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == [f"the Python module {name}" for name in worker_modules.WHEELS], (
        done.stderr
    )
