"""Octets are written out where a fact fixes them: RabbitMQ's own PROTOCOL document, 3.10.8 on the wire."""

from __future__ import annotations

import dataclasses
import struct
import typing
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import PeerError
from leveret.wire.stream import fields
from leveret.wire.stream.codec import COMMANDS, StreamCommand
from leveret.wire.stream.commands import (
    Credit,
    CreditResponse,
    DeclarePublisher,
    Deliver,
    Metadata,
    MetadataResponse,
    Publish,
    PublishConfirm,
    PublishError,
    SaslAuthenticate,
    StreamStatsResponse,
    Subscribe,
    Tune,
    UnknownCommand,
    decode,
)
from leveret.wire.stream.deliver import deliver_head
from leveret.wire.stream.fields import (
    BrokerNode,
    CommandVersions,
    FailedPublish,
    MalformedCommand,
    OffsetSpec,
    OffsetType,
    StreamMetadata,
)
from leveret.wire.stream.publish import encode_publish

u8, u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
text = st.text(max_size=20)
octets = st.binary(max_size=50)
STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    fields.U8: u8,
    fields.U16: u16,
    fields.U32: u32,
    fields.U64: u64,
    fields.String: text,
    fields.Strings: st.lists(text, max_size=4),
    fields.Octets: octets,
    fields.Properties: st.dictionaries(text, text, max_size=4),
    fields.OptionalProperties: st.dictionaries(text, text, max_size=4),
    fields.Offset: st.one_of(
        st.builds(
            OffsetSpec, st.sampled_from([OffsetType.FIRST, OffsetType.LAST, OffsetType.NEXT]), st.just(0)
        ),
        st.builds(OffsetSpec, st.just(OffsetType.OFFSET), u64),
        st.builds(OffsetSpec, st.just(OffsetType.TIMESTAMP), st.integers(-(1 << 63), (1 << 63) - 1)),
    ),
    fields.OptionalOffset: st.none() | st.builds(OffsetSpec, st.just(OffsetType.OFFSET), u64),
    fields.Brokers: st.lists(st.builds(BrokerNode, u16, text, u32), max_size=3),
    fields.Streams: st.lists(
        st.builds(StreamMetadata, text, u16, u16, st.lists(u16, max_size=3)), max_size=3
    ),
    fields.Versions: st.lists(st.builds(CommandVersions, u16, u16, u16), max_size=3),
    fields.Failures: st.lists(st.builds(FailedPublish, u64, u16), max_size=3),
    fields.Statistics: st.dictionaries(text, st.integers(-(1 << 63), (1 << 63) - 1), max_size=4),
}
OWN_CODING: dict[type[StreamCommand], st.SearchStrategy[Any]] = {
    Publish: st.builds(Publish, u8, st.lists(st.tuples(u64, octets), max_size=5), st.just([])),
    Deliver: st.builds(Deliver, u8, octets),
    PublishConfirm: st.builds(PublishConfirm, u8, st.lists(u64, max_size=10)),
}


def commands_of(kind: type[StreamCommand]) -> st.SearchStrategy[StreamCommand]:
    if kind in OWN_CODING:
        return OWN_CODING[kind]
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # all are
    assert all(typing.get_origin(hints[name]) is Annotated for name in names), kind
    return st.builds(kind, **{name: STRATEGIES[hints[name]] for name in names})


any_command = st.sampled_from(sorted(COMMANDS)).flatmap(lambda key: commands_of(COMMANDS[key]))


@given(any_command)
def test_every_command_decodes_to_what_was_encoded(command: StreamCommand) -> None:
    frame = command.encode()
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(frame[4:]) == command


@given(any_command, st.data())
def test_a_frame_that_is_cut_short_never_decodes_to_a_longer_ones_fields(
    command: StreamCommand, data: st.DataObject
) -> None:
    frame = command.encode()[4:]
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    try:
        short = decode(cut)
    except PeerError:
        return
    # A chunk takes what there is; a subscription's properties and what follows a refusal may be left out.
    assert short.encode()[4:] in (cut, cut + bytes(len(short.encode()) - 4 - len(cut)))


