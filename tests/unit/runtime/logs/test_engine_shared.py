"""The flush at a node of a cluster: what waits until all nodes know the queues that it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.model.errors import StorageError
from leveret.runtime.logs.ports import Part
from leveret.testing.network.waiting import until
from tests.unit.runtime.collecting.site import Site
from tests.unit.runtime.logs.test_engine import Client


class Others:
    """The other nodes (ports.ReplicationPort): they know a change once the test says so, and mirror nothing."""

    def __init__(self, site: Site) -> None:
        self.shared: list[list[d.Change]] = []
        self.known: list[Callable[[], None]] = []
        site.node.broker.shared = []
        site.node.engine.replication_port = self

    def share(self, changes: list[d.Change], known: Callable[[], None]) -> None:
        self.shared.append(changes)
        self.known.append(known)

    def concerns(self, queue: object) -> bool:
        return False

    def when_kept(self, batch: ConfirmBatch, part: Part) -> None:
        raise AssertionError("no queue concerns others")

    def when_taken(self, queues: Iterable[Queue], part: Part) -> None:
        raise AssertionError("no queue concerns others")

    def when_decided(
        self,
        queue: Queue,
        since: int,
        place: int,
        then: Callable[[list[tuple[int, int]]], None],
        *,
        until_taken: bool,
    ) -> None:
        raise AssertionError("no queue concerns others")

    def is_overloaded(self) -> bool:
        return False

    def when_relieved(self, callback: Callable[[], None]) -> None:
        raise AssertionError("nobody is slow")

    def flushed(self, queue: Queue) -> None:
        """Nobody mirrors it."""

    def taken_down(self, queue: Queue) -> None:
        raise AssertionError(f"{queue.key} is damaged")


async def flushed(site: Site) -> None:
    """Flush, and wait for the disk only."""
    site.node.engine.flush()
    await site.node.commits.all_durable()


async def declared(site: Site, client: Client, name: str, **arguments: Any) -> Queue:
    """A queue that is on this node's disk, and that the other nodes do not know yet."""
    client.send(commands.Queue.Declare(queue=name, durable=True, arguments=arguments))
    await flushed(site)
    assert client.names() == []
    return site.node.broker.queues["/", name]


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
async def test_a_message_is_confirmed_once_all_nodes_know_its_queue(directory: Path, kind: str) -> None:
    """Otherwise it is lost with the queue if the definition never reaches etcd: this node's next start removes it."""
    site = await Site.started(directory)
    others, declaring, publishing = Others(site), Client(site), Client(site)
    for number, name in enumerate(("q", "later")):
        await declared(site, declaring, name, **{"x-queue-type": kind})
        publishing.publish(name)
        await flushed(site)
        assert len(others.known) == number + 1
    assert publishing.names() == []
    others.known[0]()
    await until(lambda: publishing.names() == ["Basic.Ack"], "the confirm")
    other = Client(site)
    other.publish("later")
    for _ in range(2):
        await flushed(site)
    assert other.names() == []
    others.known[1]()
    await until(lambda: other.names() == ["Basic.Ack"] and len(publishing.replies) == 2, "the confirms")
    assert declaring.names() == ["Queue.DeclareOk"] * 2


async def test_a_message_in_a_queue_that_all_know_does_not_wait_for_other_definitions(
    directory: Path,
) -> None:
    site = await Site.started(directory)
    client, others = Client(site), Others(site)
    await declared(site, client, "known")
    others.known[0]()
    await declared(site, Client(site), "unknown")
    client.replies.clear()
    client.publish("known")
    await flushed(site)
    await until(lambda: client.names() == ["Basic.Ack"], "the confirm")


@pytest.mark.parametrize("call", ["when_safe", "when_confirmable"])
async def test_records_are_safe_once_all_nodes_know_their_queue(directory: Path, call: str) -> None:
    """A stream asks for that while its messages are appended, which is before the flush shares definitions."""
    site = await Site.started(directory)
    client, others = Client(site), Others(site)
    client.send(commands.Queue.Declare(queue="q", durable=True))
    safe = list[bool]()
    getattr(site.node.engine, call)(site.node.broker.queues["/", "q"], lambda: safe.append(True))
    await flushed(site)
    assert not safe
    others.known[0]()
    assert safe


async def test_a_dead_letter_stays_where_it_died_until_all_nodes_know_its_target(directory: Path) -> None:
    site = await Site.started(directory)
    client, others = Client(site), Others(site)
    to_grave = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    queue = await declared(site, client, "q", **to_grave)
    others.known[0]()
    client.publish("q")
    await flushed(site)
    grave = await declared(site, Client(site), "grave")
    client.send(commands.Basic.Get(queue="q"), commands.Basic.Reject(delivery_tag=1, requeue=False))
    await flushed(site)
    assert (grave.message_count, queue.message_count) == (1, 1)
    others.known[1]()
    await until(lambda: queue.message_count == 0, "the settlement")


async def test_a_full_disk_keeps_no_change_from_other_nodes_and_its_own_clients_wait(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the node would keep the definitions lock, and no client of the cluster could declare or delete."""

    def refuse(changes: Sequence[d.Change]) -> None:
        raise StorageError("no space left on device")

    site = await Site.started(directory)
    client, others = Client(site), Others(site)
    with monkeypatch.context() as full:
        full.setattr(site.node._definitions, "append", refuse)
        await declared(site, client, "q")
        [[change]] = others.shared
        assert isinstance(change, d.Put)
        assert change.entity.key == ("/", "q")
        others.known[0]()
        site.node.engine.touch(client.session)
        await flushed(site)
        assert (site.node.broker.shared, site.node.broker.changes_in_flight) == ([], 0), "the lock may go"
        assert client.names() == []
    await flushed(site)
    assert client.names() == ["Queue.DeclareOk"]
    assert len(others.shared) == 1
    assert ("/", "q") in site.node._definitions.definitions.by_kind["queues"]


async def test_a_transaction_settles_nothing_until_all_nodes_know_the_queue_that_it_publishes_to(
    directory: Path,
) -> None:
    """If this node is cut off, that queue is removed at its next start, and with it what was published for the acks."""
    site = await Site.started(directory)
    client, others = Client(site), Others(site)
    known = await declared(site, client, "known")
    others.known[0]()
    client.publish("known")
    await flushed(site)
    await declared(site, Client(site), "unknown")
    client.send(commands.Channel.Close(200, "", 0, 0), commands.Channel.Open(), commands.Tx.Select())
    client.send(commands.Basic.Get(queue="known"))
    await flushed(site)
    client.replies.clear()
    client.send(commands.Basic.Ack(delivery_tag=1))
    client.publish("unknown")
    client.send(commands.Tx.Commit())
    for _ in range(3):
        await flushed(site)
    assert known.message_count == site.node.broker.queues["/", "unknown"].message_count == 1
    assert client.names() == []
    others.known[1]()
    await until(lambda: client.names() == ["Tx.CommitOk"], "the commit")
    assert known.message_count == 0
