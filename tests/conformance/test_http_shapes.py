"""The HTTP API's answers have the fields and types of RabbitMQ's, but for those that docs/deviations.md names.

The table there is the list that this test goes by: a field that is left out has its reason.
`http_scene` plays the same scene on both brokers; what RabbitMQ answered is recorded in `http_shapes.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Final

from tests.conformance.brokers import RABBITMQ
from tests.conformance.http_scene import RECORDED

DOCUMENTED: Final = Path(__file__).parents[2] / "docs" / "deviations.md"
ROW: Final = re.compile(
    r"\| (?P<fields>`[^|]+`) \| (?P<where>[^|]+) \| (?P<who>RabbitMQ|Leveret|both) \| (?P<why>[^|]+) \|"
)


def documented() -> tuple[set[str], set[tuple[str, str]]]:
    """Fields that differ wherever they are, and single places, as (path, place), of the table in the docs."""
    everywhere: set[str] = set()
    places: set[tuple[str, str]] = set()
    table = DOCUMENTED.read_text().partition("# Fields of the HTTP API")[2]
    for row in ROW.finditer(table):
        fields = _quoted(row["fields"])
        if row["where"] == "everywhere":
            everywhere |= fields
        else:
            places |= set(product(_quoted(row["where"]), fields))
    return everywhere, places


def _quoted(text: str) -> set[str]:
    return {"" if each == "-" else each for each in re.findall(r"`([^`]+)`", text)}


EVERYWHERE, PLACES = documented()

CHANGING: Final = frozenset({"channel_closed", "connection_closed", "contexts", "socket_opts"})
"""What RabbitMQ 3.10 tells some time after its start, and options that depend on the listener."""

OF_THE_MOMENT: Final = frozenset({"applications", "idle_since"})
"""What one RabbitMQ tells and the next does not: which of Erlang's applications run, one at times with no
description, and since when a queue is idle."""


def test_the_api_tells_what_rabbitmqs_tells(scene: tuple[str, list[str]]) -> None:
    kind, lines = scene
    recorded = RECORDED.read_text().splitlines()
    if kind == RABBITMQ:
        assert _steady(lines) == _steady(recorded)
    else:
        assert _common(recorded) - set(lines) == set()
        assert _common(lines) - set(recorded) == set()


def test_every_row_of_the_table_says_something() -> None:
    """A row for what is the same by now would hide the next difference."""
    recorded = RECORDED.read_text().splitlines()
    named = {word.removesuffix("_details") for line in recorded for word in _place_of(line)[1].split(".")}
    shown = {_place_of(line) for line in recorded}
    table = DOCUMENTED.read_text().partition("# Fields of the HTTP API")[2]
    gone = [
        row["fields"]
        for row in ROW.finditer(table)
        if row["who"] == "RabbitMQ" and not _is_recorded(row, named, shown)
    ]
    assert gone == []
    assert EVERYWHERE
    assert PLACES


def _is_recorded(row: re.Match[str], named: set[str], shown: set[tuple[str, str]]) -> bool:
    fields = _quoted(row["fields"])
    if row["where"] == "everywhere":
        return fields <= named
    return set(product(_quoted(row["where"]), fields)) <= shown


def _common(lines: Iterable[str]) -> set[str]:
    """Lines without what differs on purpose."""
    return {line for line in lines if not _differs(line)}


def _differs(line: str) -> bool:
    path, place = _place_of(line)
    fields = {word.removesuffix("_details") for word in place.split(".")}
    return bool(fields & (EVERYWHERE | CHANGING)) or (path, place) in PLACES


def _steady(lines: Iterable[str]) -> list[str]:
    """What RabbitMQ tells every time: some of its statistics come and go."""
    return [
        line
        for line in lines
        if "_details" not in line and not set(_place_of(line)[1].split(".")) & (CHANGING | OF_THE_MOMENT)
    ]


def _place_of(line: str) -> tuple[str, str]:
    """Path and place of `200 PATH  PLACE TYPE`."""
    asked, _, rest = line.partition("  ")
    return asked.partition(" ")[2], rest.partition(" ")[0].replace("[]", "").strip(".")
