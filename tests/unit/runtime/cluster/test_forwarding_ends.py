"""Frames on forwarding links."""

from __future__ import annotations

from typing import cast

import pytest

from leveret.runtime.cluster import forwarding_ends
from leveret.runtime.cluster.forwarding_ends import amqp_of, write_amqp
from leveret.runtime.link.peer import LinkPeer
from leveret.wire.link import LENGTH, MESSAGE_BYTES_MAX, Octets, Type


class Peer:
    """A link that keeps its messages."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def write(self, *pieces: Octets) -> None:
        self.messages.append(b"".join(pieces))


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 35])
def test_frames_of_any_length_go_in_messages_that_the_other_side_takes(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    assert forwarding_ends.PIECE_BYTES < MESSAGE_BYTES_MAX
    monkeypatch.setattr(forwarding_ends, "PIECE_BYTES", 10)
    octets, peer = bytes(range(size)), Peer()
    write_amqp(cast(LinkPeer, peer), octets)
    found = b""
    for message in peer.messages:
        (length,) = LENGTH.unpack_from(message)
        assert 1 < length == len(message) - LENGTH.size <= 11
        found += amqp_of(Type(message[LENGTH.size]), memoryview(message)[LENGTH.size + 1 :])
    assert found == octets
