"""wire.content_header: a header is read as it would be taken apart, and refused where it would be."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire import content_header, tables
from leveret.wire import properties as props
from leveret.wire.content_header import HeaderReader, Traits, read_traits
from leveret.wire.properties import SyntaxFault

FIXED_BYTES = 14
SHORT = st.sampled_from([b"", b"a", b"bb", b"c" * 20])
VALUES = st.recursive(
    st.one_of(
        SHORT.map(tables.long_string),
        st.integers(-5, 5).map(tables.integer),
        st.sampled_from([b"V", b"t\1", b"x\0\0\0\2ab", b"D" + bytes(5)]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(tables.array),
        st.dictionaries(SHORT, inner, max_size=2).map(tables.table),
    ),
    max_leaves=5,
)
SHORT_STRINGS = (
    props.CONTENT_TYPE,
    props.CONTENT_ENCODING,
    props.CORRELATION_ID,
    props.REPLY_TO,
    props.EXPIRATION,
    props.MESSAGE_ID,
    props.TYPE,
    props.USER_ID,
    props.APP_ID,
    props.CLUSTER_ID,
)


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Any header, some of them damaged."""
    found = {flag: draw(SHORT) for flag in SHORT_STRINGS if draw(st.booleans())}
    if draw(st.booleans()):
        found[props.HEADERS] = tables.join(draw(st.dictionaries(SHORT, VALUES, max_size=4)))
    for flag in (props.DELIVERY_MODE, props.PRIORITY):
        if draw(st.booleans()):
            found[flag] = bytes((draw(st.integers(0, 3)),))
    if draw(st.booleans()):
        found[props.TIMESTAMP] = struct.pack(">Q", draw(st.integers(0, 9)))
    header = bytearray(props.join(found, 5))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        header[draw(st.integers(FIXED_BYTES, max(FIXED_BYTES, len(header) - 1))) % len(header)] ^= draw(
            st.integers(1, 255)
        )
    header += draw(st.sampled_from([b"", b"", b"", b"zz"]))
    return bytes(header)


def taken_apart(header: bytes) -> Traits:
    """Traits by way of all properties."""
    found = props.split_whole(header)
    tables.check(found.get(props.HEADERS, b""))
    for value in tables.split(found.get(props.HEADERS, b"")).values():
        assert value
    if found.get(props.DELIVERY_MODE, b"\1") not in (b"\1", b"\2"):
        raise SyntaxFault("no delivery mode")
    terms = (found.get(props.EXPIRATION, b""), found.get(props.PRIORITY, b"\0")[0])
    return Traits(found.get(props.DELIVERY_MODE) == b"\2", terms)


@given(headers())
def test_a_header_is_read_as_it_would_be_taken_apart(header: bytes) -> None:
    flags = props.property_flags(header)
    try:
        wanted = taken_apart(header)
    except SyntaxFault:
        with pytest.raises(SyntaxFault):
            read_traits(header, FIXED_BYTES, flags)
        return
    assert read_traits(header, FIXED_BYTES, flags) == wanted


