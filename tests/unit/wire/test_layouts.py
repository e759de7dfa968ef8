"""wire.layouts: a layout fits where all octets but those of its slots are the same."""

from __future__ import annotations

import struct

import pytest

from leveret.wire.layouts import (
    LAYOUTS_MAX,
    LONG,
    LONG_MIN,
    SHORT,
    SOURCE_BYTES_MAX,
    Conversion,
    Layout,
    Layouts,
    Parts,
    Sized,
    Slot,
)


def source(text: bytes, long: bytes = b"l" * LONG_MIN, octet: bytes = b"1", kind: bytes = b"k") -> bytes:
    """A size, a short text, an octet and long octets; then the end of the size, and a constant."""
    content = bytes((len(text),)) + text + kind + octet + struct.pack(">I", len(long)) + long
    return struct.pack(">I", len(content)) + content + b"end"


def layout_of(octets: bytes) -> Layout[str]:
    text_end = 5 + octets[4]
    long_end = len(octets) - 3
    text = Slot(4, text_end, SHORT, is_text=True)
    octet = Slot(text_end + 1, text_end + 2, 1, convert=lambda each: None if each == b"0" else each * 2)
    outputs: list[Parts] = [
        [b"100% ", text, b"-", octet],
        [Slot(text_end + 2, long_end, LONG), b"!"],
        [b"none"],
    ]
    return Layout(Conversion(octets, (0, len(octets)), outputs, [Sized(0, 4, long_end)], "note"))


LAYOUT = layout_of(source(b"first"))


@pytest.mark.parametrize("text", [b"first", b"", "é".encode(), b"a" * 255])
def test_octets_of_the_layout_are_cut_and_put_together(text: bytes) -> None:
    octets = source(text, b"m" * 300, b"7")
    found = LAYOUT.read(b"before" + octets, 6)
    assert found is not None
    assert found.outputs == [
        b"100% " + bytes((len(text),)) + text + b"-77",
        struct.pack(">I", 300) + b"m" * 300 + b"!",
        b"none",
    ]
    assert (found.end, found.note) == (6 + len(octets), "note")


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (source(b"first", kind=b"K"), "an octet in common differs"),
        (source(b"\xff"), "a text is no UTF-8"),
        (source(b"first", octet=b"0"), "a slot cannot be converted"),
        (source(b"first", b"m" * (LONG_MIN - 1)), "so few octets have another form"),
        (source(b"first")[:-4], "the source ends early"),
        (source(b"first")[:2], "the source ends in a size"),
        (b"\0\0\0\1" + source(b"first")[4:], "the size is another one"),
    ],
)
def test_other_octets_have_another_layout(octets: bytes, why: str) -> None:
    assert LAYOUT.read(octets, 0) is None, why


def test_the_layouts_that_are_known_are_few_and_those_used_last() -> None:
    layouts: Layouts[int] = Layouts()
    for number in range(200):
        octets = b"%03d" % number
        assert layouts.read(octets, 0) is None
        layouts.learn(Conversion(octets, (0, 3), [[octets]], [], number))
        assert layouts.read(b"000", 0) is not None
    assert LAYOUTS_MAX < layouts.learned < 16
    known = [number for number in range(200) if layouts.read(b"%03d" % number, 0) is not None]
    assert len(known) == LAYOUTS_MAX
    assert known[0] == 0


def test_no_layout_is_learned_of_a_long_source() -> None:
    layouts: Layouts[int] = Layouts()
    layouts.learn(Conversion(bytes(SOURCE_BYTES_MAX + 1), (0, SOURCE_BYTES_MAX + 1), [[b""]], [], 0))
    assert not layouts.learned


def test_constants_stand_between_any_number_of_slots() -> None:
    octets = bytes(SOURCE_BYTES_MAX)
    slots = [Slot(at, at + 1, 1) for at in range(0, SOURCE_BYTES_MAX, 2)]
    layout = Layout(Conversion(octets, (0, len(octets)), [slots, [b"a", *slots, b"b", b"c"]], [], None))
    found = layout.read(octets, 0)
    assert found is not None
    assert found.outputs == [bytes(len(slots)), b"a" + bytes(len(slots)) + b"bc"]
