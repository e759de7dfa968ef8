"""What reaches more queues than segments may be open waits for the disk in turns, and never in the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from pamqp import body, commands

from leveret.model.definitions import Binding, Put
from leveret.model.definitions import Queue as QueueDefinition
from leveret.testing.network.waiting import until
from tests.unit.runtime.collecting.site import Site
from tests.unit.runtime.logs.test_engine import PERSISTENT, Client

QUEUES = 400
OPEN_MAX = 128
PATIENCE_S = 60.0


async def site_with_queues(directory: Path) -> Site:
    site = await Site.started(directory)
    for number in range(QUEUES):
        name = f"q{number}"
        site.node.broker.apply(Put(QueueDefinition(vhost="/", name=name)))
        binding = Binding(vhost="/", source="amq.fanout", destination_type="queue", destination=name)
        site.node.broker.apply(Put(binding))
    await site.settle()
    site.node.tree.open_segments.count_max = OPEN_MAX
    site.node.commits.unsynced_logs_max = OPEN_MAX // 2
    return site


@pytest.mark.parametrize("way", ["fanout", "commit"])
async def test_a_message_for_more_queues_than_segments_may_be_open_syncs_none_in_the_event_loop(
    directory: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    site = await site_with_queues(directory)
    client, loops_thread = Client(site), threading.get_ident()
    in_loop, sync = list[int](), os.fdatasync

    def counted(descriptor: int) -> None:
        if threading.get_ident() == loops_thread:
            in_loop.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", counted)
    for _ in range(3):
        client.replies.clear()
        if way == "fanout":
            client.send(commands.Basic.Publish(exchange="amq.fanout"), PERSISTENT, body.ContentBody(b"abc"))
        else:
            client.send(commands.Channel.Close(200, "", 0, 0), commands.Channel.Open(), commands.Tx.Select())
            for number in range(QUEUES):
                client.publish(f"q{number}")
            client.send(commands.Tx.Commit())
        await until(lambda: {"Basic.Ack", "Tx.CommitOk"} & set(client.names()), "the answer")
    assert in_loop == []
    assert len(site.node.tree.open_segments) <= OPEN_MAX


async def test_publishers_that_write_to_very_many_queues_together_wait_until_these_are_synced(
    directory: Path,
) -> None:
    site = await site_with_queues(directory)
    client, engine = Client(site), site.node.engine
    relieved = asyncio.Event()
    for number in range(OPEN_MAX // 2):
        client.publish(f"q{number}")
    assert not engine.is_overloaded()
    client.publish(f"q{OPEN_MAX}")
    assert engine.is_overloaded()
    engine.when_relieved(relieved.set)
    await asyncio.wait_for(relieved.wait(), PATIENCE_S)
    assert not engine.is_overloaded()


async def test_publishers_go_on_after_syncs_of_logs_whose_octets_the_engine_does_not_count(
    directory: Path,
) -> None:
    site = await site_with_queues(directory)
    client, node = Client(site), site.node
    client.publish("q1")
    await site.settle()
    log = node.log_store.log(node.broker.queues["/", "q1"])
    node.commits.unsynced_logs_max = 0
    node.commits.appended(log)
    assert node.engine.is_overloaded()
    relieved = asyncio.Event()
    node.engine.when_relieved(relieved.set)
    node.engine.touch()
    await asyncio.wait_for(relieved.wait(), PATIENCE_S)
