"""What is declared on one node of a cluster is there on all of them, once, in RabbitMQ's words."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker
from rstream import Consumer, ConsumerOffsetSpecification, MessageContext, Producer
from rstream import OffsetType as RstreamOffset

from leveret.pipeline.upstream.stream_client import StreamClient
from leveret.pipeline.upstream.stream_client import connect as connect_streams
from leveret.testing.network.ports import LOOPBACK, NotReady, wait_until
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.follower_site import SECRET_FILE
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from leveret.wire.stream.commands import MetadataResponse as Found
from leveret.wire.stream.fields import OffsetSpec, OffsetType

PAUSE_S = 3.0
"""Longer than a lease of these nodes."""
DURABLE = {"durable": True}


def connect(node: SiteNode) -> pika.BlockingConnection:
    """A client of that node."""
    return pika.BlockingConnection(pika.URLParameters(node.amqp_uri))


def stream_client(node: SiteNode) -> StreamClient:
    return connect_streams([f"{LOOPBACK}:{node.stream_port}"], vhost="/", username="guest", password="guest")


def test_what_is_declared_on_one_node_is_there_on_the_others_when_that_is_answered(site: ClusterSite) -> None:
    """No node is asked too early: twenty times, each time from another node to the two others."""
    connections = [connect(node) for node in site.members]
    channels = [connection.channel() for connection in connections]
    for number in range(20):
        at = number % 3
        channels[at].exchange_declare(f"x{number}", "topic", durable=True)
        channels[at].queue_declare(f"seen{number}", durable=True)
        channels[at].queue_bind(f"seen{number}", f"x{number}", "a.#")
        for other in (channels[at - 1], channels[at - 2]):
            other.queue_declare(f"seen{number}", passive=True)
            other.confirm_delivery()
            other.basic_publish(f"x{number}", "a.b", b"routed", mandatory=True)
    for number in range(20):
        assert channels[0].queue_declare(f"seen{number}", passive=True).method.message_count == 2
    for connection in connections:
        connection.close()


def test_whom_to_follow_is_set_on_any_node_and_known_on_all(site: ClusterSite) -> None:
    for command, name in (
        ("set_schema_replication_upstream_endpoints", "schema_definition_sync_upstream"),
        ("set_standby_replication_upstream_endpoints", "standby_replication_upstream"),
    ):
        for number, node in enumerate(site.members):
            value = {"endpoints": [f"other:{number + 1}"], "username": "u", "password": "p"}
            with connect(node) as connection:
                node.ctl(command, "-", input_text=json.dumps(value))
                for other in site.members:
                    path = f"global-parameters/{name}"
                    reply = httpx.get(
                        f"http://{LOOPBACK}:{other.management_port}/api/{path}", auth=("guest", "guest")
                    )
                    assert reply.json()["value"]["endpoints"] == value["endpoints"], (node.name, other.name)
                # Its node is still a member, and serves it.
                connection.channel().queue_declare("still-served", durable=True)


def test_two_nodes_that_declare_the_same_otherwise_at_once_have_one_winner(site: ClusterSite) -> None:
    """The other one is told what RabbitMQ tells; whoever asks again is told the same on every node."""
    for number in range(10):
        outcomes: dict[int, str] = {}

        def declare(
            at: int, durable: bool, number: int = number, outcomes: dict[int, str] = outcomes
        ) -> None:
            with connect(site.members[at]) as connection:
                try:
                    connection.channel().queue_declare(f"race{number}", durable=durable)
                    outcomes[at] = "ok"
                except ChannelClosedByBroker as closed:
                    outcomes[at] = closed.reply_text

        threads = [threading.Thread(target=declare, args=(at, at == 0)) for at in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(text == "ok" for text in outcomes.values()) == [False, True], outcomes
        refused = next(text for text in outcomes.values() if text != "ok")
        assert "PRECONDITION_FAILED - inequivalent arg 'durable' for queue" in refused
        durable = outcomes[0] == "ok"
        for node in site.members:
            with connect(node) as connection:
                connection.channel().queue_declare(f"race{number}", durable=durable)


def test_an_exclusive_queue_takes_replies_from_clients_of_other_nodes_and_goes_with_its_connection(
    site: ClusterSite,
) -> None:
    """The commonest pattern of all: request and reply over a queue of one's own."""
    a, b, _ = site.members
    with connect(a) as leader_client, connect(b) as answering:
        asked = leader_client.channel()
        name = asked.queue_declare("", exclusive=True).method.queue
        replies = answering.channel()
        replies.confirm_delivery()
        replies.basic_publish("", name, b"reply", mandatory=True)
        method, _, body = asked.basic_get(name, auto_ack=True)
        assert method is not None
        assert body == b"reply"
        with pytest.raises(ChannelClosedByBroker) as refused:
            answering.channel().queue_declare(name, passive=True)
        assert refused.value.reply_code == 405
    with connect(b) as other:

        def is_gone() -> bool:
            try:
                other.channel().queue_declare(name, passive=True)
            except ChannelClosedByBroker as closed:
                return bool(closed.reply_code == 404)
            return False

        wait_until(is_gone, "the exclusive queue stays", 60)


