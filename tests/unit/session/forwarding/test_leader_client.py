"""What a client asks of queues that another node leads, and what it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pamqp import commands, frame

from leveret.core.queues.queue_settings import REJECT_PUBLISH_DLX
from leveret.model.errors import PeerError
from leveret.session.amqp091.blocked import BlockedReason
from leveret.session.forwarding import leader_client, publication
from leveret.session.forwarding.leader_server import ForwardedConnection
from leveret.wire import amqp091 as wire
from leveret.wire import forwarding
from tests.unit.session.amqp091.fakes import publish
from tests.unit.session.forwarding.sites import CONFIRM, Client, Cluster, methods

B = commands.Basic
Q = commands.Queue


@pytest.fixture
def cluster() -> Cluster:
    """The queue `q` is led by node b."""
    found = Cluster("a", "b")
    found.declare("q", "b")
    return found


def test_publishes_arrive_in_order_and_are_confirmed(cluster: Cluster) -> None:
    client = Client(cluster["a"])
    client.send(CONFIRM)
    for number in range(20):
        client.send(*publish(b"%d" % number, mandatory=True))
    cluster["a"].turn()
    assert not client.told(B.Ack)
    cluster.settle()
    assert [body for _, _, body in cluster["b"].messages()["q"]] == [b"%d" % n for n in range(20)]
    assert client.told(B.Ack)[-1].delivery_tag == 20
    assert cluster["a"].forwarded.kept.size_bytes == 0


def test_a_confirm_of_one_message_is_not_taken_for_all_before_it(cluster: Cluster) -> None:
    client = Client(cluster["a"])
    client.send(CONFIRM, *publish(b"1"))
    cluster.settle()
    client.send(*publish(b"2"), *publish(b"3"), *publish(b"4"))
    cluster["a"].turn()
    [link] = cluster.links
    [number] = link.leader_client.channels
    with pytest.raises(PeerError, match="a confirm of message 3 alone, where 1 was the last"):
        link.leader_client.receive(wire.ack(number, 3, False))
    assert client.told(B.Ack)[-1].delivery_tag == 1
    link.leader_client.receive(wire.ack(number, 2, False) + wire.ack(number, 4, True))
    cluster["a"].turn()
    assert client.told(B.Ack)[-1].delivery_tag == 4


def test_messages_keep_their_exchange_routing_key_and_header(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        Client(node).send(Q.Bind(queue="q", exchange="amq.topic", routing_key="#", nowait=True))
    client = Client(cluster["a"])
    client.send(*publish(b"", "some.key", "amq.topic", user_id="guest", headers={"x": 1}))
    client.send(*publish(b"y" * 10_000, "k", "amq.topic", delivery_mode=2))
    cluster.settle()
    empty, large = cluster["b"].messages()["q"]
    assert (empty[0], empty[2]) == (b"\x09amq.topic\x08some.key", b"")
    assert (large[0], large[2]) == (b"\x09amq.topic\x01k", b"y" * 10_000)
    assert large[1] == b"\0\x3c\0\0" + (10_000).to_bytes(8, "big") + b"\x10\0\2"


@pytest.mark.parametrize("sizes", [(100,), (101,), (250, 250), (250, 3, 101, 1000)])
def test_a_large_body_goes_to_the_leader_and_back_in_short_frames(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    """Neither node takes all of it in one step, however large it is."""
    monkeypatch.setattr(forwarding, "SENT_BODY_BYTES_MAX", 100)
    for module in (forwarding, wire):
        monkeypatch.setattr(module, "SENT_FRAME_BYTES_MAX", 108)
    client = Client(cluster["a"])
    client.send(CONFIRM, B.Consume(queue="q", consumer_tag="c", no_ack=True))
    cluster.settle()
    [link] = cluster.links
    frames, bodies = list[int](), [bytes(each % 251 for each in range(size)) for size in sizes]
    for end in (link.serving, link.leader_client):

        def receive(octets: bytes, *at: Any, then: Any = end.receive) -> None:
            position = 0
            while position < len(octets):
                kind, _, size = wire.FRAME_HEAD.unpack_from(octets, position)
                position += size + wire.FRAME_OVERHEAD
                if kind == wire.FRAME_BODY:
                    frames.append(size)
            then(octets, *at)

        monkeypatch.setattr(end, "receive", receive)
    for body in bodies:
        client.send(*publish(body))
    cluster.settle()
    assert client.told(B.Ack)[-1].delivery_tag == len(sizes)
    assert b"".join(client.bodies) == b"".join(bodies)
    assert sum(frames) == 2 * sum(sizes)
    assert max(frames) == 100


@pytest.mark.parametrize("is_got", [False, True])
@pytest.mark.parametrize("own_ms", [None, 5_000])
def test_who_does_not_acknowledge_a_message_of_another_node_loses_its_channel_and_others_get_the_message(
    own_ms: int | None, is_got: bool
) -> None:
    cluster = Cluster("a", "b")
    cluster.declare("q", "b", arguments={} if own_ms is None else {"x-consumer-timeout": own_ms})
    cluster["a"].limits = replace(cluster["a"].limits, consumer_timeout_ms=7_000)
    client, other = Client(cluster["a"], 1, 2), Client(cluster["a"])
    client.send(*publish(b"late"))
    cluster.settle()
    client.send(B.Get(queue="q") if is_got else B.Consume(queue="q"))
    cluster.settle()
    assert client.bodies == [b"late"]
    timeout_ms = own_ms or 7_000
    client.session.tick(timeout_ms)
    assert not client.told(commands.Channel.Close)
    client.session.tick(timeout_ms + 1)
    cluster.settle()
    [closed] = client.told(commands.Channel.Close)
    assert closed.reply_code == 406
    assert f"timed out. Timeout value used: {timeout_ms} ms" in closed.reply_text
    other.send(B.Consume(queue="q"))
    cluster.settle()
    assert [(each.redelivered, each.delivery_tag) for each in other.told(B.Deliver)] == [(True, 1)]
    assert other.bodies == [b"late"]


def test_a_large_message_is_got_from_the_leader(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SENT_FRAME_BYTES_MAX", 108)
    Client(cluster["b"]).send(*publish(b"x" * 1000))
    client = Client(cluster["a"])
    client.send(B.Get(queue="q"))
    cluster.settle()
    assert client.bodies == [b"x" * 100] * 10


def test_a_consumer_gets_its_messages_and_acknowledges_them(cluster: Cluster) -> None:
    client, there = Client(cluster["a"]), Client(cluster["b"])
    client.send(B.Consume(queue="q", consumer_tag="c", arguments={"x-priority": 3}))
    assert client.session.blocked_reason is BlockedReason.REMOTE
    cluster.settle()
    assert methods(client) == ["Basic.ConsumeOk"]
    [consumer] = cluster["b"].queue("q").consumers
    assert consumer.priority == 3
    for number in range(100):
        there.send(*publish(b"%d" % number))
    cluster.settle()
    assert client.bodies == [b"%d" % n for n in range(100)]
    tags = [each.delivery_tag for each in client.told(B.Deliver)]
    assert tags == list(range(1, 101))
    client.send(B.Ack(2), B.Ack(1), B.Ack(50, True), B.Nack(60, False, False), B.Reject(70, True))
    cluster.settle()
    assert cluster["b"].queue("q").message_count == 49
    assert client.bodies[100:] == [b"69"]
    assert client.told(B.Deliver)[-1].redelivered
    client.send(B.Ack(0, True))
    cluster.settle()
    assert cluster["b"].queue("q").message_count == 0


def test_the_leader_keeps_to_the_prefetch(cluster: Cluster) -> None:
    client, there = Client(cluster["a"]), Client(cluster["b"])
    client.send(B.Qos(0, 3), B.Consume(queue="q", consumer_tag="c"))
    cluster.settle()
    for number in range(10):
        there.send(*publish(b"%d" % number))
    cluster.settle()
    assert client.bodies == [b"0", b"1", b"2"]
    client.send(B.Qos(0, 5, True), B.Ack(2, True))
    cluster.settle()
    assert client.bodies == [b"0", b"1", b"2", b"3", b"4"]


def test_no_more_is_on_its_way_than_the_node_has_granted(cluster: Cluster) -> None:
    client, there = Client(cluster["a"]), Client(cluster["b"])
    client.send(B.Consume(queue="q", consumer_tag="c", no_ack=True))
    cluster.settle()
    client.session.is_paused = True
    cluster["a"].clients.clear()
    for number in range(1000):
        there.send(*publish(b"%d" % number))
    cluster.settle()
    assert cluster["b"].queue("q").ready_count == 1000 - 64
    cluster["a"].clients.append(client)
    cluster.settle()
    assert client.bodies == [b"%d" % n for n in range(1000)]
    assert cluster["b"].queue("q").message_count == 0


def test_get_declare_purge_and_delete_are_the_leaders_to_answer(cluster: Cluster) -> None:
    client = Client(cluster["a"])
    for number in range(5):
        client.send(*publish(b"%d" % number))
    client.send(
        B.Get(queue="q"),
        B.Get(queue="q", no_ack=True),
        Q.Declare(queue="q", passive=True),
        Q.Declare(queue="q", durable=True),
        B.Ack(1),
        Q.Purge(queue="q"),
        B.Get(queue="q"),
        Q.Delete(queue="q"),
    )
    cluster.settle()
    assert methods(client) == [
        "Basic.GetOk",
        "Basic.GetOk",
        "Queue.DeclareOk",
        "Queue.DeclareOk",
        "Queue.PurgeOk",
        "Basic.GetEmpty",
        "Queue.DeleteOk",
    ]
    assert client.bodies == [b"0", b"1"]
    assert [each.message_count for each in client.told(B.GetOk)] == [4, 3]
    assert [each.message_count for each in client.told(Q.DeclareOk)] == [3, 3]
    assert client.told(Q.PurgeOk)[0].message_count == 3
    assert ("/", "q") not in cluster["b"].broker.queues


def test_the_leaders_refusal_closes_the_clients_channel_in_its_words(cluster: Cluster) -> None:
    there, client = Client(cluster["b"]), Client(cluster["a"], 1, 2)
    there.send(B.Consume(queue="q", consumer_tag="mine", exclusive=True))
    client.send(B.Consume(queue="q", consumer_tag="c"))
    cluster.settle()
    [close] = client.told(commands.Channel.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (403, 60, 20)
    assert close.reply_text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    client.send(commands.Channel.CloseOk())
    client.send(Q.Declare(queue="q", passive=True), channel=2)
    cluster.settle()
    assert client.told(Q.DeclareOk, 2)[0].consumer_count == 1


def test_a_channel_that_closes_gives_back_what_it_was_delivered(cluster: Cluster) -> None:
    client, there = Client(cluster["a"]), Client(cluster["b"])
    there.send(*publish(b"x"))
    client.send(B.Consume(queue="q", consumer_tag="c"))
    cluster.settle()
    assert cluster["b"].queue("q").unacked_count == 1
    client.send(commands.Channel.Close(200, "", 0, 0))
    cluster.settle()
    queue = cluster["b"].queue("q")
    assert (queue.unacked_count, queue.ready_count, len(queue.consumers)) == (0, 1, 0)
    assert methods(client)[-1] == "Channel.CloseOk"


def test_a_connection_that_is_lost_gives_back_what_it_was_delivered(cluster: Cluster) -> None:
    client, there = Client(cluster["a"]), Client(cluster["b"])
    there.send(*publish(b"x"))
    client.send(B.Consume(queue="q", consumer_tag="c"))
    cluster.settle()
    client.leave()
    cluster.settle()
    queue = cluster["b"].queue("q")
    assert (queue.unacked_count, queue.ready_count, len(queue.consumers)) == (0, 1, 0)


def test_a_cancelled_consumer_gets_nothing_more_and_keeps_what_it_has(cluster: Cluster) -> None:
    client, there = Client(cluster["a"]), Client(cluster["b"])
    there.send(*publish(b"x"))
    client.send(B.Consume(queue="q", consumer_tag="c"))
    cluster.settle()
    client.send(B.Cancel("c"))
    cluster.settle()
    there.send(*publish(b"y"))
    cluster.settle()
    assert client.bodies == [b"x"]
    assert methods(client)[-1] == "Basic.CancelOk"
    queue = cluster["b"].queue("q")
    assert (queue.unacked_count, queue.ready_count) == (1, 1)


def test_a_consumer_hears_that_its_queue_was_deleted(cluster: Cluster) -> None:
    client, there = Client(cluster["a"]), Client(cluster["b"])
    client.send(B.Consume(queue="q", consumer_tag="c"))
    cluster.settle()
    there.send(Q.Delete(queue="q"))
    cluster.settle()
    assert methods(client)[-1] == "Basic.Cancel"


def test_one_that_is_rejected_is_nacked_and_no_other(cluster: Cluster) -> None:
    cluster.declare("r", "b", arguments={"x-overflow": "reject-publish", "x-max-length": 2})
    client = Client(cluster["a"])
    client.send(CONFIRM, b"".join(b"".join(publish(b"%d" % n, "r")) for n in range(5)))
    client.send(*publish(b"no", "q"), *publish(b"6", "r"), *publish(b"yes", "q"))
    cluster.settle()
    refused = {tag for each in client.told(B.Nack) for tag in _tags(client, each)}
    assert refused == {3, 4, 5, 7}
    assert {tag for each in client.told(B.Ack) for tag in _tags(client, each)} == {1, 2, 6, 8}
    assert [body for _, _, body in cluster["b"].messages()["r"]] == [b"0", b"1"]


def _tags(client: Client, told: B.Ack | B.Nack) -> list[int]:
    """Those that a confirm is about: all since the one before if it is multiple."""
    last = 0
    for _, each in client.replies:
        if isinstance(each, B.Ack | B.Nack):
            if each is told:
                return list(range(last + 1 if told.multiple else told.delivery_tag, told.delivery_tag + 1))
            last = each.delivery_tag
    raise AssertionError("it was not told")


def test_a_transaction_is_committed_when_the_leader_has_all_of_it(cluster: Cluster) -> None:
    client = Client(cluster["a"])
    client.send(*publish(b"x"), commands.Tx.Select(), B.Get(queue="q"))
    cluster.settle()
    client.send(*publish(b"y"), B.Ack(1), commands.Tx.Commit())
    cluster["a"].turn()
    assert methods(client)[-1] != "Tx.CommitOk"
    cluster.settle()
    assert methods(client)[-1] == "Tx.CommitOk"
    queue = cluster["b"].queue("q")
    assert (queue.ready_count, queue.unacked_count) == (1, 0)


def test_a_rolled_back_acknowledgement_is_none(cluster: Cluster) -> None:
    client = Client(cluster["a"])
    client.send(*publish(b"x"), commands.Tx.Select(), B.Get(queue="q"))
    cluster.settle()
    client.send(B.Ack(1), commands.Tx.Rollback())
    cluster.settle()
    assert cluster["b"].queue("q").unacked_count == 1


def test_a_queue_that_nobody_leads_is_refused_in_rabbitmqs_words(cluster: Cluster) -> None:
    client = Client(cluster["a"])
    queue = cluster["a"].remote_queue("q")
    cluster["a"].forwarded.down(queue)
    client.send(Q.Declare(queue="q", passive=True))
    cluster.settle()
    [close] = client.told(commands.Channel.Close)
    assert close.reply_text == (
        "NOT_FOUND - home node 'b' of durable queue 'q' in vhost '/' is down or inaccessible"
    )
    cluster["a"].forwarded.led_by(queue, "b")
    again = Client(cluster["a"])
    again.send(Q.Declare(queue="q", passive=True))
    cluster.settle()
    assert methods(again) == ["Queue.DeclareOk"]


def test_what_waits_for_a_leader_is_nacked_when_the_queue_is_deleted(cluster: Cluster) -> None:
    client = Client(cluster["a"])
    cluster["a"].forwarded.down(cluster["a"].remote_queue("q"))
    client.send(CONFIRM, *publish(b"x"))
    cluster.settle()
    assert not client.told(B.Nack)
    cluster.delete("q")
    cluster.settle()
    assert client.told(B.Nack)[0].delivery_tag == 1
    assert cluster["a"].forwarded.kept.size_bytes == 0


def test_a_queue_that_is_down_costs_no_other_queue_its_publishers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published to it waits as far as there is room for it; what waited before that is refused."""
    monkeypatch.setattr(publication, "DOWN_BYTES_MAX", 1000)
    client, forwarded = Client(cluster["a"]), cluster["a"].forwarded
    queue = cluster["a"].remote_queue("q")
    client.send(CONFIRM, *publish(b"0" * 500))
    cluster["a"].turn()
    assert forwarded.kept.expected_bytes == forwarded.kept.size_bytes == 500
    forwarded.down(queue)
    for text in (b"1" * 500, b"2" * 500, b"3" * 500):
        client.send(*publish(text))
        cluster.settle()
    assert forwarded.kept.expected_bytes == 0
    assert forwarded.kept.size_bytes <= 1000
    assert [refused.delivery_tag for refused in client.told(B.Nack)] == [1, 2]
    assert not client.told(B.Ack)
    forwarded.led_by(queue, "b")
    assert forwarded.kept.expected_bytes == forwarded.kept.size_bytes
    cluster.settle()
    assert [body[:1] for _, _, body in cluster["b"].messages()["q"]] == [b"2", b"3"]
    assert client.told(B.Ack)[-1].delivery_tag == 4
    assert forwarded.kept.size_bytes == 0


