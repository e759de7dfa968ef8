"""A private LavinMQ node, for machines with a `lavinmq` on the PATH: its own data and ports, loopback only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from leveret.testing.network.ports import LOOPBACK, NotReady, free_ports, speaks_amqp, wait_until
from leveret.testing.servers.process import ServerProcess

PROGRAM: Final = "lavinmq"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0


def available() -> str | None:
    """Return None if a node can be run here, else the reason."""
    return None if shutil.which(PROGRAM) else f"no {PROGRAM} on the PATH"


def version() -> str:
    """Return the version of LavinMQ."""
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


class LavinNode:
    """One LavinMQ node with default settings except for folder and ports (bench.contenders.Node)."""

    stream_port = 0

    def __init__(self, parent_dir: Path) -> None:
        """Prepare a node; nothing runs yet."""
        self.home = Path(tempfile.mkdtemp(prefix="lavinmq-", dir=parent_dir)).resolve()
        self.data_dir = self.home / "data"
        self.amqp_port, self.management_port, mqtt_port = free_ports(3)
        self._server = ServerProcess(self.home / "output.log")
        self._config = self.home / "lavinmq.ini"
        self._config.write_text(
            f"[main]\ndata_dir = {self.data_dir}\n"
            f"[amqp]\nbind = {LOOPBACK}\nport = {self.amqp_port}\n"
            f"[mgmt]\nbind = {LOOPBACK}\nport = {self.management_port}\n"
            f"[mqtt]\nbind = {LOOPBACK}\nport = {mqtt_port}\n"
        )

    def start(self) -> object:
        """Start the node on its existing data; return when it answers.

        Raises:
            NotReady: the node ended or took longer; the text has the end of its log.
        """
        program = shutil.which(PROGRAM)
        if program is None:
            raise NotReady(f"no {PROGRAM} on the PATH")
        self._server.launch([program, "--config", self._config], dict(os.environ))

        def ready() -> bool:
            self._server.assert_alive()
            return speaks_amqp(self.amqp_port)

        try:
            wait_until(ready, f"{PROGRAM} on port {self.amqp_port}", START_TIMEOUT_S)
        except NotReady as late:
            raise NotReady(f"{late}\n{self._server.log_tail()}") from None
        return self

    def stop(self) -> int:
        """End the node in order."""
        return self._server.terminate(STOP_TIMEOUT_S)

    def kill9(self) -> None:
        """End the node as a crash would."""
        self._server.kill9()

    def close(self) -> None:
        """End the node and remove all its data."""
        self._server.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def rss_bytes(self) -> int:
        """Return the present resident memory."""
        return self._server.rss_bytes()

    def cpu_seconds(self) -> float:
        """Return the processor time since the start."""
        return self._server.cpu_seconds()
