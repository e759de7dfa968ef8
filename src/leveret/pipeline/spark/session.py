"""Starts Spark: light, on loopback, on this machine - unless the user's settings say otherwise.

Order of precedence: the job's `master` and `conf`, Spark's own configuration (`spark-defaults.conf`,
`PYSPARK_SUBMIT_ARGS`), our local defaults. Under `spark-submit` nothing is set at all, because a master set in code
would silently override `spark-submit --master`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from leveret.model.secrets import SECRET_NAMES, names_secret
from leveret.pipeline.files.files import Place, locked, make_directory
from leveret.pipeline.jobs.job import SparkSettings
from leveret.pipeline.spark import daemon
from leveret.pipeline.spark.errors import SparkFailed, cause_of
from leveret.pipeline.spark.interpreter import local_python
from leveret.pipeline.spark.java import find_java_home
from leveret.pipeline.spark.shared_classes import archive_path, use_archive
from leveret.pipeline.spark.workers import check_master, check_workers, choose_python, pack, take_along

# Plain local[*] retries no task.
LOCAL_MASTER: Final = "local[*,4]"

# Message bodies never cross the JVM: it needs little memory, and less compilation halves its CPU time.
JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

_ALWAYS: Final = {
    "spark.speculation": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    # Otherwise SQL's workers, as those of a transfer, get another environment, and so another daemon than those of
    # a promotion, which would wait more than a second for theirs.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark's own expression lets the keys of Azure's stores through, to its event log and its pages.
    "spark.redaction.regex": SECRET_NAMES,
}
_LOCAL: Final = {
    # The driver's ports are on loopback, which every user of the machine reaches; Spark makes a secret for each run.
    "spark.authenticate": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.python.daemon.module": daemon.__name__,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # Hadoop's local file system forks twenty processes a micro-batch; these two classes do not (file: only).
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_WORKERS: Final = {
    # Workers are forked (`daemon`), which conflicts with numpy's threads; our code does not use them.
    "OPENBLAS_NUM_THREADS": "1",
    # Freed memory is needed again at once: the system would clear each page of it. Python's memory, then Arrow's.
    "MALLOC_TRIM_THRESHOLD_": str(64 * 1024 * 1024),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MIMALLOC_PURGE_DELAY": "1000",
}
"""The environment of Spark's Python workers."""
LOCK_TIMEOUT_S: Final = 30.0
_ENVIRONMENT: Final = "spark.executorEnv."
"""Before a variable of the workers on other machines, which may hold anything."""


def empty_scratch(work_dir: Path, name: str) -> Path:
    """Make an empty directory for the temporary files of a job's Spark, below its working directory; return it."""
    scratch = work_dir / "spark" / name
    shutil.rmtree(scratch, ignore_errors=True)
    make_directory(scratch)
    return scratch


@contextmanager
def locked_scratch(work_dir: Path, name: str, what: str) -> Iterator[Path]:
    """As `empty_scratch`, for a job that an operator may begin twice: while one runs, it keeps its directory.

    Raises:
        StorageError: another process is doing that.
    """
    with locked(work_dir / f"{name}.lock", LOCK_TIMEOUT_S, what):
        yield empty_scratch(work_dir, name)


def start_session(
    name: str, settings: SparkSettings, scratch: Path, jvm_options: str = "", store: Place | None = None
) -> SparkSession:
    """Start the session of this process, its temporary files in `scratch`; two seconds with a class archive, else five.

    Workers on other machines get this package, and report missing wheels; `store` is the place that they write to.

    Raises:
        ConfigError: there is no Java.
        SparkFailed: Spark, or its master, does not start, or a worker lacks something.
    """
    app_name = f"leveret-{name}"
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return SparkSession.builder.appName(app_name).getOrCreate()
    master = settings.master or (None if _names_a_master(os.environ) else LOCAL_MASTER)
    if master is not None:
        check_master(master)
    java_home = find_java_home(scratch, os.environ)
    os.environ["JAVA_HOME"] = str(java_home)
    conf, package = _ALWAYS | settings.conf, None
    if master is not None and master.startswith("local"):
        conf = _of_this_machine(scratch, java_home, jvm_options) | conf
    else:
        choose_python(settings.python, os.environ)
        package = pack(scratch)
        take_along(package, os.environ)
        conf = {f"{_ENVIRONMENT}{name}": value for name, value in _WORKERS.items()} | conf
    conf = {"spark.app.name": app_name} | ({} if master is None else {"spark.master": master}) | conf
    try:
        # Process lists show the JVM's command line, so secrets are passed to the running JVM instead.
        shown = _spark_conf({key: conf[key] for key in conf if not _may_hold_secret(key)})
        gateway = launch_gateway(shown)  # type: ignore[no-untyped-call]
        spark = SparkSession(SparkContext(conf=_spark_conf(conf), gateway=gateway), options=conf)
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(
            f"Spark does not start, with master {master or 'as Spark itself is configured'}: {cause_of(error)}; its "
            f"log is in {scratch.parent}; see spark.master, spark.conf"
        ) from error
    spark.sparkContext.setLogLevel("WARN")
    if package is not None and not (spark.sparkContext.master or "").startswith("local"):
        spark.sparkContext.addPyFile(str(package))
        check_workers(spark.sparkContext, store if isinstance(store, Path) else None)
    return spark


def warm_up(context: SparkContext) -> None:
    """Run tasks that do nothing, so that the first ones of a promotion do not wait for Java to load its classes.

    A failure is left to the tasks that matter.
    """
    count = context.defaultParallelism
    with suppress(Exception):
        context.parallelize(range(count), count).map(_nothing).collect()


def _nothing(number: int) -> bytes:
    return b""


def _of_this_machine(scratch: Path, java_home: Path, jvm_options: str) -> dict[str, str]:
    """Set the environment of workers on this machine; return the settings of Spark for them."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for variable, value in _WORKERS.items():
        os.environ.setdefault(variable, value)
    make_directory(scratch / "local")
    # Otherwise workers would use any `python3` on the path.
    os.environ.setdefault("PYSPARK_PYTHON", local_python(scratch))
    archive = use_archive(archive_path(java_home, os.environ))
    return _LOCAL | {
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": f"{JVM_OPTIONS} {archive} {jvm_options}",
    }


def _may_hold_secret(key: str) -> bool:
    """Whether a setting may hold a password or a key; none of these is needed to launch the JVM."""
    return key.startswith(_ENVIRONMENT) or names_secret(key)


def _spark_conf(conf: dict[str, str]) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(conf.items()))


def _names_a_master(environment: os._Environ[str]) -> bool:
    """Whether Spark's own configuration has a master."""
    if "--master" in environment.get("PYSPARK_SUBMIT_ARGS", "") or "MASTER" in environment:
        return True
    home = environment.get("SPARK_CONF_DIR") or os.path.join(environment.get("SPARK_HOME", ""), "conf")
    try:
        lines = (Path(home) / "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.split("=")[0].split()[:1] == ["spark.master"] for line in lines)
