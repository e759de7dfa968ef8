"""Streams in a cluster: led by one node, mirrored on others, read at any of them, and led on when the leader dies."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pika
import pytest
from rstream.client import Client
from rstream.constants import OffsetType
from rstream.exceptions import OffsetNotFound
from rstream.schema import Deliver, Message, MetadataUpdate, OffsetSpec, Publish, PublishConfirm

from leveret.model.stream import OffsetSpec as StreamOffset
from leveret.model.stream import OffsetType as StreamOffsetType
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.network.waiting import until
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from tests.conformance.stream_talker import StreamTalker

STREAM = {"x-queue-type": "stream"}
PERSISTENT = pika.BasicProperties(delivery_mode=2)
COUNT = 200
WAIT_S = 30.0


def declare(site: ClusterSite, node: SiteNode, stream: str, **arguments: object) -> None:
    with site.channel(node) as channel:
        channel.queue_declare(stream, durable=True, arguments=STREAM | arguments)


def shown(site: ClusterSite, stream: str, node: SiteNode) -> dict[str, Any]:
    return dict(site.api("GET", f"queues/%2F/{stream}", at=node))


def replicas(site: ClusterSite, stream: str, node: SiteNode) -> dict[str, str]:
    """The state of each replica, by its node."""
    rows = site.api("GET", f"queues/%2F/{stream}/replicas", at=node)
    return {row["node"]: row["state"] for row in rows}


def wait_replicated(site: ClusterSite, stream: str, node: SiteNode, others: int = 2) -> None:
    """Wait until so many replicas beside the leader have everything."""
    site.wait(
        lambda: list(replicas(site, stream, node).values()).count("synchronised") == others,
        f"{others} synchronised replicas of {stream}",
    )


def bodies(site: ClusterSite, node: SiteNode, stream: str, count: int, offset: object = "first") -> list[str]:
    """So many messages of a stream from an offset on, as a consumer of AMQP 0-9-1 gets them."""
    found: list[str] = []
    with site.channel(node) as channel:
        channel.basic_qos(prefetch_count=100)
        arguments = {"x-stream-offset": offset}
        for method, _, body in channel.consume(stream, arguments=arguments, inactivity_timeout=WAIT_S):
            assert method is not None, f"{len(found)} of {count} messages came"
            found.append(body.decode())
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        channel.cancel()
    return found


@asynccontextmanager
async def connected(node: SiteNode) -> AsyncIterator[Client]:
    """A stock client of the stream protocol."""
    client = Client(LOOPBACK, node.stream_port, frame_max=1_048_576, heartbeat=60)
    await client.start()
    try:
        await client.authenticate("/", "guest", "guest")
        yield client
    finally:
        await client.close()
        if client._conn is not None:
            await client._conn.close()


async def wait_for(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Wait until this is answered."""
    found: list[object] = []

    async def look() -> None:
        while True:
            found[:] = [await ask()]
            if found == [wanted]:
                return

    async with asyncio.timeout(WAIT_S):
        await look()


class Reader:
    """A subscription of a stock client: the offsets of the chunks that came, and their messages."""

    def __init__(self, client: Client, stream: str) -> None:
        self.client = client
        self.stream = stream
        self.messages: list[bytes] = []
        self.next_offset = 0
        self.is_gone = asyncio.Event()
        client.add_handler(Deliver, self._delivered, name="1")
        client.add_handler(MetadataUpdate, lambda frame: self.is_gone.set())

    async def begin(self, offset: int) -> None:
        await self.client.run_queue_listener_task(1, self._delivered)
        begin = OffsetSpec.from_params(OffsetType.OFFSET, offset)
        await self.client.subscribe(self.stream, 1, begin, initial_credit=10)

    async def _delivered(self, frame: Deliver) -> None:
        self.messages += frame.get_messages()
        self.next_offset = frame.chunk_first_offset + frame.num_records
        await self.client.credit(1, 1)

    async def has(self, count: int) -> None:
        await until(lambda: len(self.messages) >= count)


