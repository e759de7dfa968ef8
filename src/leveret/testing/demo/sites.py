"""The two sites of the demo, and the applications at the first: real processes, told apart only by ports."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pika

from leveret.testing.broker import LeveretProcess
from leveret.testing.demo.books import count_entries
from leveret.testing.demo.clients import parameters
from leveret.testing.demo.flights import EXCHANGE, ORIGINS, QUEUES, queue_of
from leveret.testing.demo.report import Bar
from leveret.testing.ports import wait_until

PULSE: Final = "pulse"
_RATE_MIN: Final = 3000
_PUBLISH_S: Final = 40
_CONSUMED: Final = 0.7
_CONNECT_TIMEOUT_S: Final = 90.0
_PUBLISH_TIMEOUT_S: Final = 300.0
_PROMOTE_TIMEOUT_S: Final = 300.0


class Sites:
    """Upstream, downstream, and the books of the applications."""

    vhost: Final = "flights"

    def __init__(self) -> None:
        """Prepare both nodes; nothing runs yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="leveret-demo-")
        folder = Path(self._folder.name)
        self.upstream = LeveretProcess(config={"cluster_name": "eu.1"}, parent_dir=folder)
        self.downstream = LeveretProcess(
            config={
                "cluster_name": "eu.2",
                "schema_definition_sync.operating_mode": "downstream",
                "schema_definition_sync.downstream.minimum_sync_interval": "1",
                "schema_definition_sync.downstream.locals.global_parameters": "^standby",
                "standby.replication.operating_mode": "downstream",
            },
            parent_dir=folder,
        )
        self.confirmed_book = folder / "confirmed"
        self.acked_book = folder / "acked"
        self._applications: list[subprocess.Popen[bytes]] = []
        self._password = secrets.token_urlsafe(12)

    def __enter__(self) -> Self:
        """Nothing to do: `start` starts."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process and remove every file."""
        for application in self._applications:
            application.kill()
            application.wait()
        self.upstream.close()
        self.downstream.close()
        self._folder.cleanup()

    # -- the sites ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start both nodes; declare the upstream's schema the way an operator and an application would."""
        self.upstream.launch()
        self.downstream.launch()
        self.upstream.wait_ready()
        self.downstream.wait_ready()
        ctl = self.upstream.ctl
        ctl("add_vhost", self.vhost, "--tags", "standby_replication")
        ctl("set_permissions", "-p", self.vhost, "guest", ".*", ".*", ".*")
        ctl(
            "set_policy",
            "--vhost",
            self.vhost,
            "osr",
            "^.*",
            '{"remote-dc-replicate": true}',
            "--apply-to",
            "queues",
        )
        ctl("add_schema_replication_user", "schema-replicator", "-", input_text=self._password)
        ctl("add_user", "offsite-replicator", "-", input_text=self._password)
        ctl("set_permissions", "-p", self.vhost, "offsite-replicator", ".*", ".*", ".*")
        self._declare()

    def _declare(self) -> None:
        connection = pika.BlockingConnection(parameters(self.upstream.amqp_port, self.vhost))
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
        for origin in ORIGINS:
            channel.queue_declare(queue_of(origin), durable=True)
            channel.queue_bind(queue_of(origin), EXCHANGE, f"{origin}.*")
        connection.close()

    def connect_downstream(self) -> None:
        """Point the downstream at the upstream; wait until definitions are there and messages flow."""
        ctl = self.downstream.ctl
        ctl(
            "set_schema_replication_upstream_endpoints",
            "-",
            input_text=self._endpoints("schema-replicator", self.upstream.amqp_port),
        )
        ctl(
            "set_standby_replication_upstream_endpoints",
            "-",
            input_text=self._endpoints("offsite-replicator", self.upstream.stream_port),
        )
        self._send_pulse()
        wait_until(self._follows, "the downstream to follow", _CONNECT_TIMEOUT_S)

    def _send_pulse(self) -> None:
        """A message of no consequence: once it has crossed, the whole way is warm."""
        connection = pika.BlockingConnection(parameters(self.upstream.amqp_port, self.vhost))
        channel = connection.channel()
        channel.queue_declare(PULSE, durable=True)
        channel.basic_publish("", PULSE, b"", pika.BasicProperties(delivery_mode=2))
        next(channel.consume(PULSE, auto_ack=True))
        connection.close()

    def _endpoints(self, username: str, port: int) -> str:
        return json.dumps(
            {"endpoints": [f"127.0.0.1:{port}"], "username": username, "password": self._password}
        )

    def _follows(self) -> bool:
        queues = self._json(self.downstream, "list_queues", "-p", self.vhost, "name", check=False) or []
        status = self._json(self.downstream, "standby_replication_status", check=False) or {"vhosts": []}
        crossed = any(
            row["virtual_host"] == self.vhost and row["transferred"] > 0 for row in status["vhosts"]
        )
        return {row["name"] for row in queues} == {*QUEUES, PULSE} and crossed

    def _json(self, node: LeveretProcess, *command: str, check: bool = True) -> Any:
        done = node.ctl(*command, "--formatter", "json", check=check)
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else None

    # -- the applications ---------------------------------------------------------------------

    def start_applications(self, count: int, seed: int) -> None:
        """A publisher and a consumer, in processes of their own."""
        port = str(self.upstream.amqp_port)
        rate = max(_RATE_MIN, count // _PUBLISH_S)
        self._launch("publish", port, self.vhost, str(count), str(rate), str(self.confirmed_book))
        self._launch("consume", port, self.vhost, str(int(rate * _CONSUMED)), str(self.acked_book), str(seed))

    def _launch(self, *arguments: str) -> None:
        argv = [sys.executable, "-m", "leveret.testing.demo.clients", *arguments]
        self._applications.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))

    def confirmed(self) -> int:
        """How many flights the publisher knows to be confirmed."""
        return count_entries(self.confirmed_book)

    def wait_confirmed(self, count: int, bar: Bar) -> None:
        """Wait until so many flights are confirmed."""

        def reached() -> bool:
            bar(self.confirmed())
            if any(application.poll() is not None for application in self._applications):
                raise RuntimeError("an application of the demo ended before the disaster")
            return self.confirmed() >= count

        wait_until(reached, f"{count} confirms", _PUBLISH_TIMEOUT_S)

    def kill_upstream(self) -> None:
        """The disaster."""
        self.upstream.kill9()
        for application in self._applications:
            application.wait(timeout=30)

    # -- the promotion ------------------------------------------------------------------------

    def promote(self, bar: Bar) -> str:
        """Promote the downstream; return the summary as the operator sees it."""
        return _with_progress(
            lambda: (
                self.downstream.ctl(
                    "promote_standby_replication_downstream", timeout_s=_PROMOTE_TIMEOUT_S
                ).stdout
            ),
            lambda: bar(
                sum(
                    row["messages"]
                    for row in self._json(
                        self.downstream, "list_queues", "-p", self.vhost, "name", "messages"
                    )
                    or []
                )
            ),
        )

    def transferred(self) -> tuple[dict[str, int], int]:
        """Messages that reached the standby, by queue, and the time of the last thing that did."""
        rows = self._json(self.downstream, "inspect_standby_downstream_metrics")
        mine = [row for row in rows if row["vhost"] == self.vhost and row["queue"] != PULSE]
        return {row["queue"]: row["messages"] for row in mine}, max(row["timestamp"] for row in mine)


def _with_progress(work: Callable[[], str], look: Callable[[], None]) -> str:
    """Run `work` in a thread, looking twice a second how far it is."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        while not result.done():
            look()
            time.sleep(0.5)
        return result.result()


def now_ms() -> int:
    """Wall clock in milliseconds."""
    return time.time_ns() // 1_000_000
