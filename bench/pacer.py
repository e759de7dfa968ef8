"""A publisher at a steady rate that goes on until it is told to end, and notes when confirms came.

    python -m bench.pacer '{"role": "pace", "port": 5672, ...}'

What it is for is beside it: a join, a cut, whatever else may hold up those who publish. It sends each message
when it is due, whether or not earlier ones are confirmed, and looks at the socket meanwhile; so its samples
are the moments at which its count of confirms grew, and the time between two of them is a publisher's pause.
"""

from __future__ import annotations

import contextlib
import select
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bench.client import LoadError
from bench.load import Publisher, PublishJob
from bench.process import ORDERS, Result, main, wait_for_go

RATE: Final = 5_000
RUN_MESSAGES: Final = 1_000
GRAIN_NS: Final = 1_000_000
"""It wakes up no more often than this to send: one message at a time would cost a quarter of a processor."""


@dataclass
class PaceJob:
    """What a pacer is to do.

    Attributes:
        rate: messages a second.
        until_lost: the broker will be killed: the end of the connection is no error, and what it returns is
            how many messages were confirmed until then.
    """

    port: int
    queue: str
    rate: int = RATE
    body_bytes: int = 1000
    until_lost: bool = False
    vhost: str = "/"
    role: str = "pace"


class Pacer(Publisher):
    """One connection that publishes at a rate until its parent says that it is enough."""

    def __init__(self, job: PaceJob) -> None:
        super().__init__(
            PublishJob(job.port, job.queue, body_bytes=job.body_bytes, window=RUN_MESSAGES, vhost=job.vhost)
        )
        self._interval_ns = 1_000_000_000 // job.rate
        self._until_lost = job.until_lost
        self._samples: list[tuple[float, int]] = []

    def run(self) -> Result:
        """Publish; return when told to and all is confirmed, or when the broker is gone."""
        self.socket.settimeout(None)
        before_s = time.process_time()
        try:
            self._publish()
        except (LoadError, OSError):
            if not self._until_lost:
                raise
        return Result(self.confirms.count, self._samples, time.process_time() - before_s)

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
                    self._samples.append((time.monotonic(), self.confirms.count))

    def _wait(self, timeout_s: float | None) -> list[Any]:
        """Wait for confirms; for the parent's word too, as long as there is a time at which more is due."""
        sources: list[Any] = [self.socket] if timeout_s is None else [self.socket, ORDERS]
        return select.select(sources, [], [], timeout_s)[0]


def longest_pause_s(samples: list[tuple[float, int]], start: float, end: float) -> float:
    """Return the longest time between two samples, of those that lie in a span or reach into it.

    Raises:
        LoadError: no two samples do.
    """
    pauses = [
        later - sooner for (sooner, _), (later, _) in pairwise(samples) if later > start and sooner < end
    ]
    if not pauses:
        raise LoadError(f"no confirms in a span of {end - start:.2f} s")
    return max(pauses)


def work(reported: dict[str, Any]) -> Result:
    """Do a pacer's job."""
    pacer = Pacer(PaceJob(**reported))
    wait_for_go()
    result = pacer.run()
    with contextlib.suppress(OSError):
        pacer.connection.close()
    return result


if __name__ == "__main__":
    main(work)
