"""The properties of messages as columns, each of its own type.

Messages of an application often have the same properties, and Parquet stores equal ones once. So properties come as a
dictionary, and each of its values is taken apart once. Properties that are no such octets, which a broker does not
accept, are null.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
from pamqp import decode

from leveret.pipeline.table.columns import MESSAGES
from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.field_values import SECONDS_MAX
from leveret.wire.properties import UNREADABLE, SyntaxFault
from leveret.wire.record import content_header

_INT64_MAX: Final = (1 << 63) - 1


def property_columns(properties: pa.DictionaryArray, names: Iterable[str]) -> dict[str, pa.Array]:
    """The columns of these names, from the properties (flags and list) of each message."""
    taken = [_split(octets) for octets in properties.dictionary.to_pylist()]
    found = {}
    for name in names:
        flag, value_of = _COLUMNS[name]
        values = [None if flag not in each else value_of(each[flag]) for each in taken]
        found[name] = pa.array(values, MESSAGES.field(name).type).take(properties.indices)
    return found


def _split(octets: bytes) -> dict[int, bytes]:
    try:
        return props.split_whole(content_header(octets, 0))
    except SyntaxFault:
        return {}


def _text(octets: bytes) -> str:
    return octets.decode(errors="replace")


def _number(octets: bytes) -> int:
    return int.from_bytes(octets, "big")


def _seconds(octets: bytes) -> datetime | None:
    seconds = int.from_bytes(octets, "big")
    # Beyond that, Python and Spark have no time: some applications write milliseconds.
    return datetime.fromtimestamp(seconds, UTC) if seconds <= SECONDS_MAX else None


def _headers(table: bytes) -> list[tuple[str, dict[str, Any]]] | None:
    try:
        # Names that differ only in octets that are no UTF-8 have the same text, and a map has a key once.
        found = {_text(key): _header(value) for key, value in tables.split(table).items()}
    except SyntaxFault:
        return None
    return list(found.items())


def _header(value: bytes) -> dict[str, Any]:
    kind, octets = value[:1], value[1:]
    if kind == b"S":
        return {"type": "longstr", "text": _text(octets[4:])}
    if kind == b"x":
        return {"type": "binary", "text": base64.b64encode(octets[4:]).decode()}
    if kind == b"t":
        is_true = octets != b"\0"
        return {"type": "bool", "text": "true" if is_true else "false", "boolean": is_true}
    if kind == b"T":
        when = _seconds(octets)
        return {"type": "timestamp", "text": str(_number(octets)), "timestamp": when}
    integer = tables.integer_of(value)
    if integer is not None:
        kept = integer if integer <= _INT64_MAX else None
        return {"type": _INTEGERS[kind], "text": str(integer), "integer": kept}
    return _other(kind, value)


def _other(kind: bytes, value: bytes) -> dict[str, Any]:
    """A value of a rarer type: floating point and decimal numbers, void, and arrays and tables as JSON."""
    try:
        decoded: Any = decode.embedded_value(value)[1]
    except UNREADABLE:
        return {"type": "unknown", "text": base64.b64encode(value[1:]).decode()}
    if kind in (b"f", b"d", b"D"):
        name = {b"f": "float", b"d": "double", b"D": "decimal"}[kind]
        return {"type": name, "text": str(decoded), "double": float(decoded)}
    if kind == b"V":
        return {"type": "void"}
    return {"type": "array" if kind == b"A" else "table", "text": _json(decoded)}


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    """A value that JSON has not."""
    return _text(bytes(value)) if isinstance(value, bytes | bytearray) else str(value)


_INTEGERS: Final = tables.INTEGER_NAMES | {b"L": "unsignedlong"}
"""The names of the types of integers."""
_COLUMNS: Final[dict[str, tuple[int, Callable[[bytes], Any]]]] = {
    "content_type": (props.CONTENT_TYPE, _text),
    "content_encoding": (props.CONTENT_ENCODING, _text),
    "headers": (props.HEADERS, _headers),
    "delivery_mode": (props.DELIVERY_MODE, _number),
    "priority": (props.PRIORITY, _number),
    "correlation_id": (props.CORRELATION_ID, _text),
    "reply_to": (props.REPLY_TO, _text),
    "expiration": (props.EXPIRATION, _text),
    "message_id": (props.MESSAGE_ID, _text),
    "message_timestamp": (props.TIMESTAMP, _seconds),
    "message_type": (props.TYPE, _text),
    "user_id": (props.USER_ID, _text),
    "app_id": (props.APP_ID, _text),
    "cluster_id": (props.CLUSTER_ID, _text),
}
