"""A standalone Spark on loopback: a master and workers, as an operator has on other machines.

with SparkCluster(folder, workers=2) as cluster:
    cluster.master          # spark://127.0.0.1:...
    cluster.python          # the workers' Python: with the dependencies, without this package
    cluster.workers[0].kill9()
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path
from typing import Final, Self

import pyspark

from leveret.pipeline.spark.java import find_java_home
from leveret.testing.network.ports import LOOPBACK, free_ports, wait_until
from leveret.testing.servers.process import Server, ServerProcess

_START_TIMEOUT_S: Final = 90.0
_OURS: Final = ("leveret", "__editable__")
CONF: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}
"""Spark settings of a driver on the same machine."""


class SparkCluster(Server):
    """See the module.

    Attributes:
        workers: their processes; the executors of a worker end with it.
        python: the value of `spark.python`.
    """

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        """Prepare the processes; nothing runs yet."""
        self._folder = folder
        self.port, self._page_port = free_ports(2)
        self._master = ServerProcess(folder / "master.log")
        self.workers = [ServerProcess(folder / f"worker-{number}.log") for number in range(workers)]
        self.python = python_without_us(folder / "python")

    @property
    def master(self) -> str:
        """The value of `spark.master`."""
        return f"spark://{LOOPBACK}:{self.port}"

    def start(self) -> Self:
        """Start the master and the workers; return when all workers are registered at the master."""
        page = ("--webui-port", str(self._page_port))
        self._launch(self._master, "master.Master", "--port", str(self.port), *page)
        self._master.wait(self._answers, "the master", _START_TIMEOUT_S)
        for number in range(len(self.workers)):
            self.start_worker(number)
        wait_until(lambda: self._alive() == len(self.workers), "the workers", _START_TIMEOUT_S)
        return self

    def start_worker(self, number: int) -> None:
        """Start a worker that does not run."""
        place = ("--work-dir", str(self._folder / f"work-{number}"), "--webui-port", "0")
        arguments = ("--cores", "1", "--memory", "1g", *place, self.master)
        self._launch(self.workers[number], "worker.Worker", *arguments)

    def _launch(self, process: ServerProcess, name: str, *arguments: str) -> None:
        java = find_java_home(self._folder, os.environ)
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        environment = {
            **kept,
            "JAVA_HOME": str(java),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_NO_DAEMONIZE": "1",
        }
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        argv: list[str | Path] = [program, f"org.apache.spark.deploy.{name}", "--host", LOOPBACK, *arguments]
        process.launch(argv, environment, cwd=self._folder)

    def _page(self) -> str:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self._page_port}/json/", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def _answers(self) -> bool:
        try:
            return bool(self._page())
        except OSError:
            return False

    def _alive(self) -> int:
        return self._page().count('"state" : "ALIVE"')

    def close(self) -> None:
        """End all processes."""
        for process in (*self.workers, self._master):
            process.close()


def python_without_us(folder: Path) -> Path:
    """Make a Python with all installed packages but this one, as on a worker's machine; return its path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    there = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(_OURS):
            (there / each.name).symlink_to(each)
    return folder / "bin" / "python"
