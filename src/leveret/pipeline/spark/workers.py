"""Spark's workers on other machines: sends them this package with the job, and reports missing wheels at once.

A worker needs a Python of the driver's minor version and some wheels (`worker_modules`), which have compiled parts
and so cannot be sent; a zip file has everything of ours. Before any other task, one task on each of the first
executors checks both. Otherwise each task would fail by itself, with a traceback, and would be tried again and
again.
"""

from __future__ import annotations

import os
import socket
import sys
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from pathlib import Path
from typing import Final

from pyspark import SparkContext

import leveret
from leveret.model.host_port import host_and_port
from leveret.pipeline.files.files import make_directory
from leveret.pipeline.spark.errors import SparkFailed, cause_of
from leveret.pipeline.spark.worker_modules import WorkerModules, find_missing_modules

CONNECT_TIMEOUT_S: Final = 5.0
FIRST_TASK_TIMEOUT_S: Final = 120.0
_TASKS_PER_CORE: Final = 2
_STANDALONE: Final = "spark://"
_PORT: Final = 7077


def check_master(master: str) -> None:
    """Check that a standalone master answers, for which Spark itself would take more than a minute.

    Raises:
        SparkFailed: none of the masters takes a connection.
    """
    if not master.startswith(_STANDALONE):
        return
    addresses = master.removeprefix(_STANDALONE).split(",")
    # Concurrently: machines that are gone do not answer, each for the whole timeout.
    with ThreadPoolExecutor(len(addresses)) as threads:
        said = list(threads.map(_why_not, addresses))
    if all(said):
        each = "; ".join(f"{address}: {why}" for address, why in zip(addresses, said, strict=True))
        raise SparkFailed(f"no Spark master answers at {master} ({each}); see spark.master")


def _why_not(address: str) -> str:
    """The reason why an address takes no connection; empty if it does."""
    place = host_and_port(address) if ":" in address else (address, _PORT)
    if place is None:
        return f"'{address[:100]}' is not host:port"
    try:
        socket.create_connection(place, CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


def choose_python(python: str | None, environment: os._Environ[str]) -> None:
    """Set the Python of workers: this one, or Spark's own configuration; by default this process's."""
    if python is not None:
        environment["PYSPARK_PYTHON"] = python
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def take_along(package: Path, environment: os._Environ[str]) -> None:
    """Let the driver's own Python processes, of any Python, find this package, which Spark does not send to them."""
    paths = [str(package), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def pack(scratch: Path) -> Path:
    """This package's modules in a zip file."""
    root = Path(leveret.__file__).parent
    make_directory(scratch)
    path = scratch / "leveret.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for each in sorted(root.rglob("*.py")):
            file.write(each, each.relative_to(root.parent))
    return path


def check_workers(context: SparkContext, store: Path | None) -> None:
    """Check that workers can run tasks; `store` is a directory that they have to reach, None if it is no path.

    Raises:
        SparkFailed: no worker takes a task, or one lacks modules; the text names the worker and the modules.
    """
    count = max(2, _TASKS_PER_CORE * context.defaultParallelism)
    shown = None if store is None else str(store)

    def look(numbers: Iterable[int]) -> Iterator[WorkerModules]:
        yield find_missing_modules(shown)

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(
            lambda: context.parallelize(range(count), count).mapPartitions(look).collect()
        )
        try:
            found: list[WorkerModules] = looking.result(FIRST_TASK_TIMEOUT_S)
        except TookTooLong:
            context.cancelAllJobs()
            raise SparkFailed(
                f"no worker of {context.master} has finished a first task in {FIRST_TASK_TIMEOUT_S:g} s: see in its "
                "own pages whether it has workers with free cores and memory, and whether they reach this machine"
            ) from None
        except Exception as error:
            raise SparkFailed(
                f"a worker of {context.master} cannot run tasks: {cause_of(error)}; {_HINT}"
            ) from error
    lacks = {f"{each.host} ({each.python}) lacks {', '.join(each.missing)}" for each in found if each.missing}
    if lacks:
        raise SparkFailed(
            f"workers of {context.master} cannot run tasks: {'; '.join(sorted(lacks))}; {_HINT}"
        )


_HINT: Final = "see spark.python, and docs/spark-cluster.md for what workers need"
