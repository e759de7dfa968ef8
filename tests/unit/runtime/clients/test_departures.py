"""Thousands of connections whose sockets close together end a few in each pass of the event loop, in their order."""

from __future__ import annotations

import asyncio
import socket

import pytest

from leveret.runtime.clients.amqp_peer import AmqpPeer
from leveret.runtime.clients.departures import AT_ONCE, Departures
from leveret.testing.network.waiting import until
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import Site


async def test_a_few_end_at_once_and_thousands_in_many_passes_of_the_loop() -> None:
    departures, ended, passes = Departures(), list[int](), list[int]()
    for number in range(AT_ONCE):
        departures.add(lambda number=number: ended.append(number))  # type: ignore[misc]
    assert ended == list(range(AT_ONCE)), "who reconnects finds nothing of before"
    for number in range(AT_ONCE, 20 * AT_ONCE):
        departures.add(lambda number=number: ended.append(number))  # type: ignore[misc]
    while len(ended) < 20 * AT_ONCE:
        before = len(ended)
        await asyncio.sleep(0)
        passes.append(len(ended) - before)
    assert max(passes) == AT_ONCE
    assert ended == list(range(20 * AT_ONCE))
    await asyncio.sleep(0)
    departures.add(lambda: ended.append(-1))
    assert ended[-1] == -1, "later ones end at once again"


async def test_the_sockets_of_clients_that_are_lost_together_are_closed_a_few_in_each_pass_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scratch() as directory:
        site = Site(directory)
        await site.start("127.0.0.1:0")
        peers = site.node.amqp.peers
        port = site.node.amqp.addresses[0].port
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(4 * AT_ONCE)]
        await until(lambda: len(peers) == len(clients))
        passes, close = [0], AmqpPeer._close

        def closed(peer: AmqpPeer) -> None:
            passes[-1] += 1
            close(peer)

        monkeypatch.setattr(AmqpPeer, "_close", closed)
        for client in clients:
            client.close()
        while peers:
            await asyncio.sleep(0)
            passes.append(0)
        assert sum(passes) == len(clients)
        assert max(passes) <= AT_ONCE
        await site.stop()
