from __future__ import annotations

import inspect

import pytest

from leveret.wire.stream import commands
from leveret.wire.stream.codec import COMMANDS, RESPONSE, Code, CommandKey, Response, StreamRequest
from leveret.wire.stream.commands import QueryOffsetResponse, StreamStatsResponse, decode
from leveret.wire.stream.fields import MalformedCommand


def test_every_key_is_served() -> None:
    assert {key & ~RESPONSE for key in COMMANDS} == set(CommandKey)


def test_every_request_has_its_response_and_shares_its_correlation_id() -> None:
    for key, kind in COMMANDS.items():
        if issubclass(kind, StreamRequest):
            answer = COMMANDS[RESPONSE | key]
            assert next(iter(inspect.signature(answer).parameters)) == "correlation", answer


def test_commands_are_found_by_the_key_they_are_encoded_with() -> None:
    assert all(kind.key == key for key, kind in COMMANDS.items())
    assert commands.Heartbeat().encode() == bytes.fromhex("00000004 0017 0001")


def test_what_follows_the_code_of_a_refusal_may_be_missing() -> None:
    bare = bytes.fromhex("800b 0001 00000009 0013")
    assert decode(bare) == QueryOffsetResponse(9, Code.NO_OFFSET, 0)
    assert decode(bytes.fromhex("801c 0001 00000009 0002")) == StreamStatsResponse(9, 2, {})


def test_what_follows_an_ok_may_not_be_missing() -> None:
    with pytest.raises(MalformedCommand, match="QueryOffsetResponse"):
        decode(bytes.fromhex("800b 0001 00000009 0001"))


def test_a_response_is_no_request() -> None:
    assert not any(
        issubclass(kind, StreamRequest) and issubclass(kind, Response) for kind in COMMANDS.values()
    )
