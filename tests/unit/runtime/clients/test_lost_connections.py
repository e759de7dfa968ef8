"""Thousands of connections whose sockets close together end a few in each pass of the event loop, in their order."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

import pytest

from leveret.runtime.clients import amqp_listener
from leveret.runtime.clients.amqp_peer import AmqpPeer
from leveret.runtime.clients.lost_connections import AT_ONCE, LostConnections
from leveret.session.amqp091.connection import ClientConnection
from leveret.testing.network.waiting import until
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import Site


async def test_a_few_end_at_once_and_thousands_in_many_passes_of_the_loop() -> None:
    lost, ended, passes = LostConnections(), list[int](), list[int]()
    for number in range(AT_ONCE):
        lost.add(lambda number=number: ended.append(number))  # type: ignore[misc]
    assert ended == list(range(AT_ONCE)), "who reconnects finds nothing of before"
    for number in range(AT_ONCE, 20 * AT_ONCE):
        lost.add(lambda number=number: ended.append(number))  # type: ignore[misc]
    while len(ended) < 20 * AT_ONCE:
        before = len(ended)
        await asyncio.sleep(0)
        passes.append(len(ended) - before)
    assert max(passes) == AT_ONCE
    assert ended == list(range(20 * AT_ONCE))
    await asyncio.sleep(0)
    lost.add(lambda: ended.append(-1))
    assert ended[-1] == -1, "later ones end at once again"


async def test_an_end_that_fails_keeps_no_other_connection_from_its_end() -> None:
    loop, failures = asyncio.get_running_loop(), list[Any]()
    loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))
    lost, ended = LostConnections(), list[int]()

    def end(number: int) -> None:
        if number == AT_ONCE + 3:
            raise RuntimeError("a bug")
        ended.append(number)

    for number in range(3 * AT_ONCE):
        lost.add(partial(end, number))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(failures) == 1
    assert ended == [number for number in range(3 * AT_ONCE) if number != AT_ONCE + 3]


async def test_a_connection_whose_tick_fails_is_dropped_and_the_others_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amqp_listener, "TICK_S", 0.01)
    ticks, tick = list[AmqpPeer](), AmqpPeer.tick

    def ticked(peer: AmqpPeer, now_ms: int) -> None:
        if peer is first:
            raise RuntimeError("a bug")
        ticks.append(peer)
        tick(peer, now_ms)

    with scratch() as directory:
        site = await Site.started(directory, "127.0.0.1:0")
        peers, port = site.node.amqp.peers, site.node.amqp.addresses[0].port
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        await until(lambda: len(peers) == 2)
        first, second = peers
        monkeypatch.setattr(AmqpPeer, "tick", lambda peer, now_ms: ticked(peer, now_ms))
        await until(lambda: first not in peers)
        monkeypatch.setattr(AmqpPeer, "tick", lambda peer, now_ms: ticks.append(peer))
        ticks.clear()
        await until(lambda: second in ticks)
        for client in clients:
            client.close()
        await site.stop()


async def test_a_connection_that_cannot_go_on_is_dropped_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of an alarm has all go on, and the task that watches alarms ends the node if it fails."""

    went_on = list[ClientConnection]()

    def gone_on(session: ClientConnection, now_ms: int) -> None:
        went_on.append(session)
        if len(went_on) == 1:
            raise RuntimeError("a bug")

    with scratch() as directory:
        site = await Site.started(directory, "127.0.0.1:0")
        peers, port = site.node.amqp.peers, site.node.amqp.addresses[0].port
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        await until(lambda: len(peers) == 2)
        first, second = peers
        monkeypatch.setattr(ClientConnection, "go_on", gone_on)
        site.node.amqp.go_on()
        await until(lambda: len(went_on) == 2)
        await until(lambda: first not in peers)
        assert second in peers
        for client in clients:
            client.close()
        await site.stop()


async def test_many_that_waited_go_on_a_slice_in_each_pass_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    went_on = list[AmqpPeer]()
    with scratch() as directory:
        site = await Site.started(directory, "127.0.0.1:0")
        peers, port = site.node.amqp.peers, site.node.amqp.addresses[0].port
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        await until(lambda: len(peers) == 3)
        monkeypatch.setattr(AmqpPeer, "go_on", lambda peer: went_on.append(peer))
        monkeypatch.setattr(amqp_listener, "time_slice", lambda: lambda: True)
        site.node.amqp.go_on()
        assert went_on == list(peers)[:1]
        await until(lambda: went_on == list(peers))
        monkeypatch.undo()
        for client in clients:
            client.close()
        await site.stop()


async def test_the_sockets_of_clients_that_are_lost_together_are_closed_a_few_in_each_pass_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scratch() as directory:
        site = await Site.started(directory, "127.0.0.1:0")
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
