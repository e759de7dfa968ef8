"""One process of the load generator: its protocol with its parent, and its result.

The process gets its job in JSON, connects, encodes its messages, and prints `ready`. After a line on its standard input
it works, and prints its result as one line of JSON. Another line may give the total number of messages. A result has
samples (monotonic time, messages so far) and no rates: the parent computes the rate of any interval from the samples,
in the same way for every kind of process.
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

# Unbuffered, because select() must report the parent's lines until they are read.
ORDERS: Final = io.FileIO(0, closefd=False)


@dataclass
class Result:
    """The result of a process.

    Attributes:
        count: the number of messages.
        samples: (monotonic seconds, messages so far): confirmed ones, sent ones without confirms, or delivered ones.
        cpu_s: processor time of the process.
        ages_us: percentiles of the messages' age, by name; empty without stamps.
    """

    count: int = 0
    samples: list[tuple[float, int]] = field(default_factory=list)
    cpu_s: float = 0.0
    ages_us: dict[str, float] = field(default_factory=dict)


class Sampler:
    """Takes samples of a count at intervals."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self._next_s = 0.0
        self._cpu_before_s = time.process_time()

    def note(self, count: int) -> None:
        """Take a sample if the last one is old enough."""
        now = time.monotonic()
        if now >= self._next_s:
            self.samples.append((now, count))
            self._next_s = now + SAMPLE_INTERVAL_S

    def result(self, count: int) -> Result:
        """Take the last sample; return the result."""
        self.samples.append((time.monotonic(), count))
        return Result(count, self.samples, time.process_time() - self._cpu_before_s)


def wait_for_go() -> None:
    """Report to the parent that all is prepared; return at its order to begin."""
    print("ready", flush=True)
    ORDERS.readline()


def total_told() -> int:
    """Wait for the total number of messages from the parent; return it."""
    return int(ORDERS.readline())


class Counted(Protocol):
    """A number of messages so far."""

    @property
    def count(self) -> int:
        """The number."""


class Publishing(Protocol):
    """A connection that publishes, with a window of unconfirmed messages."""

    socket: socket.socket
    sent: int

    @property
    def confirms(self) -> Counted:
        """The messages that the broker has confirmed."""

    def read(self) -> None:
        """Read confirms from the readable socket."""

    def fill_window(self) -> None:
        """Publish as many messages as the window allows."""


class Consuming(Counted, Protocol):
    """A connection that counts its deliveries."""

    socket: socket.socket

    def read(self) -> None:
        """Read deliveries from the readable socket."""


def publish_for(seconds: float, publishing: Sequence[Publishing]) -> Result:
    """Publish for `seconds` from the parent's order on, then wait until all is confirmed."""
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
    """Begin at the parent's order, and consume until the parent's total is reached."""
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
    """Do the job of the command line, and print its result; after a failure print its text, and end with status 1."""
    fields: dict[str, Any] = json.loads(sys.argv[1])
    try:
        print(json.dumps(dataclasses.asdict(work(fields))), flush=True)
    except (LoadError, LeveretError, OSError) as failed:
        sys.exit(f"{fields['role']}: {failed}")
