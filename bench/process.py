"""One process of the load generator: how it talks with its parent, and what it hands back.

It is started with its job in JSON, connects, encodes its messages, prints `ready`, waits for a line on its
standard input, works, and prints its result as one line of JSON. Another line may say how many messages
there are in all. Rates are not computed here: a result carries samples (monotonic time, messages so far),
and the parent reads any interval off them, the same for every kind of process.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bench.client import LoadError
from leveret.model.errors import LeveretError

SAMPLE_INTERVAL_S: Final = 0.02

# Unbuffered: what the parent wrote must show in select() until it is read.
ORDERS: Final = io.FileIO(0, closefd=False)


@dataclass
class Result:
    """What a process did.

    Attributes:
        samples: (monotonic seconds, messages confirmed - or sent, without confirms - or delivered).
        ages_us: of a stamped run, percentiles of the messages' age by name.
    """

    count: int = 0
    samples: list[tuple[float, int]] = field(default_factory=list)
    cpu_s: float = 0.0
    ages_us: dict[str, float] = field(default_factory=dict)


class Sampler:
    """Notes how far a process is, now and then."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self._next_s = 0.0
        self._cpu_before_s = time.process_time()

    def note(self, count: int) -> None:
        """Keep a sample if the last one is old enough."""
        now = time.monotonic()
        if now >= self._next_s:
            self.samples.append((now, count))
            self._next_s = now + SAMPLE_INTERVAL_S

    def result(self, count: int) -> Result:
        """Close with a last sample."""
        self.samples.append((time.monotonic(), count))
        return Result(count, self.samples, time.process_time() - self._cpu_before_s)


def wait_for_go() -> None:
    """Tell the parent that all is prepared; return when it says that work begins."""
    print("ready", flush=True)
    ORDERS.readline()


def total_told() -> int:
    """Read from the parent how many messages there are in all; waits for it."""
    return int(ORDERS.readline())


def main(work: Callable[[dict[str, Any]], Result]) -> None:
    """Do the job of the command line and print its result; a failure ends with its text and status 1."""
    reported: dict[str, Any] = json.loads(sys.argv[1])
    try:
        print(json.dumps(dataclasses.asdict(work(reported))), flush=True)
    except (LoadError, LeveretError, OSError) as failed:
        sys.exit(f"{reported['role']}: {failed}")
