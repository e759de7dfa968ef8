"""Bodies of the schema sync: what goes in comes out, everything else is a `SchemaSyncError`."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.definitions import KINDS, Binding, Queue, User
from leveret.model.foreign_json import LEVELS_MAX
from leveret.session.schema_exchange import PART_BYTES
from leveret.wire import schema_sync
from leveret.wire.schema_sync import (
    Ask,
    BucketDelta,
    SchemaSyncError,
    SyncReply,
    SyncRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)

digests = st.dictionaries(st.sampled_from(sorted(KINDS)), st.binary(max_size=8))
indexes = st.integers(0, 2**16)
asks = st.dictionaries(
    st.sampled_from(sorted(KINDS)),
    st.builds(
        Ask, st.integers(1, 64), st.dictionaries(indexes, st.none() | st.binary(max_size=16), max_size=3)
    ),
    max_size=2,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
queues = st.builds(Queue, name=st.text(), vhost=st.text(), arguments=arguments)
listed = st.builds(Binding, source=st.text(), vhost=st.text(), destination=st.text(), arguments=arguments)
REQUEST = encode_request(SyncRequest("eu.2", {"users": b"ab"}, {"queues": Ask(4, {3: b"held"})}))
TOLD = {"users": {0: BucketDelta(b"gone", [User(name="u", password_hash="h")])}}
REPLY = encode_reply(SyncReply("eu.1", b"state", {"users": b"cd"}, TOLD))


def message(kind: bytes, json: object, version: int = 2) -> bytes:
    return b"LSS" + bytes((version,)) + kind + zstandard.compress(msgspec.json.encode(json))


@given(st.text(), digests, asks)
def test_a_request_is_read_as_it_was_written(
    cluster: str, of: dict[str, bytes], asked: dict[str, Ask]
) -> None:
    request = SyncRequest(cluster, of, asked)
    assert decode_request(encode_request(request)) == request


@given(st.text(), digests, indexes, st.lists(queues, max_size=4), st.lists(listed, max_size=4))
def test_a_reply_is_read_as_it_was_written(
    cluster: str, of: dict[str, bytes], index: int, some: list[Queue], others: list[Binding]
) -> None:
    answers = {
        "queues": {index: BucketDelta(b"", [*some])},
        "bindings": {index: BucketDelta(b"x", [*others])},
        "users": {},
    }
    reply = SyncReply(cluster, b"state", of, answers)
    assert decode_reply(encode_reply(reply)) == reply


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_nothing_worse(octets: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with pytest.raises(SchemaSyncError):
            decode(octets)


@given(st.data())
def test_a_damaged_message_is_an_error_or_another_message(data: st.DataObject) -> None:
    octets = bytearray(data.draw(st.sampled_from([REQUEST, REPLY])))
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    with suppress(SchemaSyncError):
        assert isinstance(decode_request(bytes(octets)).digests, dict)
    with suppress(SchemaSyncError):
        assert isinstance(decode_reply(bytes(octets)).answers, dict)


@pytest.mark.parametrize("cut", range(len(REPLY)))
def test_a_truncated_reply_is_an_error(cut: int) -> None:
    with pytest.raises(SchemaSyncError):
        decode_reply(REPLY[:cut])


def test_another_version_is_named() -> None:
    with pytest.raises(SchemaSyncError, match=r"format 1 is not known here \(2 is\)"):
        decode_request(message(b"Q", {"cluster": "c", "digests": {}}, version=1))


def test_a_reply_is_no_request() -> None:
    with pytest.raises(SchemaSyncError, match="type 'A' where 'Q'"):
        decode_request(REPLY)


def test_what_a_newer_node_adds_is_ignored() -> None:
    user = {"name": "u", "password_hash": "", "z": 1}
    answers = {"users": {"0": {"gone": "", "entities": [user], "z": 1}}}
    reply = decode_reply(message(b"A", {"cluster": "c", "state": "", "answers": answers, "more": 1}))
    assert reply.answers["users"][0].entities == [User(name="u", password_hash="")]


@pytest.mark.parametrize(
    ("entities", "named"),
    [
        ({"shoes": {}}, "unknown kind of entity 'shoes'"),
        ({"users": {"0": {"gone": "", "entities": [{"name": "u"}]}}}, "users: .*`password_hash`"),
        ({"queues": {"0": {"gone": "", "entities": [{"name": 1, "vhost": "/"}]}}}, r"queues: .*name"),
        ({"queues": {"0": {"gone": "", "entities": 1}}}, "queues: "),
        ({"queues": {"x": {"gone": "", "entities": []}}}, "schema sync reply: "),
    ],
)
def test_entities_that_are_none_are_named(entities: object, named: str) -> None:
    with pytest.raises(SchemaSyncError, match=named):
        decode_reply(message(b"A", {"cluster": "c", "state": "", "answers": entities}))


@pytest.mark.parametrize("levels", [LEVELS_MAX + 1, 2_000, 100_000])
def test_a_message_that_is_nested_without_end_is_refused(levels: int) -> None:
    deep = msgspec.Raw(b"[" * levels + b"]" * levels)
    with pytest.raises(SchemaSyncError, match="schema sync request: nested more than 100 levels"):
        decode_request(message(b"Q", {"cluster": "c", "more": deep}))
    entity = {"name": "p", "value": deep}
    parts = {"global_parameters": {"0": {"gone": "", "entities": [entity]}}}
    with pytest.raises(SchemaSyncError, match=r"schema sync reply: .*nested more than 100 levels"):
        decode_reply(message(b"A", {"cluster": "c", "state": "", "answers": parts}))


def test_a_reply_is_far_larger_than_a_part_before_it_is_refused_at_either_end() -> None:
    assert schema_sync.REPLY_BYTES_MAX > 20 * PART_BYTES
    large = "c" * schema_sync.REPLY_BYTES_MAX
    with pytest.raises(SchemaSyncError, match="octets of entities for one reply, more than 25165824"):
        encode_reply(SyncReply(large, b""))
    with pytest.raises(SchemaSyncError, match="more than 25165824 octets"):
        decode_reply(message(b"A", {"cluster": large, "state": ""}))


def test_a_message_that_unpacks_to_too_much_is_refused() -> None:
    bomb = message(b"Q", {"cluster": "c" * (schema_sync.REQUEST_BYTES_MAX + 1), "digests": {}})
    assert len(bomb) < 200
    with pytest.raises(SchemaSyncError, match="more than 262144 octets"):
        decode_request(bomb)
