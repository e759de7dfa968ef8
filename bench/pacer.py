"""A publisher at a steady rate that notes the times of its confirms, until its parent ends it.

    python -m bench.pacer '{"role": "pace", "port": 5672, ...}'

It shows the pauses that other work, such as a join or a cut link, causes for publishers. It sends each message when it
is due, also if earlier ones are unconfirmed, and reads confirms in between. Its samples are the times at which its
count of confirms grew, so the time between two samples is a publisher's pause. The ages in its result are the times
from the moment at which a message was due to its confirm.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bench.client import Connection, LoadError
from bench.load import Confirms, Publisher, PublishJob, percentiles_us
from bench.process import ORDERS, Result, main, wait_for_go

RATE: Final = 5_000
RUN_MESSAGES: Final = 1_000
CONNECT_TIMEOUT_S: Final = 60.0
CONNECT_AGAIN_S: Final = 0.005
GRAIN_NS: Final = 1_000_000
"""The shortest time between two sends; a send for each message would cost a quarter of a processor."""


@dataclass
class PaceJob:
    """The job of a pacer.

    Attributes:
        rate: messages a second.
        until_lost: the broker will be killed, so the end of the connection is no error; the result has the number of
            messages that were confirmed until then.
        others: ports of other nodes; a publisher that loses its connection connects to the next one, and goes on there.
    """

    port: int
    queue: str
    rate: int = RATE
    body_bytes: int = 1000
    until_lost: bool = False
    others: Sequence[int] = ()
    vhost: str = "/"
    role: str = "pace"


class Pacer(Publisher):
    """One connection that publishes at a rate until its parent ends it."""

    def __init__(self, job: PaceJob) -> None:
        super().__init__(
            PublishJob(job.port, job.queue, body_bytes=job.body_bytes, window=RUN_MESSAGES, vhost=job.vhost)
        )
        self._interval_ns = 1_000_000_000 // job.rate
        self._until_lost = job.until_lost
        self._ports = deque([*job.others, job.port] if job.others else [])
        self._before = 0
        self._samples: list[tuple[float, int]] = []
        self._ages_ns: list[int] = []

    def run(self) -> Result:
        """Publish; return after the parent's order when all is confirmed, or when the broker is lost."""
        self.socket.settimeout(None)
        before_s = time.process_time()
        while True:
            try:
                self._publish()
                break
            except (LoadError, OSError):
                if self._ports:
                    self._connect_elsewhere()
                elif self._until_lost:
                    break
                else:
                    raise
        count = self._before + self.confirms.count
        ages_us = percentiles_us(self._ages_ns) if self._ages_ns else {}
        return Result(count, self._samples, time.process_time() - before_s, ages_us)

    def _connect_elsewhere(self) -> None:
        """Connect to the next node that takes connections; what had no confirm is not published again."""
        self.socket.close()
        self._before += self.confirms.count
        self.confirms = Confirms()
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            port = self._ports.popleft()
            self._ports.append(port)
            try:
                self.connection = Connection(port, vhost=self.job.vhost)
                self.connection.confirm_select()
                break
            except (LoadError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(CONNECT_AGAIN_S)
        self.socket = self.connection.socket
        self.socket.settimeout(None)

    def _publish(self) -> None:
        started_ns = time.monotonic_ns()
        sent, ending, next_ns = 0, False, started_ns
        while not ending or self.confirms.count < sent:
            now_ns = time.monotonic_ns()
            if not ending and now_ns >= next_ns:
                run = min((now_ns - started_ns) // self._interval_ns + 1 - sent, self.longest_run)
                self._send(sent, run)
                sent += run
                next_ns = max(started_ns + sent * self._interval_ns, now_ns + GRAIN_NS)
                continue
            readable = self._wait(None if ending else (next_ns - now_ns) / 1e9)
            ending = ending or ORDERS in readable
            if self.socket in readable:
                seen = self.confirms.count
                self._read_confirms()
                if self.confirms.count > seen:
                    self._samples.append((time.monotonic(), self._before + self.confirms.count))
                    self._note_ages(started_ns, seen)

    def _note_ages(self, started_ns: int, seen: int) -> None:
        """Note how long ago the messages were due that are confirmed since then; confirms mostly come in order."""
        now_ns = time.monotonic_ns()
        for number in range(seen, self.confirms.count):
            self._ages_ns.append(now_ns - started_ns - number * self._interval_ns)

    def _wait(self, timeout_s: float | None) -> list[Any]:
        """Wait for confirms, and with a timeout also for the parent's order; return the readable sources."""
        sources: list[Any] = [self.socket] if timeout_s is None else [self.socket, ORDERS]
        return select.select(sources, [], [], timeout_s)[0]


def longest_pause_s(samples: list[tuple[float, int]], start: float, end: float) -> float:
    """Return the longest time between two neighbouring samples, at least partly in a span.

    Raises:
        LoadError: there are no such samples.
    """
    pauses = [
        later - sooner for (sooner, _), (later, _) in pairwise(samples) if later > start and sooner < end
    ]
    if not pauses:
        raise LoadError(f"no confirms in a span of {end - start:.2f} s")
    return max(pauses)


def work(fields: dict[str, Any]) -> Result:
    """Do a pacer's job."""
    pacer = Pacer(PaceJob(**fields))
    wait_for_go()
    result = pacer.run()
    with contextlib.suppress(OSError):
        pacer.connection.close()
    return result


if __name__ == "__main__":
    main(work)
