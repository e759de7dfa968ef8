"""A private, throw-away RabbitMQ node: the oracle of the tests and the reference of the benchmarks.

It runs Debian's `rabbitmq-server` (or any RabbitMQ whose `sbin` folder RABBITMQ_SBIN names) on loopback, on free
ports, with its own epmd, cookie, home and data in a temporary folder. It neither reads nor changes the machine's own
RabbitMQ and its settings in /etc.

    with RabbitNode(plugins=("rabbitmq_management",)) as rabbit:
        connect("127.0.0.1", rabbit.amqp_port)         # guest / guest
        rabbit.ctl("list_queues", "name", "messages")

As root the packaged commands in /usr/sbin change to the user `rabbitmq`, which may not write to the tests' folders.
So this module runs the scripts behind them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from leveret.testing.network.ports import LOOPBACK, NotReady, accepts, free_ports, speaks_amqp, wait_until
from leveret.testing.servers.process import NodeServer, ServerProcess

CTL_TIMEOUT_S: Final = 60.0
EPMD_TIMEOUT_S: Final = 10.0
COOKIE: Final = "LEVERETTESTS"

_SBIN_DEBIAN: Final = Path("/usr/lib/rabbitmq/bin")


def available() -> str | None:
    """Return None if a node can be run here, else the reason and the remedy."""
    if not (_sbin() / "rabbitmq-server").exists():
        return f"no RabbitMQ in {_sbin()}: install the package rabbitmq-server or set RABBITMQ_SBIN"
    if shutil.which("erl") is None or shutil.which("epmd") is None:
        return "no Erlang on the path: install the package erlang-base"
    return None


def _sbin() -> Path:
    return Path(os.environ.get("RABBITMQ_SBIN", _SBIN_DEBIAN))


class Epmd:
    """The daemon from which Erlang nodes learn each other's ports, for one node or for a cluster."""

    def __init__(self, home: Path, port: int) -> None:
        """Prepare the daemon with its log in `home`; nothing runs yet."""
        self._home = home
        self._port = port
        self._process = ServerProcess(home / "epmd.log")

    def start(self) -> None:
        """Start the daemon unless it runs.

        Raises:
            NotReady: the daemon does not answer.
        """
        if self._process.alive:
            return
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._home)}
        self._process.launch(["epmd", "-port", str(self._port), "-address", LOOPBACK], env)
        wait_until(lambda: accepts(self._port), "epmd", EPMD_TIMEOUT_S)

    def close(self) -> None:
        """End the daemon."""
        self._process.close()


