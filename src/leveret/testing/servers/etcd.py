"""A private, throw-away etcd of one member or several, for clusters and automatic fail-over.

It runs the program that ETCD names, else the `etcd` that `tools/setup cluster` put into the virtual environment, else
the machine's own. It listens on loopback on free ports, and has its data in a temporary folder.

    with EtcdCluster() as etcd:
        settings = {"cluster.etcd.endpoints": etcd.setting}
        etcd.members[0].kill9()
        etcd.members[0].start()
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import httpx

from leveret.testing.network.ports import LOOPBACK, NotReady, free_ports
from leveret.testing.servers.certificates import Issued
from leveret.testing.servers.process import Server, ServerProcess

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
REQUEST_TIMEOUT_S: Final = 10.0
_HEARTBEATS_PER_ELECTION: Final = 10


def available() -> str | None:
    """Return None if an etcd can be run here, else the remedy."""
    return None if _program() else "no etcd: `tools/setup cluster` or the package etcd-server brings it"


def _program() -> str | None:
    own = Path(sys.prefix) / "bin" / "etcd"
    return os.environ.get("ETCD") or (str(own) if own.exists() else shutil.which("etcd"))


class EtcdMember:
    """One process of an etcd."""

    def __init__(self, name: str, home: Path, tls: Issued | None, host: str = LOOPBACK) -> None:
        """Prepare a member with its folder in `home`; nothing runs yet."""
        self.name = name
        self.port, self.peer_port = free_ports(2)
        self.url = f"{'https' if tls else 'http'}://{host}:{self.port}"
        self.peer_url = f"http://{host}:{self.peer_port}"
        self.arguments: list[str] = []
        self.data_dir = home / name
        self.process = ServerProcess(home / f"{name}.log")
        self._tls = tls
        self._env = {"HOME": str(home)}

    def start(self) -> None:
        """Start the member on its existing data, without waiting."""
        program = _program()
        if program is None:
            raise NotReady(available() or "")
        urls = {
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
        }
        if self._tls is not None:
            urls |= {"cert-file": str(self._tls.certfile), "key-file": str(self._tls.keyfile)}
        arguments = [f"--{key}={value}" for key, value in urls.items()]
        own = [f"--name={self.name}", f"--data-dir={self.data_dir}"]
        self.process.launch([program, *own, *arguments, *self.arguments], self._env)

    def wait_ready(self) -> None:
        """Wait until the member answers and knows etcd's leader."""
        self.process.wait(self._is_ready, f"etcd on port {self.port}", START_TIMEOUT_S)

    def restart(self) -> None:
        """Start the member again after `stop`, `kill9` or `lose_data`, and wait until it answers."""
        self.start()
        self.wait_ready()

    def stop(self) -> int:
        """End the member in order, keeping its data; return its exit status."""
        return self.process.terminate(STOP_TIMEOUT_S)

    def kill9(self) -> None:
        """End the member as a crash would, keeping its data."""
        self.process.kill9()

    def pause(self) -> None:
        """Suspend the process: it accepts connections and answers nothing."""
        self.process.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        self.process.signal(signal.SIGCONT)

    def lose_data(self) -> None:
        """Remove the data of a stopped member."""
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Send a request, such as `ask("auth/user/add", name="root", password="secret")`; return the answer.

        Raises:
            httpx.HTTPError: the member refused the request, or did not answer.
        """
        verify = self._tls.client_context() if self._tls else False
        with httpx.Client(verify=verify, trust_env=False, timeout=REQUEST_TIMEOUT_S) as client:
            answer: dict[str, Any] = client.post(f"{self.url}/v3/{path}", json=body).raise_for_status().json()
            return answer

    def _is_ready(self) -> bool:
        try:
            return int(self.ask("maintenance/status").get("leader", 0)) != 0
        except httpx.HTTPError:
            return False


class EtcdCluster(Server):
    """Members of one etcd; a context manager that leaves neither process nor file."""

    def __init__(
        self,
        size: int = 1,
        *,
        tls: Issued | None = None,
        heartbeat_ms: int = 100,
        hosts: Sequence[str] = (),
    ) -> None:
        """Prepare the members; nothing runs yet.

        Args:
            size: the number of members.
            tls: the members' certificate; with one they accept TLS only.
            heartbeat_ms: etcd's own default is 100; an election among members takes ten to twenty heartbeats.
            hosts: the members' addresses; all on loopback by default.
        """
        self.home = Path(tempfile.mkdtemp(prefix="etcd-")).resolve()
        self.members = [
            EtcdMember(f"m{number}", self.home, tls, host)
            for number, host in enumerate(hosts or [LOOPBACK] * size)
        ]
        everyone = ",".join(f"{one.name}={one.peer_url}" for one in self.members)
        for one in self.members:
            one.arguments = [
                f"--initial-cluster={everyone}",
                f"--initial-cluster-token={self.home.name}",
                f"--heartbeat-interval={heartbeat_ms}",
                f"--election-timeout={heartbeat_ms * _HEARTBEATS_PER_ELECTION}",
            ]

    @property
    def setting(self) -> str:
        """The value of `cluster.etcd.endpoints`."""
        return ",".join(one.url for one in self.members)

    def start(self) -> Self:
        """Start all members and wait until they answer."""
        for one in self.members:
            one.start()
        for one in self.members:
            one.wait_ready()
        return self

    def close(self) -> None:
        """End all members and remove their files."""
        for one in self.members:
            one.process.close()
        shutil.rmtree(self.home, ignore_errors=True)