def test_a_direct_reply_comes_from_a_client_of_another_node(site: ClusterSite) -> None:
    a, b, _ = site.members
    with connect(a) as asking, connect(b) as answering:
        asked, answers = asking.channel(), list[bytes]()
        asked.basic_consume(
            "amq.rabbitmq.reply-to",
            lambda _channel, _method, _properties, body: answers.append(body),
            auto_ack=True,
        )
        queue = asked.queue_declare("", exclusive=True).method.queue
        asked.basic_publish("", queue, b"", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
        _, question, _ = asked.basic_get(queue, auto_ack=True)
        answering.channel().basic_publish("", question.reply_to, b"answer")

        def is_answered() -> bool:
            asking.process_data_events(0.05)
            return bool(answers)

        wait_until(is_answered, "the reply", 60)
        assert answers == [b"answer"]


def test_users_vhosts_and_permissions_hold_on_all_nodes(site: ClusterSite) -> None:
    """What is changed over one node's HTTP API is asked for at another node's AMQP door."""
    a, b, c = site.members
    site.api("PUT", "vhosts/shop", {}, at=a)
    site.api("PUT", "users/anna", {"password": "secret-of-anna", "tags": ""}, at=b)
    site.api("PUT", "permissions/shop/anna", {"configure": "^mine", "write": ".*", "read": ".*"}, at=c)
    uri = a.amqp_uri.replace("guest:guest", "anna:secret-of-anna").replace("%2F", "shop")
    with pika.BlockingConnection(pika.URLParameters(uri)) as connection:
        connection.channel().queue_declare("mine", durable=True)
        with pytest.raises(ChannelClosedByBroker) as refused:
            connection.channel().queue_declare("yours", durable=True)
        assert refused.value.reply_code == 403
    site.api("DELETE", "vhosts/shop", at=b)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(uri)).close()


def test_a_vhost_that_is_tagged_on_one_node_has_an_outgoing_log_at_each_even_without_a_queue(
    site: ClusterSite,
) -> None:
    site.members[0].ctl("add_vhost", "tagged", "--tags", "standby_replication")

    def has_log(node: SiteNode) -> bool:
        return any(node.data_dir.glob("**/outgoing/tagged*"))

    wait_until(lambda: all(map(has_log, site.members)), "an outgoing log at each node", PAUSE_S * 10)
    site.members[0].ctl("delete_vhost", "tagged")
    wait_until(lambda: not any(map(has_log, site.members)), "the logs to go with the vhost", PAUSE_S * 10)


