"""Which octets show that the other end of a link lives, over real sockets with beats that are short."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from leveret.runtime.link import heartbeat
from leveret.runtime.link.heartbeat import SILENT_BEATS_MAX, LinkHeartbeat
from leveret.runtime.link.peer import LinkPeer
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.network.waiting import until
from leveret.wire.link import GREETING, LENGTH, LinkError, Type, message

BEAT_S: Final = 0.02
PATIENCE_S: Final = 30.0
LONG: Final = LENGTH.pack(1 << 29) + bytes((Type.AMQP,))
"""The head of a message that takes long."""
MUCH: Final = bytes(heartbeat.PROGRESS_BYTES_MIN)


class End:
    """The end of a link that judges the other one."""

    def __init__(self, *, says: bool = True) -> None:
        self.says = says
        self.error: Exception | None = None
        self.peer: LinkPeer | None = None
        self.is_over = asyncio.Event()

    def connected(self, peer: LinkPeer) -> None:
        peer.receiver, peer.is_trusted, self.peer = self, True, peer
        LinkHeartbeat(peer, says=self.says)

    def received(self, kind: Type, payload: memoryview) -> None:
        if bytes(payload) == b"nonsense":
            raise LinkError("it says nonsense")

    def ended(self, error: Exception | None) -> None:
        self.error = error
        self.is_over.set()


@asynccontextmanager
async def linked(
    monkeypatch: pytest.MonkeyPatch, *, says: bool = True
) -> AsyncIterator[tuple[End, asyncio.StreamWriter]]:
    monkeypatch.setattr(heartbeat, "BEAT_S", BEAT_S)
    end = End(says=says)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: LinkPeer(end.connected), LOOPBACK, 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(GREETING)
    try:
        yield end, writer
    finally:
        writer.close()
        server.close()
        await end.is_over.wait()


async def drip(end: End, writer: asyncio.StreamWriter, piece: bytes, pause_s: float, most: int) -> int:
    """Send a piece again and again, at most so often, until the other end has had enough."""
    for sent in range(most):
        if end.is_over.is_set():
            return sent
        writer.write(piece)
        await asyncio.sleep(pause_s)
    return most


@pytest.mark.parametrize("begin", [LENGTH.pack(1 << 20) + bytes((Type.AMQP,)), LONG], ids=["short", "long"])
async def test_octets_of_a_message_that_never_ends_are_no_sign_of_life(
    monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    async with linked(monkeypatch) as (end, writer):
        writer.write(begin)
        most = 100 * SILENT_BEATS_MAX
        assert await drip(end, writer, b"\0", BEAT_S / 5, most) < most
        assert "has sent nothing for" in str(end.error)


@pytest.mark.parametrize(
    "octets",
    [message(Type.BEAT, b"x"), message(Type.AMQP, b"nonsense"), LENGTH.pack(1) + b"\xff"],
    ids=["a beat with something in it", "what its receiver refuses", "an unknown type"],
)
async def test_a_message_that_is_not_valid_ends_the_link(
    monkeypatch: pytest.MonkeyPatch, octets: bytes
) -> None:
    async with linked(monkeypatch) as (end, writer):
        writer.write(octets)
        await asyncio.wait_for(end.is_over.wait(), PATIENCE_S)
        assert isinstance(end.error, LinkError)
        assert end.peer is not None
        assert end.peer.received_messages == 0


@pytest.mark.parametrize("piece", [message(Type.BEAT), message(Type.AMQP, b"x"), MUCH], ids=len)
async def test_whole_messages_and_much_of_a_long_one_are(
    monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    async with linked(monkeypatch) as (end, writer):
        if piece == MUCH:
            writer.write(LONG)
        beats = 3 * SILENT_BEATS_MAX
        assert await drip(end, writer, piece, BEAT_S / 2, 2 * beats) == 2 * beats
        assert not end.is_over.is_set()


async def test_a_peer_whose_messages_are_held_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with linked(monkeypatch) as (end, writer):
        await until(lambda: end.peer is not None)
        assert end.peer is not None
        end.peer.hold()
        received = end.peer.received_messages
        for _ in range(5 * SILENT_BEATS_MAX):
            writer.write(message(Type.BEAT))
            await asyncio.sleep(BEAT_S)
        assert (end.error, end.is_over.is_set(), end.peer.received_messages) == (None, False, received)
        end.peer.go_on()
        await until(lambda: end.peer is not None and end.peer.received_messages > received)


def stand_still(seconds: float) -> None:
    """As a process that is stopped."""
    time.sleep(seconds)


async def test_a_side_that_stood_still_itself_does_not_take_the_other_one_for_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a process that was stopped, or a virtual machine: messages wait in the socket."""
    async with linked(monkeypatch) as (end, writer):
        await until(lambda: end.peer is not None and end.peer.received_messages == 0)
        writer.write(message(Type.BEAT))
        stand_still(BEAT_S * 4 * SILENT_BEATS_MAX)
        assert end.peer is not None
        await until(lambda: end.peer is not None and end.peer.received_messages == 1)
        assert not end.is_over.is_set()


async def test_a_side_with_messages_of_its_own_says_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with linked(monkeypatch, says=False) as (end, _):
        await asyncio.wait_for(end.is_over.wait(), PATIENCE_S)
        assert "has sent nothing for" in str(end.error)
        assert end.peer is not None
        assert end.peer.sent_bytes == 0
