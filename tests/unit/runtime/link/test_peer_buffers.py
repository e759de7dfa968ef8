"""A link has a large buffer while much comes, and none once it has ended: a node has many links, and most are idle."""

from __future__ import annotations

import gc
import weakref
from typing import Any, cast

import pytest

from leveret.runtime.link import peer as peer_module
from leveret.runtime.link.peer import LinkPeer
from leveret.testing.network.waiting import until
from leveret.wire.link import GREETING, LENGTH, SMALL_BYTES_MAX, Type
from tests.unit.runtime.link.transport import Transport

SMALL = LENGTH.size + SMALL_BYTES_MAX
LARGE = 1024 * 1024
SHORT_READS = 4


class Taking:
    """Takes messages."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.error: Exception | None = None

    def received(self, kind: Type, payload: memoryview) -> None:
        self.taken.append(bytes(payload))

    def ended(self, error: Exception | None) -> None:
        self.error = error


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> tuple[LinkPeer, Taking]:
    monkeypatch.setattr(peer_module, "_SHORT_READS", SHORT_READS)
    link, taking = LinkPeer(), Taking()
    link.receiver = taking
    link.connection_made(cast(Any, Transport()))
    read(link, GREETING)
    link.is_trusted = True
    return link, taking


def read(link: LinkPeer, octets: bytes) -> None:
    while octets:
        buffer = link.get_buffer(-1)
        taken = min(len(buffer), len(octets))
        buffer[:taken] = octets[:taken]
        link.buffer_updated(taken)
        octets = octets[taken:]


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body) + 1) + bytes((Type.FRAME,)) + body


def buffer_bytes(link: LinkPeer) -> int:
    return len(link._buffer)


def test_a_link_with_short_messages_keeps_the_small_buffer(link: tuple[LinkPeer, Taking]) -> None:
    peer, taking = link
    for number in range(10 * SHORT_READS):
        read(peer, framed(b"%d" % number))
    assert buffer_bytes(peer) == SMALL
    assert len(taking.taken) == 10 * SHORT_READS


@pytest.mark.parametrize("body_bytes", [SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, LARGE - 100])
def test_a_message_that_the_small_buffer_cannot_hold_brings_the_large_one(
    link: tuple[LinkPeer, Taking], body_bytes: int
) -> None:
    peer, taking = link
    body = bytes(range(256)) * (body_bytes // 256) + b"x" * (body_bytes % 256)
    read(peer, framed(b"before") + framed(body) + framed(b"after"))
    assert taking.taken == [b"before", body, b"after"]
    assert buffer_bytes(peer) == LARGE


def test_a_longer_message_than_the_large_buffer_holds_has_one_of_its_own(
    link: tuple[LinkPeer, Taking],
) -> None:
    peer, taking = link
    read(peer, framed(b"y" * LARGE) + framed(b"after"))
    assert [len(each) for each in taking.taken] == [LARGE, len(b"after")]


def test_many_short_reads_bring_the_small_buffer_back_with_the_octets_that_it_held(
    link: tuple[LinkPeer, Taking],
) -> None:
    peer, taking = link
    read(peer, framed(b"z" * SMALL))
    assert buffer_bytes(peer) == LARGE
    # The rest of the long message was the first short read, and half a message will be the last.
    for number in range(SHORT_READS - 2):
        read(peer, framed(b"%d" % number))
    assert buffer_bytes(peer) == LARGE
    half = framed(b"in two halves")
    read(peer, half[:7])
    assert buffer_bytes(peer) == SMALL
    read(peer, half[7:])
    assert taking.taken[-1] == b"in two halves"


async def test_octets_that_come_while_the_full_buffer_waits_have_room(link: tuple[LinkPeer, Taking]) -> None:
    """TLS brings what it has read when reading pauses; an empty buffer would end the link."""
    peer, taking = link
    peer.hold()
    read(peer, b"".join(framed(b"%04d" % number) for number in range(3000)))
    assert not taking.taken
    peer.go_on()
    await until(lambda: len(taking.taken) == 3000)
    assert taking.taken == [b"%04d" % number for number in range(3000)]


def test_a_peer_without_proof_never_gets_the_large_buffer() -> None:
    peer, taking = LinkPeer(), Taking()
    peer.receiver = taking
    peer.connection_made(cast(Any, Transport()))
    read(peer, GREETING + framed(b"a" * (SMALL_BYTES_MAX - 1)))
    assert buffer_bytes(peer) == SMALL


def test_an_ended_link_holds_no_buffer(link: tuple[LinkPeer, Taking]) -> None:
    peer, _ = link
    read(peer, framed(b"z" * SMALL))
    peer.connection_lost(None)
    assert buffer_bytes(peer) == 0


async def test_a_link_that_an_error_ended_is_freed_without_the_collector() -> None:
    gc.disable()
    try:
        link = LinkPeer()
        is_there, receiver = weakref.ref(link), Taking()
        link.receiver = receiver
        link.connection_made(cast(Any, Transport()))
        read(link, GREETING + LENGTH.pack(0))
        assert link.is_closed
        link.connection_lost(None)
        assert receiver.error is not None
        del link
        assert is_there() is None
    finally:
        gc.enable()