@pytest.mark.story
def test_a_transient_queue_goes_with_its_node_and_a_durable_one_waits_for_it(tmp_path: Path) -> None:
    """And the whole cluster, stopped and started again, has what is durable."""
    with ClusterSite(tmp_path, nodes=2) as site:
        a, b = site.members
        with connect(b) as connection:
            channel = connection.channel()
            channel.queue_declare("durable", durable=True)
            channel.queue_declare("transient")
            channel.queue_declare("mine", exclusive=True)
            site.set_policy("ha", "^(transient|mine|durable)$", {"ha-mode": "all"}, at=a)
            wait_until(lambda: "queue_not_mirrored" in b.log_text(), "a warning", 60)
            assert "policy 'ha' asks for mirrors of queue 'transient'" in b.log_text()
            for each in (a, b):
                listed = each.ctl(
                    "-q", "--formatter", "json", "list_queues", "name", "on_leader_loss", "not_mirrored"
                )
                rows = {
                    row["name"]: (row["on_leader_loss"], row["not_mirrored"])
                    for row in json.loads(listed.stdout)
                }
                assert rows["transient"] == ("deleted", "transient")
                assert rows["mine"] == ("deleted", "exclusive")
            site.clear_policy("ha", at=a)
            site.wait(lambda: not site.queues(b)["durable"].mirrors, "a queue without mirrors")
            channel.confirm_delivery()
            channel.basic_publish("", "durable", b"kept", pika.BasicProperties(delivery_mode=2))
        b.kill9()
        with connect(a) as connection:

            def is_gone() -> bool:
                try:
                    connection.channel().queue_declare("transient", passive=True)
                except ChannelClosedByBroker as closed:
                    return bool(closed.reply_code == 404) and "no queue" in closed.reply_text
                return False

            wait_until(is_gone, "the transient queue stays", 60)
            with pytest.raises(ChannelClosedByBroker) as gone:
                connection.channel().queue_declare("mine", passive=True)
            assert gone.value.reply_code == 404, "the exclusive queue went with its connection"
            with pytest.raises(ChannelClosedByBroker) as down:
                connection.channel().queue_declare("durable", passive=True)
            assert "is down or inaccessible" in down.value.reply_text
            site.start(b)

            def is_back() -> bool:
                try:
                    asked = connection.channel().queue_declare("durable", passive=True)
                except ChannelClosedByBroker:
                    return False
                return bool(asked.method.message_count == 1)

            wait_until(is_back, "the durable queue does not come back", 60)
        a.stop()
        b.stop()
        site.start(b)
        site.start(a)
        with connect(a) as connection:
            assert connection.channel().queue_declare("durable", passive=True).method.message_count == 1


@pytest.mark.story
def test_who_does_not_belong_to_the_cluster_is_told_why(tmp_path: Path) -> None:
    """A node with data or a secret of its own, or a name that is taken, does not start, and nothing is touched."""
    with ClusterSite(tmp_path, nodes=1) as site:
        alone = site.add()
        of_cluster = {key: alone.config.pop(key) for key in list(alone.config) if "cluster" in key}
        alone.launch()
        alone.wait_ready()
        with connect(alone) as connection:
            connection.channel().queue_declare("own", durable=True)
        alone.stop()
        alone.config.update(of_cluster)
        with pytest.raises(NotReady, match="has definitions of its own"):
            site.start(alone)
        stranger = site.add()
        stranger.give_secret(b"another secret, of forty-four characters...\n")
        with pytest.raises(NotReady, match="is not the secret of cluster"):
            site.start(stranger)
        with connect(site.members[0]) as connection:
            connection.channel().queue_declare("nobody waits for it")
        stranger.give_secret((site.members[0].data_dir / SECRET_FILE).read_bytes())
        site.start(stranger)
        stranger.stop()
        namesake = site.add()
        namesake.config["nodename"] = site.members[0].node
        with pytest.raises(NotReady, match=r"another node .* runs|has another node"):
            site.start(namesake)
        for key in of_cluster:
            del alone.config[key]
        alone.launch()
        alone.wait_ready()
        with connect(alone) as connection:
            connection.channel().queue_declare("own", passive=True)


def test_a_stream_is_made_at_any_node_and_found_at_its_leader(site: ClusterSite) -> None:
    """A client of the stream protocol makes streams where it is, which each node knows when that is answered."""
    clients = [stream_client(node) for node in site.members]
    for number in range(9):
        at = number % 3
        link = clients[at].connection
        link.request(wire.Create(link.next_id(), f"stream{number}", {}), wire.CreateResponse)
        for client in clients:
            found = client.connection.request(
                wire.Metadata(client.connection.next_id(), [f"stream{number}"]), Found
            )
            [metadata] = found.streams
            places = {broker.reference: (broker.host, broker.port) for broker in found.brokers}
            assert places[metadata.leader] == (LOOPBACK, site.members[at].stream_port)
            others = {node.stream_port for node in site.members} - {places[metadata.leader][1]}
            assert (metadata.code, {places[each][1] for each in metadata.replicas}) == (Code.OK, others)
    link = clients[0].connection
    alone = wire.Create(link.next_id(), "alone", {"initial-cluster-size": "1"})
    link.request(alone, wire.CreateResponse)
    # A reader at a node without a replica is sent to another node, as by RabbitMQ; a publisher is served.
    link = clients[1].connection
    first = OffsetSpec(OffsetType.FIRST)
    for number, stream in enumerate(("alone", "stream0")):
        link.request(wire.DeclarePublisher(link.next_id(), number, "", stream), wire.DeclarePublisherResponse)
    subscribe = wire.Subscribe(link.next_id(), 1, "alone", first, 1, {})
    assert link.exchange(subscribe, wire.SubscribeResponse).code == Code.STREAM_NOT_AVAILABLE
    link.request(wire.DeleteStream(link.next_id(), "stream0"), wire.DeleteResponse)
    [gone] = clients[0].connection.request(wire.Metadata(link.next_id(), ["stream0"]), Found).streams
    assert gone.code == Code.STREAM_DOES_NOT_EXIST
    for client in clients:
        client.close()


