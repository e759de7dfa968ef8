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
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

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


class Counted(Protocol):
    """A number of messages so far."""

    @property
    def count(self) -> int:
        """The number."""


class Publishing(Protocol):
    """A connection that publishes as far as its window of messages without a confirm goes."""

    socket: socket.socket
    sent: int

    @property
    def confirms(self) -> Counted:
        """Messages that the broker has confirmed."""

    def read(self) -> None:
        """Take confirms; the socket has some."""

    def fill_window(self) -> None:
        """Publish."""


class Consuming(Counted, Protocol):
    """A connection that counts its deliveries."""

    socket: socket.socket

    def read(self) -> None:
        """Take deliveries; the socket has some."""


def publish_for(seconds: float, publishing: Sequence[Publishing]) -> Result:
    """Publish for so long from when the parent says so, then wait until all is confirmed."""
    wait_for_go()
    sampler = Sampler()
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for one in publishing:
            selector.register(one.socket, selectors.EVENT_READ, one)
            one.fill_window()
        while any(one.confirms.count < one.sent for one in publishing):
            for key, _ in selector.select():
                key.data.read()
                if time.monotonic() < deadline:
                    key.data.fill_window()
            sampler.note(sum(one.confirms.count for one in publishing))
    return sampler.result(sum(one.sent for one in publishing))


def consume_total(consuming: Sequence[Consuming]) -> Result:
    """Begin when the parent says so, and consume until there are as many as it tells."""
    wait_for_go()
    sampler = Sampler()
    total = sys.maxsize
    with selectors.DefaultSelector() as selector:
        for one in consuming:
            selector.register(one.socket, selectors.EVENT_READ, one)
        selector.register(ORDERS, selectors.EVENT_READ, None)
        while (count := sum(one.count for one in consuming)) < total:
            for key, _ in selector.select():
                if key.data is None:
                    total = total_told()
                    selector.unregister(ORDERS)
                else:
                    key.data.read()
            sampler.note(count)
    return sampler.result(sum(one.count for one in consuming))


def main(work: Callable[[dict[str, Any]], Result]) -> None:
    """Do the job of the command line and print its result; a failure ends with its text and status 1."""
    reported: dict[str, Any] = json.loads(sys.argv[1])
    try:
        print(json.dumps(dataclasses.asdict(work(reported))), flush=True)
    except (LoadError, LeveretError, OSError) as failed:
        sys.exit(f"{reported['role']}: {failed}")