def test_a_change_of_definitions_waits_for_the_pen(cluster: Cluster) -> None:
    client = Client(cluster["a"])
    cluster["a"].broker.definitions_lock.is_here = False
    wanted: list[bool] = []
    cluster["a"].broker.definitions_lock.on_wanted = lambda: wanted.append(True)
    client.send(Q.Declare(queue="q", durable=True), Q.Declare(queue="new"), B.Qos(0, 1))
    cluster.settle()
    assert methods(client) == ["Queue.DeclareOk"]
    assert (client.session.blocked_reason, wanted) == (BlockedReason.DEFINITIONS_LOCK, [True])
    cluster["a"].broker.definitions_lock.arrived()
    client.session.go_on(0)
    cluster.settle()
    assert methods(client) == ["Queue.DeclareOk", "Queue.DeclareOk", "Basic.QosOk"]


def test_alarms_of_the_leader_block_those_who_publish_to_it(cluster: Cluster) -> None:
    client = Client(cluster["a"])
    client.send(*publish(b"x"))
    cluster.settle()
    [link] = cluster.links
    cluster["b"].alarms.set_elsewhere(("memory",))
    link.serving.alarms_changed(0)
    cluster.settle()
    assert not link.leader_client.blocked_by
    cluster["b"].alarms.set_replicas_short(True)
    link.serving.alarms_changed(0)
    client.send(*publish(b"y"))
    cluster.settle()
    assert [*link.leader_client.blocked_by] == ["in-sync followers"]
    assert len(cluster["b"].messages()["q"]) == 2
    cluster["b"].alarms.set_replicas_short(False)
    link.serving.alarms_changed(0)
    cluster.settle()
    assert not link.leader_client.blocked_by


