"""Bodies of the schema sync: what goes in comes out, everything else is a `SchemaSyncError`."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.definitions import KINDS, Binding, Queue, User
from leveret.wire import schema_sync
from leveret.wire.schema_sync import (
    SchemaSyncError,
    SyncReply,
    SyncRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)

digests = st.dictionaries(st.sampled_from(sorted(KINDS)), st.text(max_size=8))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
queues = st.builds(Queue, name=st.text(), vhost=st.text(), arguments=arguments)
listed = st.builds(Binding, source=st.text(), vhost=st.text(), destination=st.text(), arguments=arguments)
REQUEST = encode_request(SyncRequest("eu.2", {"users": "ab"}))
REPLY = encode_reply(SyncReply("eu.1", {"users": "cd"}, {"users": [User(name="u", password_hash="h")]}))


def message(kind: bytes, json: object, version: int = 1) -> bytes:
    return b"LSS" + bytes((version,)) + kind + zstandard.compress(msgspec.json.encode(json))


@given(st.text(), digests)
def test_a_request_is_read_as_it_was_written(cluster: str, of: dict[str, str]) -> None:
    request = SyncRequest(cluster, of)
    assert decode_request(encode_request(request)) == request


@given(st.text(), digests, st.lists(queues, max_size=4), st.lists(listed, max_size=4))
def test_a_reply_is_read_as_it_was_written(
    cluster: str, of: dict[str, str], some: list[Queue], others: list[Binding]
) -> None:
    reply = SyncReply(cluster, of, {"queues": [*some], "bindings": [*others], "users": []})
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
        assert isinstance(decode_reply(bytes(octets)).entities, dict)


@pytest.mark.parametrize("cut", range(len(REPLY)))
def test_a_truncated_reply_is_an_error(cut: int) -> None:
    with pytest.raises(SchemaSyncError):
        decode_reply(REPLY[:cut])


def test_another_version_is_named() -> None:
    with pytest.raises(SchemaSyncError, match="format 2 is not known here"):
        decode_request(message(b"Q", {"cluster": "c", "digests": {}}, version=2))


def test_a_reply_is_no_request() -> None:
    with pytest.raises(SchemaSyncError, match="type 'A' where 'Q'"):
        decode_request(REPLY)


def test_what_a_newer_node_adds_is_ignored() -> None:
    json = {
        "cluster": "c",
        "digests": {},
        "entities": {"users": [{"name": "u", "password_hash": "", "z": 1}]},
    }
    assert decode_reply(message(b"A", json | {"more": 1})).entities["users"] == [
        User(name="u", password_hash="")
    ]


@pytest.mark.parametrize(
    ("entities", "named"),
    [
        ({"shoes": []}, "unknown kind of entity 'shoes'"),
        ({"users": [{"name": "u"}]}, "users: .*`password_hash`"),
        ({"queues": [{"name": 1, "vhost": "/"}]}, r"queues: .*name"),
        ({"queues": 1}, "queues: "),
    ],
)
def test_entities_that_are_none_are_named(entities: object, named: str) -> None:
    with pytest.raises(SchemaSyncError, match=named):
        decode_reply(message(b"A", {"cluster": "c", "digests": {}, "entities": entities}))


def test_a_message_that_unpacks_to_too_much_is_refused() -> None:
    bomb = message(b"Q", {"cluster": "c" * (schema_sync.REQUEST_BYTES_MAX + 1), "digests": {}})
    assert len(bomb) < 200
    with pytest.raises(SchemaSyncError, match="more than 65536 octets"):
        decode_request(bomb)