@given(st.lists(headers(), min_size=1, max_size=4), st.data())
def test_a_reader_that_knows_layouts_reads_each_header_as_one_that_knows_none(
    known: list[bytes], data: st.DataObject
) -> None:
    reader = HeaderReader()
    for _ in range(12):
        header = bytearray(data.draw(st.sampled_from(known)))
        for _ in range(data.draw(st.sampled_from([0, 1, 3]))):
            at = data.draw(st.integers(0, len(header) - 1))
            header[at] = data.draw(st.integers(0, 255)) if at >= FIXED_BYTES else header[at]
        octets = bytes(header)
        flags = props.property_flags(octets)
        try:
            wanted = read_traits(octets, FIXED_BYTES, flags)
        except SyntaxFault:
            with pytest.raises(SyntaxFault):
                reader.read(octets, FIXED_BYTES, flags)
            continue
        assert reader.read(octets, FIXED_BYTES, flags) == wanted


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The headers that a reader walks through."""
    found: list[bytes] = []

    def walk(header: bytes, position: int, flags: int) -> Traits:
        found.append(header)
        return read_traits(header, position, flags)

    monkeypatch.setattr(content_header, "read_traits", walk)
    return found


def test_headers_of_one_layout_are_walked_once(walked: list[bytes]) -> None:
    reader = HeaderReader()
    for number in range(100):
        found = {
            props.HEADERS: tables.join({b"trace": tables.long_string(b"%08d" % number)}),
            props.DELIVERY_MODE: b"\2",
            props.MESSAGE_ID: b"%06d" % number,
        }
        header = props.join(found, number)
        assert reader.read(header, FIXED_BYTES, props.property_flags(header)) == Traits(True, (b"", 0))
    assert len(walked) == 1


@pytest.mark.parametrize(
    "found",
    [
        {},
        {props.TIMESTAMP: bytes(8)},
        {props.DELIVERY_MODE: b"\2"},
        {props.REPLY_TO: b"amq.rabbitmq.reply-to"},
    ],
)
def test_headers_of_few_properties_are_walked_once_too(found: dict[int, bytes], walked: list[bytes]) -> None:
    """Most stock clients' are such headers."""
    reader = HeaderReader()
    is_persistent = props.DELIVERY_MODE in found
    for number in range(20):
        header = props.join(found, number)
        traits = reader.read(header, FIXED_BYTES, props.property_flags(header))
        assert traits == Traits(is_persistent, (b"", 0))
    assert len(walked) <= 1


def test_a_kind_of_headers_has_several_layouts(walked: list[bytes]) -> None:
    """Applications' values differ in length: one longer by as much as another is shorter, in headers of one length."""
    reader = HeaderReader()
    for number in range(100):
        longer = number % content_header.LAYOUTS_MAX
        found = {
            props.DELIVERY_MODE: b"\2",
            props.MESSAGE_ID: b"%06d" % number + b"m" * longer,
            props.TYPE: b"t" * (10 - longer),
        }
        header = props.join(found, number)
        assert reader.read(header, FIXED_BYTES, props.property_flags(header)) == Traits(True, (b"", 0))
    assert len(walked) == content_header.LAYOUTS_MAX


def test_kinds_do_not_fill_memory() -> None:
    reader = HeaderReader()
    for size in range(2 * content_header.KINDS_MAX):
        header = props.join({props.HEADERS: tables.join({b"x": tables.long_string(b"y" * size)})}, 1)
        reader.read(header, FIXED_BYTES, props.property_flags(header))
    assert len(reader._kinds) <= content_header.KINDS_MAX


def test_layouts_with_many_places_do_not_fill_memory_either() -> None:
    reader = HeaderReader()
    kept = content_header.PLACES_OF_ALL_MAX // content_header.PLACES_MAX
    for size in range(2 * kept):
        entries = {b"%02d" % number: tables.long_string(b"") for number in range(17)}
        header = props.join(
            {props.HEADERS: tables.join(entries | {b"x": tables.long_string(b"y" * size)})}, 1
        )
        reader.read(header, FIXED_BYTES, props.property_flags(header))
    places = sum(layout.places for kind in reader._kinds.values() for layout in kind.layouts)
    assert places <= content_header.PLACES_OF_ALL_MAX + content_header.PLACES_MAX
    assert len(reader._kinds) < 2 * kept


def test_headers_of_one_length_do_not_fill_memory() -> None:
    reader = HeaderReader()
    for longer in range(200):
        found = {props.MESSAGE_ID: b"m" * longer, props.TYPE: b"t" * (200 - longer)}
        header = props.join(found, 1)
        assert reader.read(header, FIXED_BYTES, props.property_flags(header)) == Traits(False, (b"", 0))
    assert all(len(kind.layouts) <= content_header.LAYOUTS_MAX for kind in reader._kinds.values())