def test_a_link_that_is_made_during_an_alarm_tells_of_it(cluster: Cluster) -> None:
    """Publishers of a node that came later filled the memory and the disk of a leader that had none left."""
    cluster["b"].alarms.set_replicas_short(True)
    client = Client(cluster["a"])
    client.send(*publish(b"x"))
    cluster.settle()
    [link] = cluster.links
    assert [*link.leader_client.blocked_by] == ["in-sync followers"]
    cluster["b"].alarms.set_replicas_short(False)
    link.serving.alarms_changed(0)
    cluster.settle()
    assert not link.leader_client.blocked_by


def test_dlx_of_a_rejected_publish_is_the_leaders(cluster: Cluster) -> None:
    arguments = {
        "x-overflow": REJECT_PUBLISH_DLX,
        "x-max-length": 0,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "q",
    }
    cluster.declare("r", "b", arguments=arguments)
    client = Client(cluster["a"])
    client.send(CONFIRM, *publish(b"x", "r"))
    cluster.settle()
    assert client.told(B.Nack)[0].delivery_tag == 1
    assert cluster["b"].queue("r").dead_lettering.letters[0].reason == "maxlen"


def filled(messages: int) -> tuple[Cluster, Client]:
    """A client of node a, with a queue at each of three nodes that has messages: `here` at a, `q` at b, `r` at c."""
    cluster = Cluster("a", "b", "c")
    client = Client(cluster["a"])
    for name, leader in (("here", "a"), ("q", "b"), ("r", "c")):
        cluster.declare(name, leader)
        there = Client(cluster[leader])
        for number in range(messages):
            there.send(*publish(f"{name} {number}".encode(), key=name))
    cluster.settle()
    return cluster, client


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_of_a_channel_is_one_for_all_leaders(limit: int) -> None:
    cluster, client = filled(20)
    client.send(B.Qos(0, limit, True))
    for name in ("here", "q", "r"):
        client.send(B.Consume(queue=name, consumer_tag=name))
    cluster.settle()
    acked = 0
    while acked < 60:
        assert len(client.bodies) - acked == min(limit, 60 - acked)
        acked += 1
        client.send(B.Ack(acked))
        cluster.settle()
        if acked == 30:
            # All of them have their turns.
            assert {body.split()[0] for body in client.bodies[10:]} == {b"here", b"q", b"r"}
    for name in ("here", "q", "r"):
        assert [body for body in client.bodies if body.startswith(name.encode() + b" ")] == [
            f"{name} {number}".encode() for number in range(20)
        ]
    assert not any(each.redelivered for each in client.told(B.Deliver))
    for node, name in (("a", "here"), ("b", "q"), ("c", "r")):
        assert cluster[node].queue(name).message_count == 0