class Publisher:
    """A publisher with a name; its ids count from 1."""

    def __init__(self, client: Client, stream: str, name: str) -> None:
        self.client = client
        self.stream = stream
        self.name = name
        self.confirmed: set[int] = set()
        client.add_handler(PublishConfirm, lambda frame: self.confirmed.update(frame.publishing_ids))

    async def begin(self) -> None:
        await self.client.declare_publisher(self.stream, self.name, 0)

    async def publish(self, first: int, last: int) -> None:
        wanted = set(range(first, last + 1))
        messages = [Message(number, None, b"%d" % number) for number in sorted(wanted)]
        await self.client.send_publish_frame(Publish(0, messages))
        await until(lambda: wanted <= self.confirmed)


def ctl(node: SiteNode, *words: str) -> subprocess.CompletedProcess[str]:
    return node.ctl(*words, check=False)


def test_confirmed_messages_outlive_the_killed_leader_and_consumers_go_on_behind_their_last_delivery(
    site: ClusterSite,
) -> None:
    leader, other, third = site.members
    declare(site, leader, "books")
    wait_replicated(site, "books", leader)
    assert set(shown(site, "books", other)["members"]) == {each.node for each in site.members}
    reading = site.connect(third)
    channel = reading.channel()
    channel.basic_qos(prefetch_count=50)
    got: list[str] = []

    def take(until: int) -> None:
        for method, _, body in channel.consume(
            "books", arguments={"x-stream-offset": "first"}, inactivity_timeout=WAIT_S
        ):
            assert method is not None, f"{len(got)} of {until} messages came"
            got.append(body.decode())
            channel.basic_ack(method.delivery_tag)
            if len(got) == until:
                return

    with site.channel(other) as publishing:
        for index in range(COUNT):
            publishing.basic_publish("", "books", str(index).encode(), PERSISTENT)
        take(COUNT)
        leader.kill9()
        for index in range(COUNT, 2 * COUNT):
            publishing.basic_publish("", "books", str(index).encode(), PERSISTENT)
    take(2 * COUNT)
    expected = [str(index) for index in range(2 * COUNT)]
    assert got == expected
    reading.close()
    site.start(leader)
    site.wait_members()
    assert bodies(site, leader, "books", 2 * COUNT) == expected
    assert bodies(site, leader, "books", 10, 2 * COUNT - 10) == expected[-10:]


@pytest.mark.story
async def test_a_stream_client_reads_at_replicas_and_finds_ids_and_offsets_at_the_next_leader(
    site: ClusterSite,
) -> None:
    leader, *_ = site.members
    declare(site, leader, "read")
    wait_replicated(site, "read", leader)
    by_port = {node.stream_port: node for node in site.members}

    async with connected(site.members[1]) as client:
        found, others = await client.query_leader_and_replicas("read")
    assert by_port[found.port] is leader
    mirrors = [by_port[each.port] for each in others]
    assert {each.node for each in mirrors} == {each.node for each in site.members[1:]}
    async with connected(mirrors[0]) as first, connected(mirrors[1]) as second:
        readers = [Reader(first, "read"), Reader(second, "read")]
        for reader in readers:
            await reader.begin(0)
        async with connected(leader) as publishing:
            publisher = Publisher(publishing, "read", "p")
            await publisher.begin()
            await publisher.publish(1, COUNT)
            for reader in readers:
                await reader.has(COUNT)
            await first.store_offset("read", "r", 17)
            assert await first.query_offset("read", "r") == 17
            await wait_for(lambda: _stored_offset(second), 17)
            leader.kill9()
        await wait_for(lambda: _leader_of(site, mirrors[0]), True)
        nodes = {each.node: each for each in mirrors}
        next_leader = nodes[shown(site, "read", mirrors[0])["leader"]]
        reader = readers[mirrors.index(next(each for each in mirrors if each is not next_leader))]
        async with connected(next_leader) as publishing:
            publisher = Publisher(publishing, "read", "p")
            await publisher.begin()
            assert await publishing.query_publisher_sequence("read", "p") == COUNT
            # What it publishes once more is stored once.
            await publisher.publish(COUNT - 5, COUNT + 50)
            assert await publishing.query_offset("read", "r") == 17
        await reader.has(COUNT + 50)
        assert len(reader.messages) == COUNT + 50
    site.start(leader)
    site.wait_members()
    wait_replicated(site, "read", leader)
    expected = [str(number) for number in range(1, COUNT + 51)]
    assert bodies(site, leader, "read", COUNT + 50) == expected


