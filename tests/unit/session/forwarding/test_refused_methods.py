"""A method that a leader refuses leaves the deliveries of its client's other queues alone."""

from __future__ import annotations

import pytest
from pamqp import commands

from leveret.core.queues.queue import Queue
from leveret.model.errors import PeerError
from leveret.wire import forwarding
from tests.unit.session.amqp091.fakes import publish
from tests.unit.session.forwarding.sites import Client, Cluster

B = commands.Basic
Q = commands.Queue
NODES = ("a", "b", "c")


@pytest.mark.parametrize("asks", ["consume", "get", "declare", "nothing"])
def test_what_a_client_has_of_other_queues_stays_when_a_node_does_not_lead_a_queue_yet(asks: str) -> None:
    """The leader closed the client's channel for that, each 0.1 s: all its deliveries came again, and were counted."""
    cluster = Cluster.with_queue(*NODES)
    cluster.declare("work", "c")
    client, there = Client(cluster["a"]), Client(cluster["c"])
    client.send(B.Consume(queue="work", consumer_tag="work"), B.Qos(0, 5))
    if asks == "nothing":
        client.send(B.Consume(queue="q", consumer_tag="q"))
    there.send(*publish(b"1", key="work"), *publish(b"2", key="work"))
    cluster.settle()
    assert client.bodies == [b"1", b"2"]
    cluster["a"].forwarded.led_by(cluster["a"].remote_queue("q"), "c")
    match asks:
        case "consume":
            client.send(B.Consume(queue="q", consumer_tag="q"))
        case "get":
            client.send(B.Get(queue="q", no_ack=True))
        case "declare":
            client.send(Q.Declare(queue="q", passive=True))
    for _ in range(10):
        cluster.connect()
        cluster["a"].forwarded.tick(0)
        for node in cluster.nodes.values():
            node.turn()
        for link in cluster.links:
            link.carry()
    assert client.bodies == [b"1", b"2"]
    assert cluster["c"].queue("work").unacked_count == 2
    cluster.move("q", "c")
    cluster.settle()
    client.send(B.Ack(2, True))
    there.send(*publish(b"3"), *publish(b"4", key="work"))
    cluster.settle()
    client.send(B.Ack(0, True))
    cluster.settle()
    assert client.bodies == [b"1", b"2", *([b"3"] if asks in ("consume", "nothing") else []), b"4"]
    assert not any(each.redelivered for each in client.told(B.Deliver))
    assert cluster["c"].queue("work").message_count == 0
    expected = {"consume": B.ConsumeOk, "get": B.GetEmpty, "declare": Q.DeclareOk, "nothing": B.ConsumeOk}
    assert len(client.told(expected[asks])) == (1 if asks in ("get", "declare") else 2)


def test_what_a_client_has_of_other_queues_stays_when_a_registration_is_refused() -> None:
    cluster = Cluster.with_queue(*NODES)
    cluster.declare("work", "c")
    client, there, faster = Client(cluster["a"]), Client(cluster["c"]), Client(cluster["c"])
    client.send(B.Consume(queue="work", consumer_tag="work"), B.Consume(queue="q", consumer_tag="q"))
    there.send(*publish(b"1", key="work"))
    cluster.settle()
    old = cluster.step_down("q")
    replaced = cluster["c"].forwarded.led_here

    def led_here(before: Queue, queue: Queue) -> None:
        faster.send(B.Consume(queue="q", consumer_tag="z", exclusive=True))
        replaced(before, queue)

    cluster["c"].forwarded.led_here = led_here  # type: ignore[method-assign]
    cluster.lead_on("q", "c", cluster["b"], old)
    cluster.settle()
    assert [each.consumer_tag for each in client.told(B.Cancel)] == ["q"]
    there.send(*publish(b"2", key="work"))
    cluster.settle()
    assert [each.redelivered for each in client.told(B.Deliver)] == [False, False]
    client.send(B.Ack(2, True))
    cluster.settle()
    assert cluster["c"].queue("work").message_count == 0


@pytest.mark.parametrize("asks", [False, True])
def test_a_refusal_of_a_method_that_was_not_asked_ends_the_link(asks: bool) -> None:
    cluster = Cluster.with_queue("a", "b")
    client = Client(cluster["a"])
    client.send(B.Consume(queue="q", consumer_tag="x"))
    cluster.settle()
    [link] = cluster.links
    [number] = link.leader_client.channels
    if asks:
        client.send(B.Get(queue="q"))
    with pytest.raises(PeerError, match="003c0014 is refused where something else was asked"):
        link.leader_client.receive(forwarding.refused(number, 0x003C0014, 404, "NOT_FOUND - no queue"))