@pytest.mark.story
def test_a_stock_client_of_streams_goes_to_the_leader_by_itself(site: ClusterSite) -> None:
    a, b, _ = site.members
    bodies = [b"%d" % number for number in range(50)]

    async def script() -> list[bytes]:
        login: dict[str, Any] = {"username": "guest", "password": "guest"}
        producer = Producer(LOOPBACK, a.stream_port, **login)
        consumer = Consumer(LOOPBACK, b.stream_port, **login)
        got: list[bytes] = []
        are_there = asyncio.Event()

        def take(message: bytes, context: MessageContext) -> None:
            got.append(message)
            if len(got) == len(bodies):
                are_there.set()

        async with asyncio.timeout(30):
            await producer.start()
            await producer.create_stream("stock")
            away = Producer(LOOPBACK, b.stream_port, **login)
            await away.start()
            await away.send_batch("stock", bodies)
            await consumer.start()
            first = ConsumerOffsetSpecification(RstreamOffset.FIRST, None)
            await consumer.subscribe("stock", take, decoder=bytes, offset_specification=first)
            await are_there.wait()
            await consumer.store_offset("stock", "reader", 7)
        await consumer.close()
        await away.close()
        await producer.close()
        return got

    assert asyncio.run(script()) == bodies
    [row] = [row for row in site.api("GET", "queues", at=b) if row["name"] == "stock"]
    assert (row["node"], row["type"]) == (a.node, "stream")


def test_a_node_that_loses_its_lease_serves_nobody_and_comes_back_by_itself(site: ClusterSite) -> None:
    """It stands still for longer than its lease: its clients are gone, the others go on, and then it is one of them."""
    a, b, _ = site.members
    with connect(a) as connection:
        with site.paused(a):
            wait_until(
                lambda: (
                    a.node not in {row["name"] for row in site.api("GET", "nodes", at=b) if row["running"]}
                ),
                "the others do not notice",
                20,
            )
            with connect(b) as other:
                other.channel().queue_declare("meanwhile", durable=True)

        def is_back() -> bool:
            try:
                with connect(a) as again:
                    again.channel().queue_declare("meanwhile", passive=True)
            except (pika.exceptions.AMQPError, OSError):
                return False
            return True

        wait_until(is_back, f"it does not come back: {a.log_tail()}", 30)
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(5)


@pytest.mark.story
def test_a_change_is_answered_when_its_node_loses_its_lease_before_it_may_make_it(site: ClusterSite) -> None:
    """It waits for the pen, which another node has that stands still, when it is stopped as well."""
    a, b, _ = site.members
    site.set_policy("mine", "^x", {"max-length": 1}, at=b)
    with ThreadPoolExecutor(1) as pool:
        with site.paused(b):
            asked = pool.submit(site.set_policy, "late", "^x", {"max-length": 2}, at=a)
            time.sleep(0.3)
            with site.paused(a):
                time.sleep(PAUSE_S)
        with pytest.raises(httpx.HTTPStatusError) as refused:
            asked.result()
    assert refused.value.response.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    # A slow machine lets the node read the request only when it has lost its lease, and so while it starts anew.
    assert refused.value.response.json()["error"] in {"unavailable", "starting"}

    def set_again() -> bool:
        with suppress(OSError, httpx.HTTPStatusError):
            site.set_policy("late", "^x", {"max-length": 2}, at=a)
            return True
        return False

    wait_until(set_again, f"it does not come back: {a.log_tail()}", 30)