async def _stored_offset(client: Client) -> int | None:
    """The offset that another reader stored, once it has come to the leader."""
    try:
        return await client.query_offset("read", "r")
    except OffsetNotFound:
        return None


async def _leader_of(site: ClusterSite, node: SiteNode) -> bool:
    row = await asyncio.to_thread(shown, site, "read", node)
    return bool(row["state"] == "running" and row["leader"] != site.members[0].node)


@pytest.mark.story
@pytest.mark.parametrize("copies", [3, 2], ids=["at-a-replica", "at-a-node-without-a-copy"])
async def test_a_publisher_at_a_node_that_does_not_lead_is_confirmed_by_the_leader_and_hears_of_its_loss(
    site: ClusterSite, copies: int
) -> None:
    leader, *_ = site.members
    stream = f"away-{copies}"
    declare(site, leader, stream, **{"x-initial-cluster-size": copies})
    wait_replicated(site, stream, leader, copies - 1)
    with_copies = replicas(site, stream, leader)
    away = next(
        each for each in site.members[1:] if (copies == len(site.members)) == (each.node in with_copies)
    )

    async with connected(away) as client:
        publisher, moved = Publisher(client, stream, "p"), asyncio.Event()
        client.add_handler(MetadataUpdate, lambda frame: moved.set())
        await publisher.begin()
        await publisher.publish(1, COUNT)
        assert await client.query_publisher_sequence(stream, "p") == COUNT
        # What comes twice is stored once.
        await publisher.publish(COUNT - 5, COUNT + 5)
        await client.store_offset(stream, "r", 17)
        assert await client.query_offset(stream, "r") == 17
        leader.kill9()
        late = [Message(number, None, b"%d" % number) for number in range(COUNT + 6, COUNT + 20)]
        while not moved.is_set() and late[-1].publishing_id not in publisher.confirmed:
            # Some may be on their way to the dead leader, or wait for the next one.
            await client.send_publish_frame(Publish(0, late))
            await asyncio.wait([asyncio.ensure_future(moved.wait())], timeout=0.2)
    async with connected(away) as client:
        publisher = Publisher(client, stream, "p")
        await publisher.begin()
        await publisher.publish(COUNT + 1, 2 * COUNT)
        assert await client.query_publisher_sequence(stream, "p") == 2 * COUNT
        assert await client.query_offset(stream, "r") == 17
    site.start(leader)
    site.wait_members()
    assert bodies(site, away, stream, 2 * COUNT) == [str(number) for number in range(1, 2 * COUNT + 1)]


