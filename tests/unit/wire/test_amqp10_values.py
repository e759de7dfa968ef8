from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire import amqp10_values as values
from leveret.wire.amqp10_values import ValueFault, decode_value, encode_value

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(
        lambda each: each.replace(microsecond=0, tzinfo=UTC)
    )
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(anything)
def test_a_value_is_read_back_as_it_was_written(value: Any) -> None:
    octets = encode_value(value)
    assert decode_value(octets, 0) == (value, len(octets))


@given(anything)
def test_proton_reads_what_is_written(value: Any) -> None:
    data = proton.Data()
    octets = encode_value(value)
    while octets:
        octets = octets[data.decode(octets) :]
    data.rewind()
    data.next()
    assert plain(data.get_object()) == plain(value)


def plain(value: Any) -> Any:
    """A value without proton's own types."""
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, memoryview):
        return bytes(value)
    return value


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        ("50 07", 7),
        ("51 ff", -1),
        ("56 01", True),
        ("44", 0),
        ("60 0102", 258),
        ("80 0000000000000001", 1),
        ("98 000102030405060708090a0b0c0d0e0f", bytes(range(16))),
        ("a3 02 6869", "hi"),
        ("00 53 75 a0 01 78", b"x"),
        ("45", []),
        ("c0 03 02 41 42", [True, False]),
        ("e0 04 02 50 01 02", [1, 2]),
        ("83 0000000000000000", datetime(1970, 1, 1, tzinfo=UTC)),
        ("83 ffffffffffffffff", -1),
    ],
)
def test_every_type_is_read(octets: str, value: Any) -> None:
    assert decode_value(bytes.fromhex(octets), 0)[0] == value


@given(st.binary(max_size=60))
def test_garbage_is_a_value_or_a_fault(octets: bytes) -> None:
    try:
        _, end = decode_value(octets, 0)
    except ValueFault:
        return
    assert 0 < end <= len(octets)


@pytest.mark.parametrize(
    "octets", ["", "a1 05 61", "3f", "81 00", "a1 01 ff", "f0 00000005 7fffffff 40", "00" * 40]
)
def test_what_is_no_value_is_a_fault(octets: str) -> None:
    with pytest.raises(ValueFault):
        decode_value(bytes.fromhex(octets), 0)


def test_nesting_is_limited() -> None:
    octets = b"\x40"
    for _ in range(values.DEPTH_MAX + 2):
        octets = b"\xd0" + struct.pack(">II", len(octets) + 4, 1) + octets
    with pytest.raises(ValueFault, match="nested"):
        decode_value(octets, 0)