@given(st.sampled_from(sorted(COMMANDS)), st.binary(max_size=80))
def test_garbage_is_a_command_or_a_peer_error(key: int, content: bytes) -> None:
    try:
        command = decode(struct.pack(">HH", key, 1) + content)
    except PeerError:
        return
    assert type(command) is COMMANDS[key]


@pytest.mark.parametrize("octets", ["0063 0001", "0002 0002 00 00000000", "0017", ""])
def test_an_unknown_key_or_version_is_named(octets: str) -> None:
    with pytest.raises((UnknownCommand, MalformedCommand), match=r"unknown frame|no key and version"):
        decode(bytes.fromhex(octets))


def test_octets_after_the_last_field_are_malformed() -> None:
    with pytest.raises(MalformedCommand, match="Tune: 1 octets after"):
        decode(Tune(1, 2).encode()[4:] + b"x")


@pytest.mark.parametrize(
    ("command", "octets"),
    [
        (Tune(1048576, 60), "0000000c 0014 0001 00100000 0000003c"),
        (Credit(1, 2), "00000007 0009 0001 01 0002"),
        (CreditResponse(4, 1), "00000007 8009 0001 0004 01"),
        (DeclarePublisher(1, 2, "r", "s"), "0000000f 0001 0001 00000001 02 0001 72 0001 73"),
        (
            Subscribe(1, 0, "s", OffsetSpec(OffsetType.OFFSET, 7), 5, {"chunk_selector": "all"}),
            "00000031 0007 0001 00000001 00 0001 73 0004 0000000000000007 0005 00000001"
            " 000e 6368756e6b5f73656c6563746f72 0003 616c6c",
        ),
        (
            SaslAuthenticate(3, "PLAIN", b"\0a\0b"),
            "00000017 0013 0001 00000003 0005 504c41494e 00000004 00610062",
        ),
        (Metadata(1, ["s"]), "0000000f 000f 0001 00000001 00000001 0001 73"),
        (
            MetadataResponse(1, [BrokerNode(0, "h", 5552)], [StreamMetadata("s", 1, 0, [])]),
            "00000024 800f 0001 00000001 00000001 0000 0001 68 000015b0 00000001 0001 73 0001 0000 00000000",
        ),
        (PublishConfirm(2, [1, 2]), "00000019 0003 0001 02 00000002 0000000000000001 0000000000000002"),
        (PublishError(2, [FailedPublish(1, 18)]), "00000013 0004 0001 02 00000001 0000000000000001 0012"),
        (
            StreamStatsResponse(1, 1, {"a": -1}),
            "00000019 801c 0001 00000001 0001 00000001 0001 61 ffffffffffffffff",
        ),
    ],
)
def test_octets_are_those_of_the_protocol(command: StreamCommand, octets: str) -> None:
    assert command.encode().hex() == octets.replace(" ", "")


def test_the_fast_encoders_write_what_the_classes_write() -> None:
    assert deliver_head(3, 5) + b"chunk" == Deliver(3, b"chunk").encode()
    entries = [(1, b"a"), (2, b""), (9, b"ccc")]
    assert encode_publish(1, entries) == Publish(1, entries, []).encode()
    assert encode_publish(1, entries).hex() == (
        "00000031 0002 0001 01 00000003"
        "0000000000000001 00000001 61 0000000000000002 00000000 0000000000000009 00000003 636363"
    ).replace(" ", "")


def test_a_sub_batch_is_stepped_over_and_named_by_its_id() -> None:
    sub_batch = struct.pack(">QBHII", 7, 0x80, 3, 9, 9) + b"123456789"
    plain = struct.pack(">QI", 8, 1) + b"x"
    frame = struct.pack(">HHBi", 2, 1, 0, 2) + sub_batch + plain
    assert decode(frame) == Publish(0, [(8, b"x")], [7])


@pytest.mark.parametrize("missing", [1, 5, 13])
def test_a_publish_whose_last_entry_is_cut_short_is_malformed(missing: int) -> None:
    frame = encode_publish(0, [(1, b"abc"), (2, b"def")])[4:-missing]
    with pytest.raises(MalformedCommand, match="Publish"):
        decode(frame)
