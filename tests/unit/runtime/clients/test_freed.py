"""Ended connections and deleted queues are freed by reference counts: the collector visits old objects seldom."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import body, commands, frame, header

from leveret.model.definitions import Put, Vhost
from leveret.testing.network.waiting import until
from leveret.wire.amqp091 import PROTOCOL_HEADER
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import Site
from tests.unit.runtime.logs.test_engine import Client

HELLO = PROTOCOL_HEADER + b"".join(
    [
        *(
            frame.marshal(method, 0)
            for method in (
                commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"),
                commands.Connection.TuneOk(10, 131072, 0),
                commands.Connection.Open("/"),
            )
        ),
        *(
            frame.marshal(one, 1)
            for one in (
                commands.Channel.Open(),
                commands.Confirm.Select(),
                commands.Queue.Declare(exclusive=True),
                commands.Basic.Consume(),
                commands.Basic.Publish(routing_key="nowhere"),
                header.ContentHeader(body_size=3),
                body.ContentBody(b"abc"),
            )
        ),
    ]
)
CLOSE = frame.marshal(commands.Connection.Close(200, "", 0, 0), 0)
NO_LINGER = struct.pack("ii", 1, 0)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.uvloop
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end", ["closed", "hung up", "reset"])
async def test_a_connection_that_ended_is_gone_without_the_collector(end: str) -> None:
    with scratch() as directory:
        site = await Site.started(directory, "127.0.0.1:0")
        await site.apply(Put(Vhost(name="/")))
        peers, broker = site.node.amqp.peers, site.node.broker
        loop = asyncio.get_running_loop()
        client = socket.create_connection(("127.0.0.1", site.node.amqp.addresses[0].port))
        client.setblocking(False)
        await loop.sock_sendall(client, HELLO)
        await until(lambda: any(peer._is_known for peer in peers) and bool(broker.queues))
        ended = [weakref.ref(peer) for peer in peers]
        if end == "closed":
            await loop.sock_sendall(client, CLOSE)
            await until(lambda: not broker.queues)
        elif end == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        client.close()
        await until(lambda: all(peer() is None for peer in ended))
        await site.stop()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-max-priority": 3},
        {"x-queue-type": "quorum"},
        {"x-queue-type": "stream"},
    ],
)
async def test_a_deleted_queue_is_gone_without_the_collector(
    directory: Path, arguments: dict[str, Any]
) -> None:
    site = await Site.started(directory)
    client = Client(site)
    client.send(commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    client.publish("q")
    await site.settle()
    gone = weakref.ref(site.node.broker.queues["/", "q"])
    client.send(commands.Queue.Delete(queue="q"))

    async def is_gone() -> bool:
        # The next change of the node lets go of what this one has deleted.
        client.publish("another")
        await site.settle()
        return gone() is None

    async with asyncio.timeout(60):
        while not await is_gone():
            pass
    await site.stop()
