"""The two sites of the demo, and the applications at the first: real processes that differ by their ports only."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pika

from leveret.testing.applications.applications import ReceivedMessage, drain_all, parameters
from leveret.testing.demo.flights import QUEUES, declare
from leveret.testing.demo.processes import Applications
from leveret.testing.demo.report import Bar
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.sites.standby_pair import BEACON, PROMOTE_TIMEOUT_S, StandbyPair, get

VHOST: Final = "flights"
_RATE_MIN: Final = 3000
_PUBLISH_S: Final = 40
_CONSUMED: Final = 0.7


class Sites:
    """Upstream, downstream, and the applications with their books."""

    def __init__(self) -> None:
        """Prepare both nodes; nothing runs yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="leveret-demo-")
        folder = Path(self._folder.name)
        self.pair = StandbyPair(VHOST, folder)
        self.applications = Applications(folder / "books", VHOST)

    def __enter__(self) -> Self:
        """Start nothing yet: `start` starts."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process and remove every file."""
        self.applications.close()
        self.pair.close()
        self._folder.cleanup()

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of each site's HTTP API."""
        nodes = {"eu": self.pair.upstream, "us": self.pair.downstream}
        return {name: f"http://{LOOPBACK}:{node.management_port}" for name, node in nodes.items()}

    # -- the sites ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start both nodes; declare the upstream's schema as an operator and an application would."""
        self.pair.start()
        self.pair.replicate("osr", "^.*")
        with pika.BlockingConnection(parameters(self.pair.upstream.amqp_port, VHOST)) as connection:
            declare(connection.channel())

    def connect_downstream(self) -> None:
        """Point the downstream at the upstream; wait until definitions and a message have arrived."""
        self.pair.follow()
        self.pair.wait_transferred()
        self.pair.wait_queues([*QUEUES, BEACON])

    # -- the applications ---------------------------------------------------------------------

    def start_applications(self, count: int, seed: int) -> None:
        """Start a publisher and a consumer, each a process of its own."""
        rate, ports = max(_RATE_MIN, count // _PUBLISH_S), [self.pair.upstream.amqp_port]
        self.applications.publish(ports, count, rate=rate)
        self.applications.consume(ports, seed, rate=int(rate * _CONSUMED))

    def kill_upstream(self) -> None:
        """Kill the upstream."""
        self.pair.upstream.kill9()
        self.applications.wait_gone()

    # -- the promotion ------------------------------------------------------------------------

    def promote(self, bar: Bar) -> str:
        """Promote the downstream; return the summary that the operator sees."""
        command = "promote_standby_replication_downstream"
        downstream = self.pair.downstream
        return _with_progress(
            lambda: downstream.ctl(command, timeout_s=PROMOTE_TIMEOUT_S).stdout,
            lambda: bar(sum(row["messages"] for row in get(downstream, f"queues/{VHOST}"))),
        )

    def promoted(self) -> str:
        """Return the summary of a promotion that has ended, as the operator sees it."""
        return self.pair.downstream.ctl("display_standby_promotion_summary").stdout

    def drain(self) -> dict[str, list[ReceivedMessage]]:
        """Empty the downstream's queues, all at the same time."""
        return drain_all(self.pair.downstream.amqp_port, VHOST, QUEUES)


def _with_progress(work: Callable[[], str], look: Callable[[], None]) -> str:
    """Run `work` in a thread, and read its progress twice a second."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        while not result.done():
            look()
            time.sleep(0.5)
        return result.result()
