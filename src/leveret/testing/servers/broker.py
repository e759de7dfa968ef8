"""A real Leveret node as a process: what end-to-end tests, the demo and the benchmarks run.

    with LeveretProcess() as node:                       # own temporary data, free ports
        connect("127.0.0.1", node.amqp_port)             # guest / guest
        node.kill9()
        node.start()
        node.ctl("list_vhosts_available_for_standby_replication_recovery")

Nothing here knows how the node works inside: it is started by its command, configured by its
file, ready when its listeners answer, and operated by `leveretctl`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from leveret.testing.network.ports import LOOPBACK, NotReady, accepts, free_ports, speaks_amqp, wait_until
from leveret.testing.servers import warm_start
from leveret.testing.servers.process import Server, ServerProcess

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
CTL_TIMEOUT_S: Final = 180.0


class LeveretProcess(Server):
    """One Leveret node with its data, configuration, ports and log."""

    def __init__(
        self,
        data_dir: Path | None = None,
        config: Mapping[str, str] | None = None,
        *,
        amqp_port: int | None = None,
        stream_port: int | None = None,
        management_port: int | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        parent_dir: Path | None = None,
        open_files_max: int | None = None,
    ) -> None:
        """Prepare a node; nothing runs yet.

        Args:
            data_dir: where the node keeps its data. A folder given here is kept when the node is
                closed; without one, a temporary folder in `parent_dir` is made and removed.
            config: lines for the configuration file; they win over the ports chosen here.
            amqp_port: a free one by default.
            stream_port: a free one by default.
            management_port: a free one by default.
            arguments: more arguments for `leveret serve`.
            environment: variables to set for the node and for `ctl`.
            parent_dir: the system's temporary folder by default.
            open_files_max: limit of open files, soft and hard; that of this process by default.
        """
        self._home = Path(tempfile.mkdtemp(prefix="leveret-", dir=parent_dir)).resolve()
        self.data_dir = data_dir or self._home / "data"
        self.config_file = self._home / "leveret.conf"
        chosen = free_ports(3)
        self.amqp_port = amqp_port or chosen[0]
        self.stream_port = stream_port or chosen[1]
        self.management_port = management_port or chosen[2]
        self.config = dict(config or {})
        self.arguments = tuple(arguments)
        self.environment = dict(environment or {})
        self.open_files_max = open_files_max
        self.server = ServerProcess(self._home / "output.log")

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start the node and wait until its three listeners answer.

        Raises:
            NotReady: it ended or took longer; with the end of its log.
        """
        self.launch()
        self.wait_ready(timeout_s)
        return self

    def launch(self) -> None:
        """Start the node without waiting; the configuration is written anew from `config`."""
        text = "".join(f"{key} = {value}\n" for key, value in self.settings().items())
        self.config_file.write_text(text)
        serve = ["serve", "--data-dir", str(self.data_dir), "--config", str(self.config_file)]
        arguments = [*serve, *self.arguments]
        if self.open_files_max is None:
            self.server.launch_own(warm_start.NODE, arguments, self._env())
        else:
            argv = ["/bin/sh", "-c", 'ulimit -n "$0" && exec "$@"', str(self.open_files_max)]
            self.server.launch([*argv, sys.executable, "-m", warm_start.NODE, *arguments], self._env())

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the AMQP, stream and management listeners of a launched node answer."""

        def ready() -> bool:
            self.server.assert_alive()
            return speaks_amqp(self.amqp_port) and accepts(self.stream_port) and accepts(self.management_port)

        try:
            wait_until(ready, f"leveret on port {self.amqp_port}", timeout_s)
        except NotReady as late:
            raise NotReady(f"{late}\n{self.server.log_tail()}") from None

    def settings(self) -> dict[str, str]:
        """The lines of the configuration file: the ports, then the caller's."""
        return {
            "listeners.tcp.1": f"{LOOPBACK}:{self.amqp_port}",
            "stream.listeners.tcp.1": f"{LOOPBACK}:{self.stream_port}",
            "management.tcp.ip": LOOPBACK,
            "management.tcp.port": str(self.management_port),
        } | self.config

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End the node in order (SIGTERM), keeping its data; return its exit status."""
        return self.server.terminate(timeout_s)

    def kill9(self) -> None:
        """End the node and all it started as a crash would, keeping its data."""
        self.server.kill9()

    def restart(self) -> Self:
        """Start again on the same data and ports, stopping the node first if it runs."""
        if self.server.alive:
            self.stop()
        return self.start()

    def close(self) -> None:
        """End the node and remove what this object made; a `data_dir` that was given is kept."""
        self.server.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def ctl(
        self, *args: str, check: bool = True, timeout_s: float = CTL_TIMEOUT_S, input_text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run `leveretctl` against this node; `input_text` is what an argument `-` reads.

        Raises:
            subprocess.CalledProcessError: it failed and `check` is set; `stderr` says why.
        """
        done = warm_start.run(
            warm_start.CTL,
            ["--data-dir", str(self.data_dir), *args],
            env=self._env(),
            input_text=input_text,
            timeout_s=timeout_s,
        )
        if check and done.returncode != 0:
            failed = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
            failed.add_note(done.stderr)
            raise failed
        return done

    @property
    def alive(self) -> bool:
        """Whether the node's process runs."""
        return self.server.alive

    @property
    def pid(self) -> int:
        """Process id of the node."""
        return self.server.pid

    def rss_bytes(self) -> int:
        """Resident memory of the node's process now."""
        return self.server.rss_bytes()

    def cpu_seconds(self) -> float:
        """Processor time the node has used since it started."""
        return self.server.cpu_seconds()

    def log_text(self) -> str:
        """Everything the node has written to its output, over all its starts."""
        return self.server.log_text()

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.environment}