def test_what_is_held_back_returns_when_its_consumer_goes_and_comes_when_the_limit_does() -> None:
    cluster, client = filled(4)
    client.send(
        B.Qos(0, 3, True), B.Consume(queue="q", consumer_tag="q"), B.Consume(queue="r", consumer_tag="r")
    )
    cluster.settle()
    assert (
        len(client.bodies),
        cluster["b"].queue("q").unacked_count,
        cluster["c"].queue("r").unacked_count,
    ) == (3, 3, 3)
    client.send(B.Cancel("r"))
    cluster.settle()
    of_r = sum(body.startswith(b"r ") for body in client.bodies)
    assert cluster["c"].queue("r").unacked_count == of_r
    client.send(B.Qos(0, 0, True))
    cluster.settle()
    assert [body for body in client.bodies if body.startswith(b"q ")] == [b"q 0", b"q 1", b"q 2", b"q 3"]
    client.send(B.Ack(0, True))
    cluster.settle()
    assert (cluster["b"].queue("q").message_count, cluster["c"].queue("r").message_count) == (0, 4 - of_r)


def test_what_is_held_back_of_a_leader_that_is_lost_comes_from_the_next_one() -> None:
    cluster, client = filled(4)
    client.send(
        B.Qos(0, 3, True), B.Consume(queue="r", consumer_tag="r"), B.Consume(queue="q", consumer_tag="q")
    )
    cluster.settle()
    cluster.move("q", "c", crash=True)
    cluster.settle()
    for _ in range(10):
        client.send(B.Ack(0, True))
        cluster.settle()
    assert {body for body in client.bodies if body.startswith(b"q ")} == {b"q %d" % n for n in range(4)}
    assert cluster["c"].queue("q").message_count == cluster["c"].queue("r").message_count == 0


