"""Links that end and leaders that change, at any moment: nothing is lost, nothing is there twice, the order is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands

from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.delivery import Unacked
from leveret.session.forwarding.leader_server import ForwardedChannelConsumer
from leveret.session.forwarding.leader_server import ForwardedConsumer as RelayClient
from tests.unit.session.amqp091.fakes import publish
from tests.unit.session.forwarding.sites import CONFIRM, Client, Cluster, methods

B = commands.Basic
Q = commands.Queue
NODES = ("a", "b", "c")


def upset(cluster: Cluster, dice: random.Random) -> None:
    """Something happens on the way."""
    cluster.connect()
    match dice.choices(["carry", "turn", "cut", "move", "crash", "tick"], [30, 20, 8, 6, 4, 5])[0]:
        case "carry" if cluster.links:
            dice.choice(cluster.links).carry(dice.choice([1, 7, 30, 200, None]))
        case "turn":
            cluster[dice.choice(NODES)].turn()
        case "cut" if cluster.links:
            cluster.cut(dice.choice(cluster.links))
        case "move":
            _move(cluster, dice, crash=False)
        case "crash":
            _move(cluster, dice, crash=True)
        case "tick":
            cluster[dice.choice(NODES)].forwarded.tick(0)


def _move(cluster: Cluster, dice: random.Random, *, crash: bool) -> None:
    others = [name for name, node in cluster.nodes.items() if isinstance(node.queue("q"), RemoteQueue)]
    cluster.move("q", dice.choice(others), crash=crash)


def stored(cluster: Cluster) -> list[bytes]:
    """What the queue's leader has in its log."""
    [leader] = [node for node in cluster.nodes.values() if not node.queue("q").is_remote]
    return [body for _, _, body in leader.messages()["q"]]


