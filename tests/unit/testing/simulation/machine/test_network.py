"""The simulated network: octets in order, cuts that hold them, resets, and processes that end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.network import SimulatedNetwork, SimulatedTransport
from leveret.testing.simulation.machine.process import SimulatedProcess

PORT = 7


class Peer(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.octets = b""
        self.error: Exception | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.octets += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost, self.error = True, exc


class Pair:
    """Two connected processes."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = VirtualLoop(Random(seed))
        self.network = SimulatedNetwork(self.loop, Random(seed))
        self.one, self.other = SimulatedProcess("one"), SimulatedProcess("other")
        self.listening = Peer()
        self.dialling = Peer()

    def play(self, story: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
        async def begin() -> None:
            async def listen() -> None:
                self.network.listen(PORT, lambda: self.listening)

            await self.other.spawn(listen())
            await self.one.spawn(self.network.connect(lambda: self.dialling, PORT))
            await asyncio.sleep(1)
            await story(self)

        self.loop.run_until_complete(begin())


@pytest.mark.parametrize("seed", range(10))
def test_octets_arrive_once_and_in_order_however_they_are_cut_up(seed: int) -> None:
    sent = Random(seed).randbytes(200_000)

    async def story(pair: Pair) -> None:
        for at in range(0, len(sent), 7_777):
            pair.dialling.transport.write(sent[at : at + 7_777])
            await asyncio.sleep(pair.loop.random.random() / 1000)
        pair.dialling.transport.close()
        await asyncio.sleep(1)
        assert pair.listening.octets == sent
        assert pair.listening.is_lost
        assert pair.listening.error is None

    Pair(seed).play(story)


def test_a_cut_holds_what_is_sent_until_it_is_mended() -> None:
    async def story(pair: Pair) -> None:
        pair.network.cut("one", "other", both=False)
        pair.dialling.transport.write(b"late")
        await asyncio.sleep(60)
        assert pair.listening.octets == b""
        pair.network.mend()
        await asyncio.sleep(1)
        assert pair.listening.octets == b"late"

    Pair().play(story)


def test_a_process_that_is_killed_has_its_connections_reset() -> None:
    async def story(pair: Pair) -> None:
        pair.one.kill()
        pair.network.process_ended(pair.one)
        await asyncio.sleep(1)
        assert isinstance(pair.listening.error, ConnectionResetError)

    Pair().play(story)


def test_a_machine_that_is_gone_says_nothing() -> None:
    async def story(pair: Pair) -> None:
        pair.one.kill()
        pair.network.process_ended(pair.one, silently=True)
        await asyncio.sleep(600)
        assert not pair.listening.is_lost

    Pair().play(story)


def test_a_writer_is_paused_while_its_peer_is_not_reached() -> None:
    async def story(pair: Pair) -> None:
        paused: list[str] = []
        pair.dialling.pause_writing = lambda: paused.append("pause")  # type: ignore[method-assign]
        pair.dialling.resume_writing = lambda: paused.append("resume")  # type: ignore[method-assign]
        pair.network.cut("one", "other")
        pair.dialling.transport.write(bytes(1_000_000))
        await asyncio.sleep(1)
        assert paused == ["pause"]
        pair.network.mend()
        await asyncio.sleep(1)
        assert paused == ["pause", "resume"]

    Pair().play(story)


def test_nobody_is_reached_where_nobody_listens() -> None:
    async def story(pair: Pair) -> None:
        with pytest.raises(ConnectionRefusedError):
            await pair.one.spawn(pair.network.connect(Peer, PORT + 1))

    Pair().play(story)
