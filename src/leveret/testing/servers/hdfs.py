"""A private, throw-away HDFS: a namenode and a datanode, as Hadoop ships them, on loopback and free ports.

It runs the jars that `tools/setup test` put into the virtual environment.

    with Hdfs() as hdfs:
        hdfs.new_place()        # URI of a new directory
        with hdfs.outage():     # the namenode is down in this block
            ...

It authenticates nobody: a client's user is `HADOOP_USER_NAME`, or else the user of the client's process.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self
from xml.sax.saxutils import escape

from hdfs_native import Client, WriteOptions

from leveret.pipeline.spark.java import find_java_home
from leveret.testing.network.ports import LOOPBACK, NotReady, free_ports, wait_until
from leveret.testing.servers.process import Server, ServerProcess

NAME_SERVICE: Final = "tests"
START_TIMEOUT_S: Final = 120.0
_SERVER: Final = "org.apache.hadoop.hdfs.server"
# A small heap and the fast compiler only: the processes run for a short time, so their start matters most.
_JVM: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_LOG: Final = """log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n
"""


def available() -> str | None:
    """Return None if an HDFS can be run here, else the remedy."""
    return None if _jars().is_dir() else "no HDFS: `tools/setup test` brings it"


def _is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def _jars() -> Path:
    return Path(sys.prefix) / "hadoop"


class Hdfs(Server):
    """Both processes; they run in a `with` block.

    Attributes:
        port: the namenode's port for calls.
        configuration: the `HADOOP_CONF_DIR` of clients that use the URI `hdfs://tests/...`.
    """

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="leveret-hdfs-"))
        self.port, web_port, data_port, data_call_port, data_web_port = free_ports(5)
        self.configuration = self._home / "configuration"
        self.namenode = ServerProcess(self._home / "namenode.log")
        self.datanode = ServerProcess(self._home / "datanode.log")
        self._said = ""
        java_home = find_java_home(self._home, os.environ)
        self._java: list[str | Path] = [
            java_home / "bin" / "java",
            *_JVM,
            "-cp",
            f"{self._home / 'server'}:{_jars()}/*",
        ]
        self._env = {"HOME": str(self._home)}
        served = {
            "fs.defaultFS": self.url,
            "dfs.namenode.name.dir": (self._home / "names").as_uri(),
            "dfs.namenode.http-address": f"{LOOPBACK}:{web_port}",
            "dfs.datanode.data.dir": (self._home / "blocks").as_uri(),
            "dfs.datanode.address": f"{LOOPBACK}:{data_port}",
            "dfs.datanode.ipc.address": f"{LOOPBACK}:{data_call_port}",
            "dfs.datanode.http.address": f"{LOOPBACK}:{data_web_port}",
            "dfs.replication": "1",
            # WebHDFS needs a library that the jars lack.
            "dfs.webhdfs.enabled": "false",
            # The datanode notices soon that the namenode is back, and the safe mode ends at once.
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.safemode.extension": "0",
        }
        _write_configuration(self._home / "server", served)
        for name in ("hdfs", "datanode"):
            (self._home / "server" / "webapps" / name).mkdir(parents=True)
        asked = {
            "fs.defaultFS": f"hdfs://{NAME_SERVICE}",
            "dfs.nameservices": NAME_SERVICE,
            f"dfs.ha.namenodes.{NAME_SERVICE}": "one",
            f"dfs.namenode.rpc-address.{NAME_SERVICE}.one": f"{LOOPBACK}:{self.port}",
        }
        _write_configuration(self.configuration, asked)

    @property
    def url(self) -> str:
        """The URI of the root."""
        return f"hdfs://{LOOPBACK}:{self.port}"

    def new_place(self) -> str:
        """Return the URI of a directory of the caller's own, which does not exist yet."""
        return f"{self.url}/{secrets.token_hex(6)}/archives/eu 2"

    def start_namenode(self) -> None:
        """Start the namenode on its existing data; return when files can be written."""
        self.namenode.launch([*self._java, f"{_SERVER}.namenode.NameNode"], self._env)
        try:
            wait_until(self._is_ready, f"HDFS on port {self.port}", START_TIMEOUT_S, interval_s=0.2)
        except NotReady as error:
            raise NotReady(f"{error}; it said {self._said}\n{self.namenode.log_tail()}") from None

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Crash the namenode, and start it again at the end of the block."""
        self.namenode.kill9()
        try:
            yield
        finally:
            self.start_namenode()

    @contextmanager
    def silent_namenode(self) -> Iterator[None]:
        """Suspend the namenode for the block: it accepts connections and answers nothing."""
        self.namenode.signal(signal.SIGSTOP)
        # Its threads stop one after the other.
        threads = Path(f"/proc/{self.namenode.pid}/task")
        wait_until(lambda: all(map(_is_stopped, threads.iterdir())), "a suspended namenode", START_TIMEOUT_S)
        try:
            yield
        finally:
            self.namenode.signal(signal.SIGCONT)

    def _is_ready(self) -> bool:
        self.namenode.assert_alive()
        self.datanode.assert_alive()
        client = Client(self.url, {"dfs.client.failover.max.attempts": "0"})
        try:
            client.create("/ready", WriteOptions(overwrite=True)).close()
            with client.create("/ready", WriteOptions(overwrite=True)) as file:
                file.write(b"1")
        except (OSError, RuntimeError) as error:
            self._said = str(error)[:300]
            return False
        return True

    def start(self) -> Self:
        """Format an empty HDFS, start both processes, and allow every user to write."""
        namenode = f"{_SERVER}.namenode.NameNode"
        self.namenode.launch([*self._java, namenode, "-format", "-nonInteractive"], self._env)
        wait_until(lambda: not self.namenode.alive, "a new HDFS", START_TIMEOUT_S)
        self.datanode.launch([*self._java, f"{_SERVER}.datanode.DataNode"], self._env)
        self.start_namenode()
        Client(self.url).set_permission("/", 0o777)
        return self

    def close(self) -> None:
        """End both processes, and remove their files."""
        for process in (self.datanode, self.namenode):
            process.close(0)
        shutil.rmtree(self._home, ignore_errors=True)


def _write_configuration(folder: Path, settings: dict[str, str]) -> None:
    folder.mkdir()
    text = "".join(
        f"<property><name>{key}</name><value>{escape(value)}</value></property>"
        for key, value in settings.items()
    )
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>{text}</configuration>\n")
    (folder / "log4j.properties").write_text(_LOG)
