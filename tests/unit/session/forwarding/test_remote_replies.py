"""Direct replies between clients of two nodes of a cluster."""

from __future__ import annotations

import pytest
from pamqp import commands

from leveret.session.amqp091.direct_reply import REPLY_TO, node_of
from leveret.session.forwarding import remote_replies
from tests.unit.session.amqp091.fakes import publish
from tests.unit.session.forwarding.sites import Client, Cluster

B = commands.Basic


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b")


def asking(cluster: Cluster) -> tuple[Client, str]:
    """A client of node a that takes replies, and its name for them."""
    client = Client(cluster["a"])
    client.send(B.Consume(queue=REPLY_TO, no_ack=True))
    [name] = cluster["a"].broker.direct_replies
    assert node_of(name) == "a"
    return client, name


def test_replies_of_another_nodes_client_come_in_order(cluster: Cluster) -> None:
    """They went nowhere, and their clients waited for ever."""
    client, name = asking(cluster)
    server = Client(cluster["b"])
    server.send(commands.Queue.Declare(queue=name, passive=True))
    for number in range(5):
        server.send(*publish(b"%d" % number, name, mandatory=number == 1, headers={"number": number}))
    cluster.settle()
    server.send(*publish(b"", name), *publish(b"6", name), *publish(b"7", name), *publish(b"8", name))
    cluster.settle()
    assert client.bodies == [b"0", b"1", b"2", b"3", b"4", b"6", b"7", b"8"]
    assert [each.routing_key for each in client.told(B.Deliver)] == [name] * 9
    assert [each.reply_code for each in server.told(B.Return)] == [312]
    assert server.told(commands.Queue.DeclareOk)
    [link] = cluster.links
    assert len(link.leader_client.channels) == 1


def test_a_reply_that_is_late_goes_nowhere_and_the_next_ones_arrive(cluster: Cluster) -> None:
    client, name = asking(cluster)
    server = Client(cluster["b"])
    server.send(*publish(b"early", name))
    cluster.settle()
    client.leave()
    server.send(*publish(b"late", name))
    cluster.settle()
    other, another = asking(cluster)
    server.send(*publish(b"for another", another))
    cluster.settle()
    assert (client.bodies, other.bodies) == ([b"early"], [b"for another"])


def test_after_the_loss_of_a_link_the_next_reply_has_a_new_one(cluster: Cluster) -> None:
    client, name = asking(cluster)
    server = Client(cluster["b"])
    server.send(*publish(b"1", name))
    cluster.settle()
    cluster.cut(cluster.links[0])
    server.send(*publish(b"2", name))
    cluster.settle()
    assert client.bodies == [b"1", b"2"]


def test_nothing_waits_for_a_node_that_does_not_run_and_nobody_makes_one_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, name = asking(cluster)
    server, forwarded = Client(cluster["b"]), cluster["b"].forwarded
    monkeypatch.setattr(remote_replies, "WAITING_BYTES_MAX", 500)
    for body in (b"x" * 400, b"y" * 400):
        server.send(*publish(body, name))
    [leader_client] = cluster["b"].dialled
    assert forwarded.wants(leader_client)
    del cluster.nodes["a"]
    forwarded.tick(0)
    assert not forwarded.wants(leader_client)
    server.send(
        *publish(b"z", name), *publish(b"z", f"{REPLY_TO}.nowhere.1"), *publish(b"z", f"{REPLY_TO}.1")
    )
    assert list(forwarded.askings) == [("a", "/")]
    assert not forwarded.wants(leader_client)
