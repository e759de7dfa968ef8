"""Plays a conversation on two brokers side by side, and finds the first step after which they differ."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from leveret.testing.network.ports import LOOPBACK
from tests.conformance.brokers import Broker
from tests.conformance.conversations.chance import QUEUES
from tests.conformance.conversations.side import Side
from tests.conformance.conversations.steps import Step, Wait
from tests.conformance.conversations.witness import Events
from tests.conformance.rawclient import PATIENCE_S

AGREEMENT_S: Final = 1.5
"""In which the slower broker is to show what the quicker one has shown."""
SHRINKING_S: Final = 0.5
"""The same, of the parts of a conversation that is known to differ."""
PAUSE_S: Final = 0.002
PAUSE_MAX_S: Final = 0.05
LAST_S: Final = 0.1
"""At the end of a conversation something may still come on both sides."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What the two brokers showed differently after a step."""

    step: int
    rabbitmq: Any
    leveret: Any

    def __str__(self) -> str:
        lines = [f"after step {self.step}"]
        for name, seen in (("RabbitMQ", self.rabbitmq), ("Leveret", self.leveret)):
            lines += [f"  {name}:"] + [f"    {key}: {value}" for key, value in seen.items()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Stage:
    """The two brokers, and their management APIs."""

    rabbitmq: Broker
    leveret: Broker
    rabbitmq_http: httpx.Client
    leveret_http: httpx.Client
    numbers: Iterator[int]

    @property
    def both(self) -> tuple[tuple[Broker, httpx.Client], tuple[Broker, httpx.Client]]:
        """RabbitMQ first."""
        return (self.rabbitmq, self.rabbitmq_http), (self.leveret, self.leveret_http)


@contextmanager
def staged(rabbitmq: Broker, leveret: Broker) -> Iterator[Stage]:
    """Make the users of conversations on both brokers."""
    with client_of(rabbitmq) as first, client_of(leveret) as second:
        for http in (first, second):
            http.put("users/limited", json={"password": "limited", "tags": ""}).raise_for_status()
        yield Stage(rabbitmq, leveret, first, second, itertools.count())


def client_of(broker: Broker) -> httpx.Client:
    """The management API for guest."""
    base = f"http://{LOOPBACK}:{broker.management_port}/api/"
    return httpx.Client(base_url=base, auth=("guest", "guest"), timeout=PATIENCE_S)


def played(stage: Stage, steps: Sequence[Step], agreement_s: float = AGREEMENT_S) -> Difference | None:
    """Play steps in a new virtual host; None if both brokers showed the same."""
    vhost = f"c{next(stage.numbers)}"
    for _, http in stage.both:
        http.put(f"vhosts/{vhost}", json={}).raise_for_status()
        http.put(
            f"permissions/{vhost}/guest", json={"configure": ".*", "write": ".*", "read": ".*"}
        ).raise_for_status()
    try:
        sides = [Side(broker, http, vhost) for broker, http in stage.both]
        return _first_difference(sides, steps, agreement_s)
    finally:
        for _, http in stage.both:
            # RabbitMQ fails here now and then, and the next conversation has another name.
            http.delete(f"vhosts/{vhost}")


def _first_difference(sides: list[Side], steps: Sequence[Step], agreement_s: float) -> Difference | None:
    try:
        for number, step in enumerate(steps):
            if isinstance(step, Wait):
                time.sleep(step.milliseconds / 1000)
            for side in sides:
                side.begin(number, step)
            for side in sides:
                side.finish()
            found = _difference(sides, number, agreement_s)
            if found is not None:
                return found
        time.sleep(LAST_S)
        return _difference(sides, len(steps), agreement_s)
    finally:
        for side in sides:
            side.close()


def _difference(sides: list[Side], number: int, agreement_s: float) -> Difference | None:
    """What differs once both brokers had the time to finish."""
    deadline = time.monotonic() + agreement_s
    pause = PAUSE_S
    while True:
        for side in sides:
            side.ask()
        rabbitmq, leveret = (side.seen() for side in sides)
        if rabbitmq == leveret:
            for side in sides:
                side.witness.agreed()
            return None
        if time.monotonic() > deadline:
            return _told(number, rabbitmq, leveret)
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_MAX_S)


def _told(number: int, rabbitmq: tuple[Events, list[Any]], leveret: tuple[Events, list[Any]]) -> Difference:
    """Only what differs."""
    left, right = (
        {**events, **dict(zip(QUEUES, states, strict=True))} for events, states in (rabbitmq, leveret)
    )
    keys = [key for key in sorted(left.keys() | right.keys(), key=str) if left.get(key) != right.get(key)]
    return Difference(number, {key: left.get(key) for key in keys}, {key: right.get(key) for key in keys})