@settings(max_examples=80)
@given(st.integers(0, 1 << 32), st.integers(1, 120))
def test_each_publish_is_stored_once_in_its_order_and_confirmed(seed: int, steps: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster.with_queue(*NODES)
    clients = [Client(cluster[name]) for name in NODES for _ in range(2)]
    for client in clients:
        client.send(CONFIRM)
    counts = [0] * len(clients)
    for _ in range(steps):
        who = dice.randrange(len(clients))
        if dice.random() < 0.4:
            for _ in range(dice.choice([1, 1, 3, 30])):
                size = dice.choice([0, 0, 0, 20])
                clients[who].send(*publish(b"%d:%d" % (who, counts[who]) + b"." * size))
                counts[who] += 1
        else:
            upset(cluster, dice)
    cluster.settle()
    found = [body.rstrip(b".").split(b":") for body in stored(cluster)]
    for who, count in enumerate(counts):
        assert [int(number) for name, number in found if int(name) == who] == list(range(count))
        assert not clients[who].told(B.Nack)
        assert sum(1 for _ in _confirmed(clients[who])) == count
    assert all(not node.forwarded.kept.size_bytes for node in cluster.nodes.values())


def test_a_node_knows_which_leaders_owe_it_a_confirm() -> None:
    cluster = Cluster(*NODES)
    cluster.declare("q", "b")
    Client(cluster["a"]).send(*publish(b"0"))
    cluster["a"].turn()
    leaders = cluster["a"].forwarded
    key = cluster["a"].queue("q").key
    assert leaders.first_unconfirmed({key}) == key
    assert leaders.first_unconfirmed(()) is None
    cluster.settle()
    assert leaders.first_unconfirmed({key}) is None


@pytest.mark.parametrize("is_told", [False, True])
def test_what_the_leader_s_disk_refused_is_not_confirmed_by_the_next_one_that_has_later_messages(
    is_told: bool,
) -> None:
    cluster = Cluster.with_queue(*NODES)
    client = Client(cluster["a"])
    client.send(CONFIRM, *publish(b"0"))
    cluster.settle()
    [link] = cluster.links
    cluster["b"].refuses_messages = True
    client.send(*publish(b"1"))
    cluster["a"].turn()
    link.carry()
    # The next message is on its way when the disk has room again.
    client.send(*publish(b"2"))
    cluster["a"].turn()
    cluster["b"].turn()
    cluster["b"].refuses_messages = False
    if is_told:
        cluster.settle()
    else:
        link.serving.receive(b"".join(link.leader_client.take_output()), 0)
        cluster["b"].turn()
    cluster.move("q", "c", crash=True)
    cluster.settle()
    assert [
        body for body in (b"%d" % (tag - 1) for tag in _confirmed(client)) if body not in stored(cluster)
    ] == []
    # A refusal that does not arrive is none: the next leader is sent both.
    assert stored(cluster) == ([b"0", b"2"] if is_told else [b"0", b"1", b"2"])
    assert len(_confirmed(client)) == (1 if is_told else 3)


def _confirmed(client: Client) -> list[int]:
    tags: list[int] = []
    for ack in client.told(B.Ack):
        first = (tags[-1] if tags else 0) + 1 if ack.multiple else ack.delivery_tag
        tags += range(first, ack.delivery_tag + 1)
    assert tags == sorted(set(tags))
    return tags


@settings(max_examples=80)
@given(st.integers(0, 1 << 32), st.integers(1, 120))
def test_consumers_get_everything_and_what_they_acknowledge_to_its_leader_is_gone(
    seed: int, steps: int
) -> None:
    dice = random.Random(seed)
    cluster = Cluster.with_queue(*NODES)
    cluster.declare("other", "c")
    consumers = [Client(cluster[name]) for name in NODES]
    limits = [dice.choice([0, 0, 1, 3]) for _ in consumers]
    for number, (client, limit) in enumerate(zip(consumers, limits, strict=True)):
        client.send(B.Qos(0, dice.choice([0, 1, 5])), B.Qos(0, limit, True))
        client.send(B.Consume(queue="q", consumer_tag=f"{number}"))
        client.send(B.Consume(queue="other", consumer_tag=f"other {number}"))
    # A client that waits for an answer would not know yet which of its acknowledgements were taken.
    cluster.settle()
    publisher = Client(cluster["a"])
    count = 0
    for _ in range(steps):
        if dice.random() < 0.3:
            for _ in range(dice.choice([1, 20])):
                publisher.send(*publish(b"%d" % count, key=dice.choice(["q", "q", "other"])))
                count += 1
        elif dice.random() < 0.4:
            _acknowledge(dice.choice(consumers), dice)
        else:
            upset(cluster, dice)
        for client, limit in zip(consumers, limits, strict=True):
            assert not limit or client.session.channels[1].unacked.count <= limit
    for _ in range(10_000):
        cluster.settle()
        if not any([_acknowledge(client, None) for client in consumers]):
            break
    assert {int(body) for client in consumers for body in client.bodies} == set(range(count))
    [leader] = [node for node in cluster.nodes.values() if not node.queue("q").is_remote]
    for queue in (leader.queue("q"), cluster["c"].queue("other")):
        assert (queue.message_count, queue.unacked_count, len(queue.consumers)) == (0, 0, len(consumers))
    for client in consumers:
        assert "Channel.Close" not in methods(client)


def _acknowledge(client: Client, dice: random.Random | None) -> bool:
    """Acknowledge, or refuse, something or (without dice) everything; whether there was anything."""
    unacked = [
        tag for run in client.session.channels[1].unacked for tag in range(run.tag, run.tag + run.count)
    ]
    if not unacked:
        return False
    if dice is None:
        client.send(B.Ack(0, True))
        return True
    tag = dice.choice(unacked)
    client.send(
        dice.choice(
            [B.Ack(tag), B.Ack(tag, True), B.Ack(tag, True), B.Nack(tag, True, True), B.Reject(tag, True)]
        )
    )
    return True


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_a_method_is_answered_once_whatever_happens_meanwhile(seed: int, steps: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster.with_queue(*NODES)
    client = Client(cluster["a"])
    asked: list[str] = []
    for number in range(steps):
        match dice.choice(["declare", "get", "consume", "cancel", "purge", "upset", "upset", "upset"]):
            case "declare":
                client.send(Q.Declare(queue="q", passive=True))
                asked.append("Queue.DeclareOk")
            case "get":
                client.send(B.Get(queue="q", no_ack=True))
                asked.append("Basic.Get")
            case "consume":
                client.send(B.Consume(queue="q", consumer_tag=f"{number}"))
                asked.append("Basic.ConsumeOk")
            case "cancel":
                client.send(B.Cancel(f"{dice.randrange(number + 1)}"))
                asked.append("Basic.CancelOk")
            case "purge":
                client.send(Q.Purge(queue="q"))
                asked.append("Queue.PurgeOk")
            case _:
                upset(cluster, dice)
    cluster.settle()
    answers = [name for name in methods(client) if name != "Basic.Deliver"]
    assert ["Basic.Get" if name in ("Basic.GetOk", "Basic.GetEmpty") else name for name in answers] == asked


def test_a_consumer_that_asked_for_it_is_cancelled_at_a_fail_over() -> None:
    cluster = Cluster.with_queue("a", "b", "c")
    asked, carries_on = Client(cluster["a"]), Client(cluster["a"])
    asked.send(B.Consume(queue="q", consumer_tag="x", arguments={"x-cancel-on-ha-failover": True}))
    carries_on.send(B.Consume(queue="q", consumer_tag="y"))
    cluster.settle()
    cluster.move("q", "c", crash=True)
    cluster.settle()
    Client(cluster["b"]).send(*publish(b"x"))
    cluster.settle()
    assert methods(asked) == ["Basic.ConsumeOk", "Basic.Cancel"]
    assert methods(carries_on) == ["Basic.ConsumeOk", "Basic.Deliver"]
    [registered] = cluster["c"].queue("q").consumers
    assert isinstance(registered, ForwardedChannelConsumer)
    assert registered.client == RelayClient("y", "test", 1, "guest", "a")


@pytest.mark.parametrize("leader", ["a", "c"])
@pytest.mark.parametrize("is_exclusive", [False, True])
def test_a_consumer_whose_place_another_one_took_at_the_next_leader_is_cancelled(
    leader: str, is_exclusive: bool
) -> None:
    """As in RabbitMQ. Its channel was closed with 403, and its other consumers ended with it."""
    cluster = Cluster.with_queue("a", "b", "c")
    cluster.declare("other", "c")
    client, faster = Client(cluster["a"], 1, 2), Client(cluster[leader])
    client.send(B.Consume(queue="q", consumer_tag="x", exclusive=True))
    client.send(B.Consume(queue="other", consumer_tag="y"), B.Qos(0, 1))
    cluster.settle()
    old = cluster.step_down("q")
    replaced = cluster[leader].forwarded.led_here

    def led_here(before: Queue, queue: Queue) -> None:
        faster.send(B.Consume(queue="q", consumer_tag="z", exclusive=is_exclusive))
        replaced(before, queue)

    cluster[leader].forwarded.led_here = led_here  # type: ignore[method-assign]
    cluster.lead_on("q", leader, cluster["b"], old)
    cluster.settle()
    assert methods(client) == ["Basic.ConsumeOk", "Basic.ConsumeOk", "Basic.QosOk", "Basic.Cancel"]
    assert methods(faster) == ["Basic.ConsumeOk"]
    faster.send(*publish(b"1"), *publish(b"2", key="other"))
    cluster.settle()
    assert (client.bodies, faster.bodies) == ([b"2"], [b"1"])


def test_a_refused_registration_that_was_made_anew_elsewhere_cancels_nothing() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.declare("q", "c")
    client, faster = Client(cluster["a"]), Client(cluster["b"])
    client.send(B.Consume(queue="q", consumer_tag="x", exclusive=True))
    cluster.settle()
    old = cluster.step_down("q")
    cluster.lead_on("q", "b", cluster["c"], old)
    faster.send(B.Consume(queue="q", consumer_tag="z", exclusive=True))
    cluster.connect()
    cluster["a"].turn()
    # The refusal is still on its way when the next change arrives.
    for link in cluster.links:
        if link.leader is cluster["b"]:
            link.serving.receive(b"".join(link.leader_client.take_output()), 0)
    faster.leave()
    cluster["b"].turn()
    cluster.move("q", "c")
    cluster.settle()
    assert methods(client) == ["Basic.ConsumeOk"]
    assert len(cluster["c"].queue("q").consumers) == 1


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_a_consumer_is_registered_again_although_the_leader_has_not_heard_of_the_loss_of_its_link(
    is_exclusive: bool,
) -> None:
    cluster = Cluster.with_queue("a", "b")
    client = Client(cluster["a"])
    client.send(B.Consume(queue="q", consumer_tag="x", exclusive=is_exclusive), *publish(b"1"))
    cluster.settle()
    [half_open] = cluster.links
    cluster.links.clear()
    client.node.forwarded.lost(half_open.leader_client)
    client.node.dialled.append(half_open.leader_client)
    cluster.settle()
    assert methods(client) == ["Basic.ConsumeOk", "Basic.Deliver", "Basic.Deliver"]
    assert [each.redelivered for each in client.told(B.Deliver)] == [False, True]
    assert list(cluster["b"].forwarded.serving) == [link.serving for link in cluster.links]
    half_open.serving.lost()
    client.send(B.Ack(2))
    cluster.settle()
    assert (cluster["b"].queue("q").message_count, len(cluster["b"].queue("q").consumers)) == (0, 1)


def test_a_leader_that_is_lost_costs_one_pass_over_a_channel_however_many_of_its_queues_it_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass for each queue made one step of 0.7 s of 2,000 queues."""
    cluster = Cluster("a", "b", "c")
    client = Client(cluster["a"])
    for number in range(20):
        cluster.declare(f"q{number}", "b")
        client.send(B.Consume(queue=f"q{number}", consumer_tag=f"{number}"), *publish(b"x", key=f"q{number}"))
    cluster.settle()
    passes: list[Channel] = []
    all_deliveries = Channel.deliveries

    def deliveries(channel: Channel) -> Iterator[Unacked]:
        passes.append(channel)
        return all_deliveries(channel)

    monkeypatch.setattr(Channel, "deliveries", deliveries)
    cluster.cut(cluster.links[0])
    assert len(passes) == 1
    cluster.settle()
    assert [each.redelivered for each in client.told(B.Deliver)] == [False] * 20 + [True] * 20


def test_what_was_fetched_returns_from_all_channels_that_have_some_when_the_leader_steps_down() -> None:
    cluster = Cluster.with_queue("a", "b")
    cluster.declare("other", "b")
    clients = [Client(cluster[name]) for name in ("b", "b", "b", "a")]
    clients[0].send(*[each for number in range(4) for each in publish(b"%d" % number)])
    clients[0].send(*publish(b"other", key="other"))
    clients[0].send(B.Get(queue="q"))
    clients[1].send(B.Get(queue="other"))
    clients[2].send(B.Qos(0, 1), B.Consume(queue="q", consumer_tag="c"))
    cluster.settle()
    clients[2].send(B.Cancel("c"))
    clients[3].send(B.Get(queue="q"))
    cluster.settle()
    assert cluster["b"].queue("q").unacked_count == 3
    old = cluster.step_down("q")
    assert (old.unacked_count, old.ready_count) == (0, 4)
    assert cluster["b"].queue("other").unacked_count == 1


def test_what_is_sent_to_another_leader_again_may_have_been_delivered_by_the_last_one() -> None:
    """No mirror has it, and the consumer of the lost leader did: the next one marks it, and nothing that is new."""
    cluster = Cluster.with_queue("a", "b", "c")
    client, consumer = Client(cluster["a"]), Client(cluster["a"])
    consumer.send(B.Consume(queue="q", consumer_tag="x"))
    cluster.settle()
    client.send(CONFIRM, *publish(b"sent"))
    cluster["a"].turn()
    for link in cluster.links:
        link.carry()
    cluster["b"].flush()
    for link in cluster.links:
        link.carry()
    cluster["a"].turn()
    assert [each.redelivered for each in consumer.told(B.Deliver)] == [False]
    lost = cluster["b"].queue("q")
    cluster["b"].logs[lost] = []
    lost.sequences.logged = {}
    cluster.move("q", "c", crash=True)
    cluster.settle()
    client.send(*publish(b"new"))
    cluster.settle()
    assert consumer.bodies == [b"sent", b"sent", b"new"]
    assert [each.redelivered for each in consumer.told(B.Deliver)] == [False, True, False]


def test_acknowledgements_of_what_the_last_leader_delivered_are_forgotten() -> None:
    cluster = Cluster.with_queue("a", "b", "c")
    client = Client(cluster["a"])
    client.send(*publish(b"x"), B.Qos(0, 1), B.Consume(queue="q", consumer_tag="x"))
    cluster.settle()
    cluster.move("q", "c")
    cluster.settle()
    assert [each.redelivered for each in client.told(B.Deliver)] == [False, False]
    client.send(B.Ack(1))
    cluster.settle()
    assert cluster["c"].queue("q").message_count == 1
    client.send(B.Ack(2))
    cluster.settle()
    assert cluster["c"].queue("q").message_count == 0
    assert "Channel.Close" not in methods(client)


def test_a_leader_that_takes_its_queue_back_has_what_was_unacknowledged() -> None:
    cluster = Cluster.with_queue("a", "b")
    there, local = Client(cluster["a"]), Client(cluster["b"])
    there.send(CONFIRM, *publish(b"1"), *publish(b"2"), B.Qos(0, 1), B.Consume(queue="q", consumer_tag="x"))
    cluster.settle()
    local.send(B.Get(queue="q"))
    node, queue = cluster["b"], cluster["b"].queue("q")
    assert queue.unacked_count == 2
    stands = RemoteQueue(queue.definition, "b")
    node.broker.replace_queue(stands)
    node.forwarded.waits(queue, stands)
    there.send(*publish(b"3"))
    local.send(*publish(b"4"))
    cluster["a"].turn()
    node.turn()
    assert queue.unacked_count == 0
    node.broker.replace_queue(queue)
    node.forwarded.led_here(stands, queue)
    cluster.settle()
    assert [each.delivery_tag for each in there.told(B.Ack)][-1] == 3
    assert sorted(body for _, _, body in node.messages()["q"]) == [b"1", b"2", b"3", b"4"]
    local.send(B.Ack(1))
    for _ in range(4):
        there.send(B.Ack(0, True))
        cluster.settle()
    assert (queue.message_count, queue.unacked_count) == (0, 0)
    assert there.bodies == [b"1", b"1", b"2", b"4", b"3"]


def test_a_commit_that_no_leader_answered_says_so() -> None:
    cluster = Cluster.with_queue("a", "b", "c")
    client = Client(cluster["a"])
    client.send(*publish(b"x"), commands.Tx.Select(), B.Get(queue="q"))
    cluster.settle()
    client.send(B.Ack(1), commands.Tx.Commit())
    cluster["a"].turn()
    cluster.move("q", "c", crash=True)
    cluster.settle()
    [close] = client.told(commands.Channel.Close)
    assert (close.reply_code, close.reply_text) == (
        406,
        "PRECONDITION_FAILED - the leader of queue 'q' in vhost '/' was lost before it answered tx.commit: "
        "whether what was acknowledged there is settled is not known",
    )
    assert (close.class_id, close.method_id) == (90, 20)


CLOSES = (commands.Channel.Close, commands.Connection.Close)


def test_a_commit_whose_settlements_the_leader_s_disk_refuses_is_not_told_that_the_leader_is_lost() -> None:
    cluster = Cluster.with_queue("a", "b")
    client = Client(cluster["a"])
    client.send(*publish(b"x"), commands.Tx.Select(), B.Get(queue="q"))
    cluster.settle()
    cluster["b"].refuses_settlements = True
    client.send(B.Ack(1), commands.Tx.Commit())
    cluster.settle()
    [(_, close)] = [each for each in client.replies if isinstance(each[1], CLOSES)]
    assert (close.name, close.reply_code, close.reply_text) == (
        "Connection.Close",
        506,
        "RESOURCE_ERROR - node 'b' did not keep the settlements: its disk refused them, or their queue has another "
        "leader; see that node's log",
    )


@pytest.mark.parametrize("at", ["a", "b"])
def test_a_purge_that_the_disk_refuses_is_not_said_to_be_done(at: str) -> None:
    """At a client of the leader, and of another node."""
    cluster = Cluster.with_queue("a", "b")
    client = Client(cluster[at])
    client.send(*publish(b"x"))
    cluster.settle()
    cluster["b"].refuses_settlements = True
    client.send(Q.Purge(queue="q"))
    cluster.settle()
    assert not client.told(Q.PurgeOk)
    [(_, close)] = [each for each in client.replies if isinstance(each[1], CLOSES)]
    assert (close.name, close.reply_code) == ("Channel.Close", 406)
    assert "messages may come back" in close.reply_text


@pytest.mark.parametrize("consumes", [True, False])
@pytest.mark.parametrize("settles", [B.Ack(1), B.Reject(1, False), B.Nack(1, False, False)])
@pytest.mark.parametrize("leader", ["a", "c"])
def test_a_commit_that_meets_a_leader_that_steps_down_is_not_said_to_be_done(
    leader: str, settles: base.Frame, consumes: bool
) -> None:
    """The leader has taken the delivery back, and does not know it any more as the settlement comes."""
    cluster = Cluster.with_queue("a", "b", "c")
    client = Client(cluster["a"])
    client.send(*publish(b"x"), commands.Tx.Select(), B.Consume(queue="q") if consumes else B.Get(queue="q"))
    cluster.settle()
    assert client.bodies == [b"x"]
    client.send(settles, commands.Tx.Commit())
    cluster["a"].turn()
    old = cluster.step_down("q")
    for _ in range(4):
        for node in cluster.nodes.values():
            node.turn()
        for link in cluster.links:
            link.carry()
    cluster.lead_on("q", leader, cluster["b"], old)
    cluster.settle()
    assert not client.told(commands.Tx.CommitOk)
    [close] = client.told(commands.Channel.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 90, 20)
    assert cluster[leader].queue("q").message_count == 1


@pytest.mark.parametrize("leader", NODES)
def test_of_a_queue_that_rejects_what_nobody_knows_is_not_confirmed(leader: str) -> None:
    """The leader had it, and its confirm or refusal was lost with it: a nack may be wrong, a confirm must not."""
    cluster = Cluster(*NODES)
    cluster.declare("q", "b", arguments={"x-overflow": "reject-publish", "x-max-length": 1})
    client = Client(cluster["a"])
    client.send(CONFIRM, *publish(b"1"), *publish(b"2"))
    cluster["a"].turn()
    cluster.connect()
    cluster["a"].turn()
    for _ in range(3):
        for link in cluster.links:
            link.to_leader += b"".join(link.leader_client.take_output())
            link.serving.receive(link.to_leader, 0)
            link.to_leader = b""
        cluster["b"].flush()
    if leader == "b":
        cluster.cut(cluster.links[0])
    else:
        cluster.move("q", leader, crash=True)
    cluster.settle()
    assert stored(cluster) == [b"1"]
    assert {each.delivery_tag for each in client.told(B.Nack)} >= {2}
    assert not [each for each in client.told(B.Ack) if each.delivery_tag == 2]


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("leader", ["a", "b"])
@pytest.mark.parametrize("settles", [B.Ack(1), B.Reject(1, False), B.Nack(1, False, False)])
@pytest.mark.parametrize("is_acked_before", [True, False])
def test_a_commit_of_what_the_leader_before_delivered_does_nothing_and_says_so(
    crash: bool, leader: str, settles: base.Frame, is_acked_before: bool
) -> None:
    """Its message is delivered again: it must not look settled, and what is published with it must not be there."""
    cluster = Cluster("a", "b", "c")
    cluster.declare("q", leader)
    cluster.declare("other", "a")
    client = Client(cluster["a"])
    client.send(*publish(b"x"), commands.Tx.Select(), B.Get(queue="q"))
    cluster.settle()
    if is_acked_before:
        client.send(settles)
        cluster.settle()
    cluster.move("q", "c", crash=crash)
    cluster.settle()
    assert not client.told(commands.Channel.Close)
    if not is_acked_before:
        client.send(settles)
    client.send(*publish(b"y", "other"), commands.Tx.Commit())
    cluster.settle()
    [close] = client.told(commands.Channel.Close)
    assert (close.reply_code, close.reply_text) == (
        406,
        "PRECONDITION_FAILED - queue 'q' in vhost '/' has another leader since it delivered what this transaction "
        "acknowledges, and delivers it again: nothing of the transaction was done",
    )
    assert not client.told(commands.Tx.CommitOk)
    assert stored(cluster) == [b"x"]
    assert cluster["a"].queue("other").message_count == 0
    assert cluster["c"].queue("q").message_count == 1


@pytest.mark.parametrize("requeues", [True, False])
def test_what_comes_back_anyway_needs_no_leader_to_be_given_back_or_rolled_back(requeues: bool) -> None:
    cluster = Cluster.with_queue("a", "b", "c")
    client = Client(cluster["a"])
    client.send(*publish(b"x"), commands.Tx.Select(), B.Get(queue="q"))
    cluster.settle()
    client.send(B.Nack(1, False, True) if requeues else B.Ack(1))
    cluster.move("q", "c", crash=True)
    cluster.settle()
    client.send(commands.Tx.Commit() if requeues else commands.Tx.Rollback())
    cluster.settle()
    client.send(B.Ack(0, True), commands.Tx.Commit() if requeues else B.Recover(True))
    cluster.settle()
    assert not client.told(commands.Channel.Close)
    assert cluster["c"].queue("q").message_count == 1


def test_a_queue_that_is_deleted_settles_whatever_a_transaction_had_of_it() -> None:
    cluster = Cluster.with_queue("a", "b", "c")
    client = Client(cluster["a"])
    client.send(*publish(b"x"), commands.Tx.Select(), B.Get(queue="q"))
    cluster.settle()
    cluster.move("q", "c", crash=True)
    cluster.settle()
    client.send(Q.Delete(queue="q"))
    cluster.settle()
    cluster.delete("q")
    client.send(B.Ack(1), commands.Tx.Commit())
    cluster.settle()
    assert client.told(commands.Tx.CommitOk)


def test_what_a_client_has_of_a_queue_that_moves_is_not_settled_by_its_acknowledgement_of_another_queue() -> (
    None
):
    # The client's node learns of the new leader before the leader does.
    cluster = Cluster.with_queue(*NODES)
    cluster.declare("other", "b")
    client, there = Client(cluster["a"]), Client(cluster["b"])
    for queue in ("q", "other"):
        client.send(B.Consume(queue=queue, consumer_tag=queue))
        cluster.settle()
        there.send(*publish(queue.encode(), key=queue))
        cluster.settle()
    assert client.bodies == [b"q", b"other"]
    cluster["a"].forwarded.led_by(cluster["a"].remote_queue("q"), "c")
    client.send(B.Ack(2))
    for _ in range(3):
        cluster["a"].turn()
        cluster.links[0].carry()
        cluster["b"].turn()
    assert [cluster["b"].queue(each).message_count for each in ("q", "other")] == [1, 0]
    cluster.move("q", "c")
    cluster.settle()
    assert client.bodies[2:] == [b"q"]
    client.send(B.Ack(0, True))
    cluster.settle()
    assert cluster["c"].queue("q").message_count == 0


def test_a_channel_keeps_nothing_of_the_deleted_queues_that_it_used_at_another_leader() -> None:
    """Applications fetch from queues of single requests, and delete them, as long as they run."""
    cluster = Cluster.with_queue("a", "b")
    client = Client(cluster["a"])
    client.send(*publish(b"x"), B.Get(queue="q", no_ack=True))
    cluster.settle()
    leaders = cluster["a"].forwarded
    [remote_channel] = leaders._remote_channels["/", "q"]
    cluster.delete("q")
    cluster.settle()
    assert (leaders._remote_channels, remote_channel.ports) == ({}, {})


@pytest.mark.parametrize("uses", ["consumes", "gets"])
def test_a_channel_forgets_a_deleted_queue_once_its_consumer_is_gone_and_its_deliveries_are_settled(
    uses: str,
) -> None:
    cluster = Cluster("a", "b")
    cluster.declare("stays", "b")
    client = Client(cluster["a"])
    client.send(B.Consume(queue="stays"))
    leaders = cluster["a"].forwarded
    for number in range(5):
        cluster.declare(f"q{number}", "b")
        client.send(*publish(b"x", f"q{number}"))
        client.send(B.Consume(queue=f"q{number}") if uses == "consumes" else B.Get(queue=f"q{number}"))
        cluster.settle()
        # The other node knows of the deletion before the leader has cancelled the consumer.
        cluster.delete(f"q{number}")
        [remote_channel] = leaders._remote_channels["/", "stays"]
        for consumer in list(remote_channel.consumers.values()):
            if consumer.queue.key != ("/", "stays"):
                consumer.queue_deleted()
        client.send(B.Ack(0, True))
        cluster.settle()
    assert [*remote_channel.ports] in ([("/", "stays")], [("/", "stays"), ("/", "q4")])
    assert len(leaders._remote_channels) == len(remote_channel.ports)


def test_a_delivery_of_a_deleted_queue_is_known_at_the_client_s_node_until_it_is_settled() -> None:
    cluster = Cluster.with_queue("a", "b")
    client = Client(cluster["a"])
    client.send(*publish(b"x"), B.Get(queue="q"))
    cluster.settle()
    [remote_channel] = cluster["a"].forwarded._remote_channels["/", "q"]
    cluster.delete("q")
    cluster.settle()
    assert [*remote_channel.ports] == [("/", "q")], "its end is told if the leader is lost"
