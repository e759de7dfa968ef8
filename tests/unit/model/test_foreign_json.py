from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.foreign_json import LEVELS_MAX, decode_json, decoded, split_json

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('[{"\\é', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("[{", max_size=3), inner, max_size=3),
    max_leaves=5,
)


class Holder(msgspec.Struct):
    """A document with a value of any form."""

    value: Any


def nested(levels: int, value: object = 0) -> object:
    for level in range(levels):
        value = [0, value] if level % 2 else {"a": 0, "b": value}
    return value


@given(values)
def test_a_value_is_what_its_json_says(value: Any) -> None:
    octets = msgspec.json.encode(value)
    assert decode_json(octets, Any) == value
    assert decode_json(bytearray(octets), Any) == value
    assert decode_json(msgspec.Raw(octets), Any) == value


@pytest.mark.parametrize(
    ("levels", "innermost"), [(0, "[" * 200), (0, [[]] * 200), (LEVELS_MAX, 0), (LEVELS_MAX - 2, [{}, []])]
)
def test_the_most_levels_are_read_however_many_brackets_there_are(levels: int, innermost: object) -> None:
    value = nested(levels, innermost)
    assert decode_json(msgspec.json.encode(value), Any) == value


@pytest.mark.parametrize("levels", [LEVELS_MAX + 1, 900, 2_000, 20_000, 100_000])
def test_one_more_level_is_refused_whatever_the_interpreter_could_hold(levels: int) -> None:
    lists = b"[" * levels + b"]" * levels
    objects = b'{"a":' * levels + b"0" + b"}" * levels
    for octets in (lists, objects):
        with pytest.raises(msgspec.DecodeError, match="nested more than 100 levels deep"):
            decode_json(octets, Any)
        with pytest.raises(msgspec.DecodeError, match="nested more than 100 levels deep"):
            decode_json(b'{"value":' + octets + b"}", Holder)


def test_all_that_is_no_such_json_is_one_error() -> None:
    for octets in (b"{", b'"\xff"', b"[1]", b"{}"):
        with pytest.raises(msgspec.DecodeError):
            decode_json(octets, Holder)
        with pytest.raises(msgspec.DecodeError):
            split_json(octets, Holder)
    with pytest.raises(msgspec.DecodeError, match="levels deep"):
        split_json(b"[" * 100_000, list[msgspec.Raw])


def test_a_packed_document_of_a_peer_has_the_same_error() -> None:
    assert decoded(msgspec.msgpack.decode, memoryview(msgspec.msgpack.encode([7])), list[int]) == [7]
    for octets in (b"\x91" * 100_000, b"\xa1\xff", b"\x91"):
        with pytest.raises(msgspec.DecodeError):
            decoded(msgspec.msgpack.decode, octets, Any)
