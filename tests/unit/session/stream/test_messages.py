from __future__ import annotations

import gzip
import struct
from typing import Any

import proton
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.header import ContentHeader
from rstream import AMQPMessage

from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import Run, alike
from leveret.session.stream.messages import entries_of, last_offset_of, runs_of
from leveret.wire import properties, tables
from leveret.wire.amqp10_values import DEPTH_MAX, list_of, map_of, symbol
from leveret.wire.chunk import ChunkError
from leveret.wire.properties import decode, shortstr, split
from leveret.wire.record import content_header

Properties = commands.Basic.Properties


def entry(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


def shown(runs: list[Run]) -> list[tuple[int, bytes]]:
    """(offset in the header, body); each is the offset in the run."""
    found: list[tuple[int, bytes]] = []
    for run in runs:
        for offset, (head, body) in enumerate(messages_of(run), run.first):
            headers: Any = decode(split(head.header)).headers
            assert headers["x-stream-offset"] == offset
            found.append((offset, body))
    return found


def messages_of(run: Run) -> list[tuple[Head, bytes]]:
    messages = run.taken()
    return [(messages.head_at(at), body) for at, body in enumerate(messages.bodies)]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "bb"]), st.binary(max_size=6)), max_size=12), st.integers(0, 5)
)
def test_what_is_published_is_consumed_with_its_offset(
    messages: list[tuple[str, bytes]], from_offset: int
) -> None:
    gathered = [
        alike(
            make_head(b"ex", key.encode(), ContentHeader(0, len(body), Properties(message_id=key)).marshal()),
            [body],
        )
        for key, body in messages
    ]
    runs = runs_of(b"".join(entries_of(gathered)), 0, from_offset, b"queue")
    wanted = list(enumerate(messages))[from_offset:]
    assert shown(runs) == [(offset, body) for offset, (_, body) in wanted]
    heads = [head for run in runs for head, _ in messages_of(run)]
    assert [(head.exchange, head.routing_key.decode()) for head in heads] == [
        (b"ex", key) for _, (key, _) in wanted
    ]
    assert [decode(split(head.header)).message_id for head in heads] == [key for _, (key, _) in wanted]
    assert [head.body_bytes for head in heads] == [len(body) for _, (_, body) in wanted]


def test_a_message_of_the_stream_protocol_comes_from_the_default_exchange() -> None:
    (run,) = runs_of(entry(bytes(AMQPMessage(body=b"x"))), 7, 0, b"queue")
    assert (run.head.exchange, run.head.routing_key) == (b"", b"queue")
    assert shown([run]) == [(7, b"x")]


def test_octets_that_are_no_message_are_a_body() -> None:
    assert shown(runs_of(entry(b"anything") + entry(b"anythink"), 0, 0, b"q")) == [
        (0, b"anything"),
        (1, b"anythink"),
    ]


@pytest.mark.parametrize(("kind", "pack"), [(0x80, bytes), (0x90, gzip.compress)])
def test_messages_of_a_batch_have_offsets_of_their_own(kind: int, pack: type[bytes]) -> None:
    inner = entry(b"one") + entry(b"two")
    packed = pack(inner)
    batch = struct.pack(">BHII", kind, 2, len(inner), len(packed)) + packed
    assert shown(runs_of(entry(b"zero") + batch + entry(b"three"), 10, 11, b"q")) == [
        (11, b"one"),
        (12, b"two"),
        (13, b"three"),
    ]


@pytest.mark.parametrize("kind", [0xA0, 0x90])
def test_a_batch_that_cannot_be_unpacked_is_passed_over(kind: int) -> None:
    batch = struct.pack(">BHII", kind, 2, 100, 5) + b"?????"
    assert shown(runs_of(batch + entry(b"after"), 0, 0, b"q")) == [(2, b"after")]


def test_an_entry_that_is_cut_short_is_an_error() -> None:
    with pytest.raises(ChunkError, match="cut short"):
        runs_of(entry(b"a") + b"\0\0", 0, 0, b"q")


def test_properties_that_do_not_parse_are_lost_and_the_body_is_not() -> None:
    head = make_head(b"e", b"k", content_header(b"\x20\x00" + b"\0\0\0\x03\x01a?", 4))
    (run,) = runs_of(b"".join(entries_of([alike(head, [b"body"])])), 0, 0, b"q")
    assert shown([run]) == [(0, b"body")]


@pytest.mark.parametrize("depth", [1, DEPTH_MAX - 2, DEPTH_MAX - 1, DEPTH_MAX, 100, 300, 400, 600])
def test_however_deep_headers_are_nested_the_body_is_not_lost(depth: int) -> None:
    value = b"t\1"
    for _ in range(depth):
        value = tables.table_value(shortstr(b"k") + value)
    header = properties.join({properties.HEADERS: shortstr(b"x-deep") + value}, 4)
    (run,) = runs_of(b"".join(entries_of([alike(make_head(b"e", b"k", header), [b"body"])])), 0, 0, b"q")
    assert shown([run]) == [(0, b"body")]