@pytest.mark.story
def test_a_stream_has_the_copies_that_it_asks_for_and_operators_change_them(site: ClusterSite) -> None:
    first, second, third = site.members
    declare(site, first, "one", **{"x-initial-cluster-size": 1})
    declare(site, first, "two", **{"x-initial-cluster-size": 2})
    declare(site, first, "five", **{"x-initial-cluster-size": 5})
    assert shown(site, "one", third)["members"] == [first.node]
    assert len(shown(site, "two", third)["members"]) == 2
    # Five in a cluster of three: one on each node, which a warning says, and the answers of the API.
    row = shown(site, "five", third)
    assert (len(row["members"]), row["copies_missing"]) == (3, 2)
    assert "is to have 5 copies" in first.log_text()
    with site.channel(first) as channel:
        for index in range(COUNT):
            channel.basic_publish("", "one", str(index).encode(), PERSISTENT)
    refused = ctl(second, "add_replica", "one", "rabbit@nowhere")
    assert (refused.returncode, "is not in the cluster" in refused.stderr) == (69, True)
    assert ctl(second, "delete_replica", "one", first.node).returncode == 69
    assert ctl(second, "add_replica", "one", second.node).returncode == 0
    wait_replicated(site, "one", third, 1)
    assert ctl(third, "add_replica", "one", third.node).returncode == 0
    wait_replicated(site, "one", third)
    moved = ctl(third, "restart_stream", "one", "--preferred-leader-node", third.node)
    assert (moved.returncode, third.node in moved.stdout) == (0, True)
    site.wait(lambda: shown(site, "one", first)["leader"] == third.node, "the preferred leader")
    # A leader that loses its replica hands over first.
    assert ctl(first, "delete_replica", "one", third.node).returncode == 0
    site.wait(
        lambda: (
            set(shown(site, "one", first)["members"]) == {first.node, second.node}
            and shown(site, "one", first)["leader"] != third.node
        ),
        "a leader among the members",
    )
    assert bodies(site, third, "one", COUNT) == [str(index) for index in range(COUNT)]
    status = ctl(third, "stream_status", "one")
    assert status.returncode == 0
    assert "writer" in status.stdout
    assert "replica" in status.stdout


SINGLE = {"single-active-consumer": "true", "name": "app"}


class Member:
    """A member of the group `app` of a stream, at one node."""

    def __init__(self, node: SiteNode, stream: str) -> None:
        self.talker = StreamTalker(node.stream_port)
        self.stream = stream
        assert self.talker.enter() == Code.OK

    def join(self) -> None:
        """Subscribe; again while the stream changes its leader."""
        begin = StreamOffset(StreamOffsetType.FIRST)

        def joined() -> bool:
            asked = wire.Subscribe(7, 1, self.stream, begin, 10, SINGLE)
            return self.talker.ask(asked, wire.SubscribeResponse).code == Code.OK

        wait_until(joined, f"a subscription to {self.stream}", WAIT_S)

    def become_active(self, offset: int) -> None:
        """Wait until it is its turn, and begin there."""
        update = self.talker.await_one(wire.ConsumerUpdate)
        assert update.active == 1
        begin = StreamOffset(StreamOffsetType.OFFSET, offset)
        self.talker.send(wire.ConsumerUpdateResponse(update.correlation, Code.OK, begin))

    def has_nothing(self) -> None:
        """Nothing was delivered so far, and it is not its turn."""
        self.talker.send(wire.Metadata(9, [self.stream]))
        assert isinstance(self.talker.next(), wire.MetadataResponse)

    def takes_chunk(self) -> None:
        self.talker.await_one(wire.Deliver)


@pytest.mark.story
def test_of_a_group_at_several_nodes_one_reads_and_another_follows_it_or_the_leader_of_the_stream(
    site: ClusterSite,
) -> None:
    leader, *others = site.members
    declare(site, leader, "single")
    wait_replicated(site, "single", leader)
    first, second = (Member(node, "single") for node in others)
    first.join()
    first.become_active(0)
    second.join()
    with site.channel(others[0]) as channel:
        channel.basic_publish("", "single", b"one", PERSISTENT)
        first.takes_chunk()
        second.has_nothing()
        first.talker.socket.close()
        second.become_active(0)
        second.takes_chunk()
        third = Member(others[0], "single")
        third.join()
        third.has_nothing()
        leader.kill9()
        # The group was the leader's: its members are told, and join the next leader's.
        assert second.talker.await_one(wire.MetadataUpdate).stream == "single"
        second.join()
        second.become_active(1)
        channel.basic_publish("", "single", b"two", PERSISTENT)
        second.takes_chunk()
    for member in (second, third):
        member.talker.socket.close()
    site.start(leader)
    site.wait_members()
