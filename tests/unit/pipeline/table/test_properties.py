"""The properties of messages as columns of their own types."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pamqp.encode
import pyarrow as pa
import pytest
from pamqp import commands, header

from leveret.pipeline.table.columns import MESSAGES, OF_PROPERTIES
from leveret.pipeline.table.properties import property_columns

WHEN = datetime(2026, 11, 24, 12, tzinfo=UTC)


def octets(**values: Any) -> bytes:
    return header.ContentHeader(0, 0, commands.Basic.Properties(**values)).marshal()[12:]


def columns(*properties: bytes) -> list[dict[str, Any]]:
    found = property_columns(pa.array(properties, pa.binary()).dictionary_encode(), OF_PROPERTIES)
    assert {name: array.type for name, array in found.items()} == {
        name: MESSAGES.field(name).type for name in OF_PROPERTIES
    }
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in pa.table(found).to_pylist()
    ]


def test_each_property_has_a_column_of_its_type() -> None:
    given = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "1000",
        "message_id": "m",
        "message_type": "t",
        "user_id": "u",
        "app_id": "ä",
    }
    assert columns(octets(**given, timestamp=WHEN), octets(), octets(priority=0)) == [
        {**given, "message_timestamp": WHEN},
        {},
        {"priority": 0},
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", {"type": "longstr", "text": "text"}),
        (True, {"type": "bool", "text": "true", "boolean": True}),
        (1.5, {"type": "float", "text": "1.5", "double": 1.5}),
        (Decimal("1.25"), {"type": "decimal", "text": "1.25", "double": 1.25}),
        (WHEN, {"type": "timestamp", "text": str(int(WHEN.timestamp())), "timestamp": WHEN}),
        (None, {"type": "void"}),
        (bytearray(b"\xff"), {"type": "binary", "text": "/w=="}),
        (1 << 40, {"type": "long", "text": str(1 << 40), "integer": 1 << 40}),
    ],
)
def test_a_header_has_its_type_its_text_and_its_value(value: Any, expected: dict[str, Any]) -> None:
    [row] = columns(octets(headers={"k": value}))
    [(name, found)] = row["headers"]
    assert name == "k"
    assert {key: each for key, each in found.items() if each is not None} == expected


def test_a_table_in_a_header_is_json() -> None:
    death = [{"queue": "q", "count": 2, "time": WHEN, "reason": "rejected"}]
    [row] = columns(octets(headers={"x-death": death}))
    [(_, found)] = row["headers"]
    assert found["type"] == "array"
    [read] = json.loads(found["text"])
    assert (read["queue"], read["count"], read["reason"]) == ("q", 2, "rejected")


@pytest.mark.parametrize("properties", [b"", b"\x20\x00\0\0\0\x09", b"\x80\x00\x05ab", b"\x00\x00more"])
def test_octets_that_are_no_properties_are_null(properties: bytes) -> None:
    assert columns(properties, octets(app_id="a")) == [{}, {"app_id": "a"}]


def test_a_time_beyond_what_spark_can_hold_is_null() -> None:
    """Some applications write milliseconds where the protocol has seconds."""
    assert columns(b"\x00\x40" + (1_700_000_000_000).to_bytes(8, "big")) == [{}]
    assert pamqp.encode.timestamp(WHEN) == int(WHEN.timestamp()).to_bytes(8, "big")
