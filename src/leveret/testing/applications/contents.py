"""Properties and bodies of messages as applications send them: no two messages have the same ones.

Both follow from a seed and the message's number. Properties are a dict by AMQP's names, with values as pika takes them.
A message has its number as its message id; one without properties has it at the begin of its body.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pamqp import commands

PERSISTENT: Final = 2
_EPOCH_S: Final = 1_700_000_000
_DAYS_MS: Final = 20 * 86_400_000
"""So long that nothing expires, even as simulated clocks are set by hours."""
_BODY_BYTES_MAX: Final = 4_000
_LARGE_BYTES: Final = (140_000, 300_000)
_BARE: Final = 0.08
"""The share of messages without properties."""
_EMPTY: Final = 0.1
_LARGE: Final = 0.01
_BY_DEATH: Final = ("x-death", "x-first-death-", "x-last-death-")
"""The begins of the headers that dead-lettering adds."""
_STREAMED: Final = (
    "message_id",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
    "content_type",
    "content_encoding",
    "timestamp",
)
_BY_DELIVERY: Final = "x-delivery-count"
_PRICES: Final = 1_000_000_000
"""The number of different decimals: AMQP has 32 bits for one, and the publishers of a long run number further."""


class Content(NamedTuple):
    """The properties that are set, and the body."""

    properties: dict[str, Any]
    body: bytes


def content_of(number: int, seed: object = 0, *, transient: float = 0.0) -> Content:
    """Return the content of a message; `transient` is the share of messages that are not persistent."""
    chance = random.Random(f"{seed} {number}")
    found = _properties(number, chance, transient)
    begin = b"" if "message_id" in found else b"%d " % number
    return Content(found, begin + _body(chance))


def properties_of(number: int, seed: object = 0) -> dict[str, Any]:
    """Return the properties of a persistent message that always has a message id."""
    return {
        **_properties(number, random.Random(f"{seed} {number}"), 0.0),
        "message_id": str(number),
    }


def number_of(message_id: str | None, body: bytes) -> int:
    """Return the number of a message with this id and this body; -1 if it has none."""
    text = message_id or body[:20].partition(b" ")[0].decode("latin-1")
    return int(text) if text.isascii() and text.isdigit() else -1


def as_published(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a delivered message without those that dead-lettering and deliveries add."""
    found = {name: value for name, value in properties.items() if value is not None}
    headers = found.get("headers")
    if headers:
        own = {name: headers[name] for name in headers if not name.startswith((*_BY_DEATH, _BY_DELIVERY))}
        found["headers"] = own
        if not own and len(own) < len(headers):
            del found["headers"]
    return found


def has_died(properties: Mapping[str, Any]) -> bool:
    """Return whether a message with these properties is a dead letter."""
    return "x-death" in (properties.get("headers") or {})


def is_same(published: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return whether a delivered message has the properties of this published one.

    Dead-lettering takes the expiration away, and may have added the only header of the message.
    """
    wanted, got = as_published(published), as_published(found)
    if has_died(found):
        wanted.pop("expiration", None)
    if not wanted.get("headers"):
        # An empty table of headers is one, until the broker adds its own.
        wanted.pop("headers", None)
        if not got.get("headers"):
            got.pop("headers", None)
    return wanted == got


def is_streamed(published: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return whether a reader of a stream got a message with what a stream keeps of these properties.

    A stream keeps headers of simple types only, and not the expiration, as in RabbitMQ.
    """
    return all(published.get(name) == found.get(name) for name in _STREAMED)


def for_pamqp(fields: Mapping[str, Any]) -> commands.Basic.Properties:
    """Return properties as pamqp takes them."""
    found = dict(fields)
    found["message_type"] = found.pop("type", None)
    if "timestamp" in found:
        found["timestamp"] = datetime.fromtimestamp(found["timestamp"], UTC)
    if "headers" in found:
        found["headers"] = {
            key: bytearray(value) if isinstance(value, bytes) else value
            for key, value in found["headers"].items()
        }
    return commands.Basic.Properties(**found)


def from_pamqp(properties: commands.Basic.Properties) -> dict[str, Any]:
    """Return the properties that are set; see `for_pamqp`."""
    fields: dict[str, Any] = dict(properties)
    found = {name: value for name, value in fields.items() if value not in (None, "")}
    if "message_type" in found:
        found["type"] = found.pop("message_type")
    if "timestamp" in found:
        found["timestamp"] = int(found["timestamp"].timestamp())
    return found


def shown_number(row: Mapping[str, Any]) -> int:
    """Return the number of a message that the HTTP API shows."""
    return number_of(dict(row["properties"]).get("message_id"), _payload(row))


def is_shown(published: Mapping[str, Any], body: bytes, row: Mapping[str, Any]) -> bool:
    """Return whether the HTTP API shows a message with these properties and this body as it was published."""
    return _payload(row) == body and is_same(_in_json(published), dict(row["properties"]))


def _payload(row: Mapping[str, Any]) -> bytes:
    text = str(row["payload"])
    return base64.b64decode(text) if row["payload_encoding"] == "base64" else text.encode()


def _in_json(value: Any) -> Any:
    """Return a value as JSON shows it: times in seconds, octets as text."""
    match value:
        case dict():
            return {key: _in_json(each) for key, each in value.items()}
        case list():
            return [_in_json(each) for each in value]
        case bytes():
            return value.decode("utf-8", "replace")
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
    return value


def _properties(number: int, chance: random.Random, transient: float) -> dict[str, Any]:
    is_persistent = chance.random() >= transient
    if chance.random() < _BARE:
        return {"delivery_mode": PERSISTENT} if is_persistent else {}
    found: dict[str, Any] = {
        "delivery_mode": PERSISTENT if is_persistent else chance.choice((None, 1)),
        "message_id": str(number),
        "content_type": chance.choice((None, "application/json", "text/plain; charset=utf-8")),
        "content_encoding": chance.choice((None, None, None, "gzip")),
        "correlation_id": chance.choice((None, f"order {number}", chance.randbytes(8).hex())),
        "timestamp": chance.choice((None, _EPOCH_S + number)),
        "priority": chance.choice((None, None, None, 0, chance.randint(1, 9))),
        "expiration": chance.choice((None, None, None, str(_DAYS_MS + number))),
        "reply_to": chance.choice((None, None, None, f"replies.{number % 7}")),
        "type": chance.choice((None, f"order.{chance.choice(('created', 'changed', 'shipped'))}")),
        "app_id": chance.choice((None, f"shop-{number % 100}")),
        "headers": chance.choice((None, {}, _trace(number, chance), _headers(number))),
    }
    return {name: value for name, value in found.items() if value is not None}


def _trace(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "traceparent": f"00-{chance.randbytes(16).hex()}-{chance.randbytes(8).hex()}-01",
        "tenant": f"tenant-{chance.randrange(100_000)}",
        "number": number,
    }


def _headers(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "negative": -number,
        "large": 1 << 40,
        "price": Decimal(number % _PRICES) / 100,
        "text": "Zürich → Genève",
        "octets": b"\xff\x00" + b"%d" % number,
        "yes": True,
        "nothing": None,
        "at": datetime.fromtimestamp(_EPOCH_S + number, UTC),
        "nested": {"list": [number, "two", [3]], "table": {}},
    }


def _body(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < _EMPTY:
        return b""
    if kind < _EMPTY + _LARGE:
        return chance.randbytes(chance.randint(*_LARGE_BYTES))
    # Sizes are spread evenly by their logarithm.
    return chance.randbytes(round(_BODY_BYTES_MAX ** chance.random()))