class RabbitNode(NodeServer):
    """One RabbitMQ node of its own; a context manager that leaves neither process nor file.

    Its process is the Erlang machine.
    """

    product = "RabbitMQ"
    start_timeout_s = 90.0

    def __init__(
        self,
        *,
        plugins: Sequence[str] = (),
        config: Mapping[str, str] | None = None,
        schedulers: int | None = 1,
        parent_dir: Path | None = None,
        name: str = "rabbit",
        epmd_port: int | None = None,
    ) -> None:
        """Prepare a node; nothing runs yet.

        Args:
            plugins: enabled plugins; `rabbitmq_management`, `rabbitmq_stream` and
                `rabbitmq_prometheus` get ports of their own.
            config: more lines for rabbitmq.conf.
            schedulers: the number of Erlang schedulers; None takes one a core, as an operator's node does.
            parent_dir: the folder for the node's own folder; the system's temporary folder by default.
            name: first part of the node's name.
            epmd_port: the port of a shared epmd; None gives the node an epmd of its own.
        """
        self.plugins = tuple(plugins)
        self.config = dict(config or {})
        self.schedulers = schedulers
        self.name = name
        self.home = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir=parent_dir)).resolve()
        ports = free_ports(6)
        self.amqp_port, self.management_port, self.stream_port = ports[:3]
        self.prometheus_port, self.dist_port = ports[3:5]
        self.epmd_port = epmd_port or ports[5]
        self.server = ServerProcess(self.home / "output.log")
        self._epmd = None if epmd_port else Epmd(self.home, self.epmd_port)
        self._lay_out()

    def launch(self) -> None:
        """Start the node without waiting.

        Raises:
            NotReady: RabbitMQ is not installed, or its epmd does not start.
        """
        reason = available()
        if reason is not None:
            raise NotReady(reason)
        if self._epmd is not None:
            self._epmd.start()
        self.server.launch([_sbin() / "rabbitmq-server"], self._env(), cwd=self.home)

    def close(self) -> None:
        """End all processes of the node and remove its files."""
        self.server.close()
        if self._epmd is not None:
            self._epmd.close()
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def node(self) -> str:
        """The Erlang node's full name."""
        return f"{self.name}@localhost"

    def log_text(self) -> str:
        """Return the node's log files and its output."""
        logs = sorted((self.home / "log").glob("*.log"))
        return "".join(one.read_text(errors="replace") for one in logs) + self.server.log_text()

    def ctl(
        self, *args: str, check: bool = True, program: str = "rabbitmqctl"
    ) -> subprocess.CompletedProcess[str]:
        """Run `rabbitmqctl` (or `rabbitmq-plugins`, `rabbitmq-diagnostics`) against this node.

        Raises:
            subprocess.CalledProcessError: the command failed and `check` is set; `stderr` has the reason.
        """
        done = subprocess.run(
            [str(_sbin() / program), "-n", self.node, *args],
            env=self._env(),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CTL_TIMEOUT_S,
            check=False,
        )
        if check and done.returncode != 0:
            failed = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
            failed.add_note(done.stderr)
            raise failed
        return done

    def answers(self) -> bool:
        """See NodeServer."""
        listeners = {
            "rabbitmq_management": self.management_port,
            "rabbitmq_stream": self.stream_port,
            "rabbitmq_prometheus": self.prometheus_port,
        }
        others = (port for plugin, port in listeners.items() if plugin in self.plugins)
        return speaks_amqp(self.amqp_port) and all(accepts(port) for port in others)

    def _lay_out(self) -> None:
        """Write the node's files: cookie, plugins, configuration."""
        for name in ("mnesia", "log"):
            (self.home / name).mkdir()
        cookie = self.home / ".erlang.cookie"
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)
        (self.home / "env.conf").write_text("")
        (self.home / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        lines = self._settings() | self.config
        text = "".join(f"{key} = {value}\n" for key, value in lines.items())
        (self.home / "rabbitmq.conf").write_text(text)

    def _settings(self) -> dict[str, str]:
        """Return the lines of rabbitmq.conf that put every listener on loopback and on its own port."""
        settings = {"listeners.tcp.1": f"{LOOPBACK}:{self.amqp_port}", "loopback_users": "none"}
        if "rabbitmq_management" in self.plugins:
            settings["management.tcp.ip"] = LOOPBACK
            settings["management.tcp.port"] = str(self.management_port)
        if "rabbitmq_stream" in self.plugins:
            settings["stream.listeners.tcp.1"] = f"{LOOPBACK}:{self.stream_port}"
        if "rabbitmq_prometheus" in self.plugins:
            settings["prometheus.tcp.ip"] = LOOPBACK
            settings["prometheus.tcp.port"] = str(self.prometheus_port)
        return settings

    def _env(self) -> dict[str, str]:
        """Return the environment of the node and of its commands."""
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
        loopback_only = "-kernel inet_dist_use_interface {127,0,0,1}"
        schedulers = f"+S {self.schedulers}:{self.schedulers} " if self.schedulers else ""
        return kept | {
            # The machine's own host name may need a resolver; "localhost" needs none.
            "HOSTNAME": "localhost",
            "HOME": str(self.home),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_BASE": str(self.home),
            "RABBITMQ_MNESIA_BASE": str(self.home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.home / "log"),
            "RABBITMQ_CONF_ENV_FILE": str(self.home / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.home / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": schedulers + loopback_only,
            "RABBITMQ_CTL_ERL_ARGS": loopback_only,
            # The start script then becomes the Erlang machine instead of its parent, so that the process started here
            # is the broker, and signals reach it directly.
            "detached": "true",
        }


def version() -> str:
    """Return the version of the nodes' RabbitMQ, `unknown` if the folder's name lacks it."""
    home = (_sbin() / "rabbitmq-server").resolve().parent.parent
    return home.name.partition("-")[2] or "unknown"
