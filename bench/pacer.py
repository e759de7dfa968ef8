"""A publisher at a steady rate that goes on until it is told to end, and notes when confirms came.

    python -m bench.pacer '{"role": "pace", "port": 5672, ...}'

What it is for is beside it: a join, a cut, whatever else may hold up those who publish. It sends each message
when it is due, whether or not earlier ones are confirmed, and looks at the socket meanwhile; so its samples
are the moments at which its count of confirms grew, and the time between two of them is a publisher's pause.
"""

from __future__ import annotations

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


@dataclass
class PaceJob:
    """What a pacer is to do; `rate` is messages a second."""

    port: int
    queue: str
    rate: int = RATE
    body_bytes: int = 1000
    vhost: str = "/"
    role: str = "pace"


class Pacer(Publisher):
    """One connection that publishes at a rate until its parent says that it is enough."""

    def __init__(self, job: PaceJob) -> None:
        super().__init__(
            PublishJob(job.port, job.queue, body_bytes=job.body_bytes, window=RUN_MESSAGES, vhost=job.vhost)
        )
        self._interval_ns = 1_000_000_000 // job.rate

    def run(self) -> Result:
        """Publish; return when told to and all is confirmed."""
        self.socket.settimeout(None)
        before_s, started_ns = time.process_time(), time.monotonic_ns()
        samples: list[tuple[float, int]] = []
        sent, ending = 0, False
        while not ending or self.confirms.count < sent:
            due_ns = started_ns + sent * self._interval_ns
            if not ending and (late_ns := time.monotonic_ns() - due_ns) >= 0:
                run = min(late_ns // self._interval_ns + 1, self.longest_run)
                self._send(sent, run)
                sent += run
                continue
            readable = self._wait(None if ending else -late_ns / 1e9)
            ending = ending or ORDERS in readable
            if self.socket in readable:
                seen = self.confirms.count
                self._read_confirms()
                if self.confirms.count > seen:
                    samples.append((time.monotonic(), self.confirms.count))
        return Result(sent, samples, time.process_time() - before_s)

    def _wait(self, timeout_s: float | None) -> list[Any]:
        """Wait for confirms; for the parent's word too, as long as there is a time at which more is due."""
        sources = [self.socket] if timeout_s is None else [self.socket, ORDERS]
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


def work(told: dict[str, Any]) -> Result:
    """Do a pacer's job."""
    pacer = Pacer(PaceJob(**told))
    wait_for_go()
    result = pacer.run()
    pacer.connection.close()
    return result


if __name__ == "__main__":
    main(work)