@pytest.mark.parametrize("field", ["content_type", "message_id", "header", "name"])
def test_no_text_of_a_publisher_takes_the_place_of_the_offset(field: str) -> None:
    """A consumer would be told another offset, and begin there at the next leader."""
    text = "\x7foffset?"
    given = Properties(headers={"a": text if field == "header" else 1, "b" + text * (field == "name"): 2})
    if field in ("content_type", "message_id"):
        setattr(given, field, text)
    head = make_head(b"e", b"k", ContentHeader(0, 4, given).marshal())
    (run,) = runs_of(b"".join(entries_of([alike(head, [b"body"])])), 5, 0, b"q")
    assert shown([run]) == [(5, b"body")]
    assert last_offset_of(run.taken()) == 5
    found: Any = decode(split(messages_of(run)[0][0].header))
    assert found.headers == {**(given.headers or {}), "x-stream-offset": 5}
    assert (found.content_type, found.message_id) == (given.content_type, given.message_id)


_SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, 2, 255, 256]),
    st.floats(),
    st.sampled_from([1.0, 2.0]),
    st.text(max_size=4),
    st.sampled_from(["x" * 128, "x" * 256]),
    st.binary(max_size=4),
    st.integers(-(2**63), 2**63 - 1).map(proton.timestamp),
)


def encoded(value: Any) -> bytes:
    data = proton.Data()
    data.put_object(value)
    return bytes(data.encode())


_VALUE = st.recursive(
    _SIMPLE,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
)
_NAME = st.sampled_from(
    [
        *("x-exchange", "x-routing-key", "x-basic-type", "x-basic-delivery-mode", "x-basic-priority"),
        *("x-basic-expiration", "x-basic-app-id", "x-stream-offset", "", "k", "k" * 300),
    ]
)
_MAP = st.dictionaries(_NAME, _VALUE, max_size=4)


@example({"x-basic-delivery-mode": 2.0}, {}, [], [])
@example({}, {"k": [1e39]}, [], [])
@given(_MAP, _MAP, st.lists(_VALUE, max_size=13), st.lists(_VALUE, max_size=5))
def test_whatever_values_a_message_of_amqp_1_0_has_a_consumer_gets_its_body(
    annotations: dict[str, Any], application: dict[str, Any], fields: list[Any], durability: list[Any]
) -> None:
    """A stream keeps what its publishers send; an error here would stop the node that delivers it."""
    sections = (
        (0x70, list_of(map(encoded, durability))),
        (
            0x72,
            map_of(
                each for key, value in annotations.items() for each in (symbol(key.encode()), encoded(value))
            ),
        ),
        (0x73, list_of(map(encoded, fields))),
        (0x74, map_of(encoded(each) for pair in application.items() for each in pair)),
        (0x75, encoded(b"body")),
    )
    octets = b"".join(bytes((0, 0x53, descriptor)) + value for descriptor, value in sections)
    [run] = runs_of(len(octets).to_bytes(4, "big") + octets, 7, 0, b"q")
    assert (run.first, run.bodies) == (7, [b"body"])
    assert last_offset_of(run.messages) == 7


def sub_batch(records: int, data: bytes, *, is_zipped: bool = False) -> bytes:
    held = gzip.compress(data) if is_zipped else data
    return struct.pack(">BHII", 0x90 if is_zipped else 0x80, records, len(data), len(held)) + held


@pytest.mark.parametrize("is_zipped", [False, True])
def test_a_batch_with_more_messages_than_it_announces_has_no_offsets_of_others(is_zipped: bool) -> None:
    data = sub_batch(2, entry(b"a") * 5, is_zipped=is_zipped) + entry(b"z")
    assert [(run.first, run.bodies) for run in runs_of(data, 7, 0, b"q")] == [(7, [b"a", b"a", b"z"])]


@given(st.lists(st.integers(0, 4), max_size=5), st.integers(0, 12), st.integers(1, 5))
def test_messages_of_batches_are_read_a_few_at_a_time(
    sizes: list[int], from_offset: int, count_max: int
) -> None:
    """0 stands for a message by itself."""
    parts = [sub_batch(size, entry(b"%d" % size) * size) if size else entry(b"0") for size in sizes]
    data = b"".join(parts)
    every = [body for run in runs_of(data, 0, from_offset, b"q") for body in run.bodies]
    found: list[bytes] = []
    at = from_offset
    while runs := runs_of(data, 0, at, b"q", count_max=count_max):
        bodies = [body for run in runs for body in run.bodies]
        assert len(bodies) <= count_max
        found += bodies
        at = runs[-1].end
    assert found == every
