"""The two sites of the demo, and the applications at the first: real processes, told apart only by ports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pika

from leveret.testing.applications import Taken, drain, parameters
from leveret.testing.books import Books, count_entries
from leveret.testing.demo.flights import EXCHANGE, ORIGINS, QUEUES, queue_of
from leveret.testing.demo.report import Bar
from leveret.testing.ports import wait_until
from leveret.testing.standby_pair import BEACON, PROMOTE_TIMEOUT_S, StandbyPair, get

VHOST: Final = "flights"
_RATE_MIN: Final = 3000
_PUBLISH_S: Final = 40
_CONSUMED: Final = 0.7
_PUBLISH_TIMEOUT_S: Final = 300.0


class Sites:
    """Upstream, downstream, and the books of the applications."""

    def __init__(self) -> None:
        """Prepare both nodes; nothing runs yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="leveret-demo-")
        folder = Path(self._folder.name)
        self.pair = StandbyPair(VHOST, folder)
        self.books = Books(folder / "books")
        self._applications: list[subprocess.Popen[bytes]] = []

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
        self.pair.close()
        self._folder.cleanup()

    # -- the sites ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start both nodes; declare the upstream's schema the way an operator and an application would."""
        self.pair.start()
        self.pair.replicate("osr", "^.*")
        with pika.BlockingConnection(parameters(self.pair.upstream.amqp_port, VHOST)) as connection:
            channel = connection.channel()
            channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
            for origin in ORIGINS:
                channel.queue_declare(queue_of(origin), durable=True)
                channel.queue_bind(queue_of(origin), EXCHANGE, f"{origin}.*")

    def connect_downstream(self) -> None:
        """Point the downstream at the upstream; wait until definitions are there and a message has crossed."""
        self.pair.follow()
        self.pair.wait_transferred()
        self.pair.wait_queues([*QUEUES, BEACON])

    # -- the applications ---------------------------------------------------------------------

    def start_applications(self, count: int, seed: int) -> None:
        """A publisher and a consumer, in processes of their own."""
        rate = max(_RATE_MIN, count // _PUBLISH_S)
        self._launch("publish", rate, count)
        self._launch("consume", int(rate * _CONSUMED), seed)

    def _launch(self, role: str, rate: int, last: int) -> None:
        port, folder = self.pair.upstream.amqp_port, self.books.confirmed.parent
        argv = [sys.executable, "-m", "leveret.testing.demo.clients"]
        arguments = [role, str(port), VHOST, str(rate), str(folder), str(last)]
        self._applications.append(subprocess.Popen([*argv, *arguments], stdin=subprocess.DEVNULL))

    def confirmed(self) -> int:
        """How many flights the publisher knows to be confirmed."""
        return count_entries(self.books.confirmed)

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
        self.pair.upstream.kill9()
        for application in self._applications:
            application.wait(timeout=30)

    # -- the promotion ------------------------------------------------------------------------

    def promote(self, bar: Bar) -> str:
        """Promote the downstream; return the summary as the operator sees it."""
        command = "promote_standby_replication_downstream"
        downstream = self.pair.downstream
        return _with_progress(
            lambda: downstream.ctl(command, timeout_s=PROMOTE_TIMEOUT_S).stdout,
            lambda: bar(sum(row["messages"] for row in get(downstream, f"queues/{VHOST}"))),
        )

    def drain(self) -> dict[str, list[Taken]]:
        """Empty the downstream's queues, all at once."""
        port = self.pair.downstream.amqp_port
        with ThreadPoolExecutor(len(QUEUES)) as pool:
            taken = pool.map(lambda queue: drain(port, VHOST, queue), QUEUES)
            return dict(zip(QUEUES, taken, strict=True))


def _with_progress(work: Callable[[], str], look: Callable[[], None]) -> str:
    """Run `work` in a thread, looking twice a second how far it is."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        while not result.done():
            look()
            time.sleep(0.5)
        return result.result()
