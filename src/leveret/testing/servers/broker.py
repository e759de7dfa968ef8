"""A real Leveret node as a process, for end-to-end tests, demos and benchmarks.

    with LeveretProcess() as node:                       # own temporary data, free ports
        connect("127.0.0.1", node.amqp_port)             # guest / guest
        node.kill9()
        node.start()
        node.ctl("list_vhosts_available_for_standby_replication_recovery")

This module knows only the node's outside: a command starts it, a file configures it, its listeners answer when it is
ready, and `leveretctl` operates it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from leveret.testing.network.ports import LOOPBACK, accepts, free_ports, speaks_amqp
from leveret.testing.servers import warm_start
from leveret.testing.servers.process import NodeServer, ServerProcess

CTL_TIMEOUT_S: Final = 180.0


class LeveretProcess(NodeServer):
    """One Leveret node with its data, configuration, ports and log."""

    product = "leveret"
    stop_timeout_s = 30.0

    def __init__(
        self,
        data_dir: Path | None = None,
        config: Mapping[str, str] | None = None,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        parent_dir: Path | None = None,
        open_files_max: int | None = None,
    ) -> None:
        """Prepare a node; nothing runs yet.

        Args:
            data_dir: the node's data directory. `close` keeps a directory that is given here, and removes the
                temporary one in `parent_dir` that is made otherwise.
            config: lines of the configuration file; they override the chosen ports, which are free.
            arguments: more arguments for `leveret serve`.
            environment: variables to set for the node and for `ctl`.
            parent_dir: the system's temporary folder by default.
            open_files_max: limit of open files, soft and hard; that of this process by default.
        """
        self._home = Path(tempfile.mkdtemp(prefix="leveret-", dir=parent_dir)).resolve()
        self.data_dir = data_dir or self._home / "data"
        self.config_file = self._home / "leveret.conf"
        self.amqp_port, self.stream_port, self.management_port = free_ports(3)
        self.config = dict(config or {})
        self.arguments = tuple(arguments)
        self.environment = dict(environment or {})
        self.open_files_max = open_files_max
        self.server = ServerProcess(self._home / "output.log")

    def launch(self) -> None:
        """Write the configuration file from `config`, and start the node without waiting."""
        text = "".join(f"{key} = {value}\n" for key, value in self.settings().items())
        self.config_file.write_text(text)
        serve = ["serve", "--data-dir", str(self.data_dir), "--config", str(self.config_file)]
        arguments = [*serve, *self.arguments]
        if self.open_files_max is None:
            self.server.launch_own(warm_start.NODE, arguments, self._env())
        else:
            argv = ["/bin/sh", "-c", 'ulimit -n "$0" && exec "$@"', str(self.open_files_max)]
            self.server.launch([*argv, sys.executable, "-m", warm_start.NODE, *arguments], self._env())

    def answers(self) -> bool:
        """See NodeServer."""
        return speaks_amqp(self.amqp_port) and accepts(self.stream_port) and accepts(self.management_port)

    def settings(self) -> dict[str, str]:
        """Return the lines of the configuration file: the ports, overridden by the caller's lines."""
        return {
            "listeners.tcp.1": f"{LOOPBACK}:{self.amqp_port}",
            "stream.listeners.tcp.1": f"{LOOPBACK}:{self.stream_port}",
            "management.tcp.ip": LOOPBACK,
            "management.tcp.port": str(self.management_port),
        } | self.config

    def close(self) -> None:
        """End the node and remove its files, except a `data_dir` that the caller gave."""
        self.server.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def ctl(
        self, *args: str, check: bool = True, timeout_s: float = CTL_TIMEOUT_S, input_text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run `leveretctl` against this node. `input_text` is its standard input, which an argument `-` reads.

        Raises:
            subprocess.CalledProcessError: the command failed and `check` is set; `stderr` has the reason.
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

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.environment}
