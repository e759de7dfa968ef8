"""Frames on forwarding links."""

from __future__ import annotations

from typing import cast

import pytest

from leveret.runtime.cluster import forwarding_ends
from leveret.runtime.cluster.forwarding_ends import amqp_of, write_amqp
from leveret.runtime.link import peer as link_peer
from leveret.runtime.link.peer import LinkPeer
from leveret.wire.amqp091 import SENT_FRAME_BYTES_MAX
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
    write_amqp(cast(LinkPeer, peer), [octets])
    found = b""
    for message in peer.messages:
        (length,) = LENGTH.unpack_from(message)
        assert 1 < length == len(message) - LENGTH.size <= 11
        found += amqp_of(Type(message[LENGTH.size]), memoryview(message)[LENGTH.size + 1 :])
    assert found == octets


def test_the_pieces_of_a_large_body_go_as_they_are_in_messages_that_fit_into_a_links_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding_ends, "PIECE_BYTES", 10)
    body, peer = bytes(range(35)), Peer()
    views = [memoryview(body)[at : at + 8] for at in range(0, 35, 8)]
    pieces: list[Octets] = [b"head", b"1", *views, b"", b"2"]
    write_amqp(cast(LinkPeer, peer), pieces)
    found = b""
    for message in peer.messages:
        (length,) = LENGTH.unpack_from(message)
        assert 1 < length == len(message) - LENGTH.size <= 11
        found += amqp_of(Type(message[LENGTH.size]), memoryview(message)[LENGTH.size + 1 :])
    assert found == b"head1" + body + b"2"


def test_a_frame_of_a_large_body_fits_into_a_links_buffer() -> None:
    assert SENT_FRAME_BYTES_MAX <= forwarding_ends.PIECE_BYTES
    assert forwarding_ends.PIECE_BYTES + LENGTH.size < link_peer._BUFFER_BYTES
