"""A private LavinMQ node, for machines with a `lavinmq` on the PATH: its own data and ports, loopback only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from leveret.testing.network.ports import LOOPBACK, NotReady, free_ports, speaks_amqp
from leveret.testing.servers.process import NodeServer, ServerProcess

PROGRAM: Final = "lavinmq"


def available() -> str | None:
    """Return None if a node can be run here, else the reason."""
    return None if shutil.which(PROGRAM) else f"no {PROGRAM} on the PATH"


def version() -> str:
    """Return the version of LavinMQ."""
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


class LavinNode(NodeServer):
    """One LavinMQ node with default settings except for folder and ports (bench.contenders.Node)."""

    product = PROGRAM
    stream_port = 0

    def __init__(self, parent_dir: Path) -> None:
        """Prepare a node; nothing runs yet."""
        self.home = Path(tempfile.mkdtemp(prefix="lavinmq-", dir=parent_dir)).resolve()
        self.data_dir = self.home / "data"
        self.amqp_port, self.management_port, mqtt_port = free_ports(3)
        self.server = ServerProcess(self.home / "output.log")
        self._config = self.home / "lavinmq.ini"
        self._config.write_text(
            f"[main]\ndata_dir = {self.data_dir}\n"
            f"[amqp]\nbind = {LOOPBACK}\nport = {self.amqp_port}\n"
            f"[mgmt]\nbind = {LOOPBACK}\nport = {self.management_port}\n"
            f"[mqtt]\nbind = {LOOPBACK}\nport = {mqtt_port}\n"
        )

    def launch(self) -> None:
        """See NodeServer. Raises NotReady: there is no program."""
        program = shutil.which(PROGRAM)
        if program is None:
            raise NotReady(f"no {PROGRAM} on the PATH")
        self.server.launch([program, "--config", self._config], dict(os.environ))

    def answers(self) -> bool:
        """See NodeServer."""
        return speaks_amqp(self.amqp_port)

    def close(self) -> None:
        """End the node and remove all its data."""
        self.server.close()
        shutil.rmtree(self.home, ignore_errors=True)
