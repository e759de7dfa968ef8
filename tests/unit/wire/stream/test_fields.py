from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.stream.commands import Metadata, Open, PeerProperties, Subscribe, decode
from leveret.wire.stream.fields import Cursor, MalformedCommand, OffsetSpec, OffsetType, layout


def frame(octets: str) -> bytes:
    return bytes.fromhex(octets)


def test_a_null_string_and_a_null_array_are_read_as_empty() -> None:
    assert decode(frame("0015 0001 00000001 ffff")) == Open(1, "")
    assert decode(frame("000f 0001 00000001 ffffffff")) == Metadata(1, [])


def test_a_string_that_is_not_utf_8_is_malformed() -> None:
    with pytest.raises(MalformedCommand, match="UTF-8"):
        decode(frame("0015 0001 00000001 0001 ff"))


@pytest.mark.parametrize("length", ["0004", "7fff", "fffe", "8000"])
def test_a_string_longer_than_the_frame_is_malformed(length: str) -> None:
    with pytest.raises(MalformedCommand, match="octets announced"):
        decode(frame(f"0015 0001 00000001 {length} 616263"))


def test_an_array_that_lies_about_its_count_ends_at_the_frames_end() -> None:
    with pytest.raises(MalformedCommand, match="are left"):
        decode(frame("000f 0001 00000001 7fffffff 0001 61"))


def test_an_offset_type_nobody_knows_is_malformed() -> None:
    with pytest.raises(MalformedCommand, match="offset type 6"):
        decode(frame("0007 0001 00000001 00 0001 61 0006 0001"))


def test_the_properties_of_a_subscription_may_be_left_out() -> None:
    bare = frame("0007 0001 00000001 05 0001 61 0003 000a")
    assert decode(bare) == Subscribe(1, 5, "a", OffsetSpec(OffsetType.NEXT), 10, {})


@given(st.sampled_from(OffsetType), st.integers(0, (1 << 63) - 1))
def test_first_last_and_next_carry_no_value(kind: OffsetType, value: int) -> None:
    valued = kind in (OffsetType.OFFSET, OffsetType.TIMESTAMP)
    encoded = Subscribe(1, 0, "", OffsetSpec(kind, value), 1, {}).encode()
    assert len(encoded) == 4 + 4 + 4 + 1 + 2 + 2 + 2 + (8 if valued else 0)
    assert decode(encoded[4:]) == Subscribe(1, 0, "", OffsetSpec(kind, value if valued else 0), 1, {})


def test_a_timestamp_may_lie_before_1970() -> None:
    early = Subscribe(1, 0, "s", OffsetSpec(OffsetType.TIMESTAMP, -5), 1, {})
    assert decode(early.encode()[4:]) == early


def test_a_cursor_gives_no_octet_that_is_not_there() -> None:
    cursor = Cursor(b"abc", 1)
    assert (cursor.left, cursor.take(2), cursor.left) == (2, b"bc", 0)
    with pytest.raises(MalformedCommand):
        cursor.take(1)
    with pytest.raises(MalformedCommand):
        cursor.take(-1)


def test_the_layout_of_a_command_is_its_fields_in_order() -> None:
    assert [name for name, _ in layout(PeerProperties)] == ["correlation", "properties"]