def test_which_of_a_queues_consumers_is_served_is_known_where_its_client_is() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.declare("single", "b", arguments={"x-single-active-consumer": True})
    clients = [Client(cluster[name]) for name in ("a", "b", "a", "c")]
    for client in clients:
        client.send(B.Consume(queue="single", consumer_tag="x"))
        cluster.settle()

    def served() -> list[bool]:
        channels = [client.session.channels.get(1) for client in clients]
        consumers = [None if channel is None else channel.consumers.get(b"x") for channel in channels]
        return [each is not None and each.queue.consumers.is_active(each) for each in consumers]

    assert served() == [True, False, False, False]
    # Whoever goes, and however, the next one is told.
    clients[0].send(B.Cancel("x"))
    cluster.settle()
    assert served() == [False, True, False, False]
    clients[1].leave()
    cluster.settle()
    assert served()[2:] == [True, False]
    clients[2].send(commands.Channel.Close(200, "", 0, 0))
    cluster.settle()
    assert served()[3]
    # Of another leader it is another one until that has said so, and nobody else's.
    again = Client(cluster["a"])
    again.send(B.Consume(queue="single", consumer_tag="x"))
    cluster.settle()
    clients = [again, clients[3]]
    cluster.move("single", "a", crash=True)
    cluster.settle()
    assert sorted(served()) == [False, True]


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_leader_takes_publishes_for_the_queue_that_is_meant_and_for_no_other_of_its_name(
    cluster: Cluster, epoch: int
) -> None:
    """A queue that was deleted and declared again has a later epoch, and other messages."""
    cluster.delete("q")
    cluster.declare("q", "b")
    leader = cluster["b"]
    assert leader.broker.queues["/", "q"].epoch == 2
    serving = ForwardedConnection(leader, node="a", now_ms=0, serving={})
    for number, method in ((0, commands.Connection.Open("/")), (1, commands.Channel.Open())):
        serving.receive(frame.marshal(method, number), 0)
    serving.take_output()
    serving.receive(forwarding.target(1, b"q", epoch, b"a"), 0)
    is_taken = b"".join(serving.take_output()) == forwarding.target_ok(1, 0)
    assert is_taken is (epoch == 2)


def test_publishes_to_more_queues_than_a_connection_has_channels_wait_for_unused_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_client, "PUBLISHING_MAX", 3)
    monkeypatch.setattr(leader_client, "CHANNEL_MAX", 4)
    cluster = Cluster("a", "b")
    names = [f"q{number}" for number in range(20)]
    for name in names:
        cluster.declare(name, "b")
    client = Client(cluster["a"])
    client.send(CONFIRM)
    for _ in range(2):
        for name in names:
            client.send(*publish(name.encode(), key=name))
        cluster["a"].turn()
    cluster.settle()
    # A client's channel has a place beside them.
    client.send(B.Consume(queue="q3", consumer_tag="c"))
    cluster.settle()
    assert client.bodies == [b"q3", b"q3"]
    assert client.told(B.Ack)[-1].delivery_tag == 40
    messages = cluster["b"].messages()
    assert all(
        [body for _, _, body in messages[name]] == [name.encode()] * 2 for name in names if name != "q3"
    )
