"""A leader that refuses some messages, or keeps them alone: what the publisher's node is told, and what comes again."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from leveret.core.queues.queue_settings import QueueSettings
from tests.unit.session.amqp091.fakes import publish
from tests.unit.session.forwarding.sites import CONFIRM, Client, Cluster

B = commands.Basic


def _cluster() -> tuple[Cluster, Client]:
    cluster = Cluster.with_queue("a", "b")
    client = Client(cluster["a"])
    client.send(CONFIRM)
    cluster.settle()
    return cluster, client


def _outcomes(client: Client) -> dict[int, bool]:
    """What the client was told of each of its publishes, in order."""
    outcomes: dict[int, bool] = {}
    for _, told in client.replies:
        if isinstance(told, B.Ack | B.Nack):
            assert told.multiple or told.delivery_tag == len(outcomes) + 1
            outcomes |= dict.fromkeys(
                range(len(outcomes) + 1, told.delivery_tag + 1), isinstance(told, B.Ack)
            )
    return outcomes


def _stored(cluster: Cluster) -> list[bytes]:
    return [body for _, _, body in cluster["b"].messages()["q"]]


def test_messages_that_wait_for_mirrors_are_not_refused_with_later_ones_that_the_disk_refuses() -> None:
    cluster, client = _cluster()
    leader = cluster["b"]
    leader.held = []
    client.send(*publish(b"0"))
    cluster.settle()
    leader.refuses_messages = True
    client.send(*publish(b"1"))
    cluster.settle()
    assert _outcomes(client) == {}, "a publisher is told in order"
    leader.refuses_messages = False
    leader.release()
    cluster.settle()
    assert _outcomes(client) == {1: True, 2: False}
    client.send(*publish(b"2"))
    cluster.settle()
    assert _outcomes(client) == {1: True, 2: False, 3: True}
    assert _stored(cluster) == [b"0", b"2"]


def test_stored_messages_that_come_again_are_not_refused_with_new_ones_of_the_same_flush() -> None:
    cluster, client = _cluster()
    leader = cluster["b"]
    leader.held = []
    client.send(*publish(b"0"))
    cluster.settle()
    cluster.cut(cluster.links[0])
    leader.held = None
    leader.refuses_messages = True
    client.send(*publish(b"1"))
    cluster.settle()
    leader.refuses_messages = False
    for session in leader.forwarded.serving:
        session.tick(0)
    cluster.settle()
    assert _outcomes(client) == {1: True, 2: False}
    assert _stored(cluster) == [b"0"]


def test_what_the_mirrors_of_a_queue_that_moved_may_lack_goes_to_its_next_leader_and_is_not_nacked() -> None:
    cluster = Cluster.with_queue("a", "b", "c")
    client = Client(cluster["a"])
    client.send(CONFIRM)
    leader = cluster["b"]
    leader.held = []
    client.send(*publish(b"0"))
    cluster.settle()
    [(channel, batch)] = leader.held
    old = cluster.step_down("q")
    channel.confirm(batch, ok=False)
    cluster.links[0].carry()
    cluster["a"].turn()
    assert _outcomes(client) == {}
    leader.logs[old] = []
    old.sequences.logged.clear()
    cluster.lead_on("q", "c", leader, old)
    cluster.settle()
    assert _outcomes(client) == {1: True}
    assert [body for _, _, body in cluster["c"].messages()["q"]] == [b"0"]


@settings(max_examples=100)
@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_nothing_that_a_broker_would_publish_again_is_stored_and_all_else_is_stored_once(
    seed: int, steps: int
) -> None:
    dice = random.Random(seed)
    cluster, client = _cluster()
    leader, queue, count = cluster["b"], cluster["a"].remote_queue("q"), 0
    again: set[int] = set()
    decided: list[int] = []

    def publish_some() -> None:
        nonlocal count
        many = dice.choice([1, 1, 3])
        for number in range(count, count + many):
            client.send(*publish(b"%d" % number + b"." * dice.choice([0, 20])))
        since, count = count, count + many
        cluster["a"].turn()

        def known(ranges: list[tuple[int, int]]) -> None:
            decided.append(since)
            again.update(number for first, last in ranges for number in range(first, last))

        cluster["a"].forwarded.when_decided(queue, since, count, known)

    for _ in range(steps):
        match dice.choices(["publish", "refuse", "hold", "carry", "cut", "settle"], [10, 4, 4, 10, 4, 2])[0]:
            case "publish":
                publish_some()
            case "refuse":
                leader.refuses_messages, leader.stored_parts = dice.random() < 0.5, dice.choice([0, 0, 1])
            case "hold" if leader.held is None:
                leader.held = []
            case "hold":
                leader.release()
            case "carry":
                cluster.connect()
                for node in cluster.nodes.values():
                    node.turn()
                for link in cluster.links:
                    link.carry(dice.choice([7, 200, None]))
            case "cut" if cluster.links:
                cluster.cut(cluster.links[0])
            case "settle":
                cluster.settle()
    leader.refuses_messages = False
    leader.release()
    for _ in range(2):
        cluster.settle()
        for session in leader.forwarded.serving:
            session.tick(0)
    cluster.settle()
    assert [*_outcomes(client)] == [*range(1, count + 1)]
    assert len(decided) == len(set(decided))
    assert [int(body.rstrip(b".")) for body in _stored(cluster)] == [
        n for n in range(count) if n not in again
    ]


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_what_a_leader_has_no_room_for_comes_again_if_it_is_to_be_taken(seed: int, steps: int) -> None:
    """A lost connection may leave a leader's answer unknown: then what it has comes again, too."""
    dice = random.Random(seed)
    cluster, client = _cluster()
    leader, queue, count = cluster["b"], cluster["a"].remote_queue("q"), 0
    length = 3

    def limit() -> None:
        for each in (leader.broker.queues["/", "q"], queue):
            each.configure(QueueSettings(max_length=length, overflow="reject-publish"))

    limit()
    again: set[int] = set()
    cuts = 0
    for _ in range(steps):
        match dice.choices(["publish", "carry", "cut", "settle", "room"], [10, 10, 3, 2, 3])[0]:
            case "publish":
                client.send(*publish(b"%d" % count))
                count += 1
                cluster["a"].turn()
                cluster["a"].forwarded.when_decided(
                    queue,
                    count - 1,
                    count,
                    lambda ranges: again.update(n for first, last in ranges for n in range(first, last)),
                    until_taken=True,
                )
            case "carry":
                cluster.connect()
                for node in cluster.nodes.values():
                    node.turn()
                for link in cluster.links:
                    link.carry(dice.choice([7, 200, None]))
            case "cut" if cluster.links:
                cluster.cut(cluster.links[0])
                cuts += 1
            case "settle":
                cluster.settle()
            case "room":
                length += 2
                limit()
    cluster.settle()
    stored = {int(body) for body in _stored(cluster)}
    assert {*range(count)} - stored <= again
    assert cuts or not stored & again


def test_a_dead_letter_counts_as_taken_by_a_leader_that_has_it_though_no_other_site_has() -> None:
    cluster, client = _cluster()
    cluster["b"].keeps_alone = True
    client.send(*publish(b"0"))
    cluster["a"].turn()
    queue = cluster["a"].remote_queue("q")
    confirmed: list[bool] = []
    again: list[list[tuple[int, int]]] = []
    cluster["a"].forwarded.when_confirmed(queue, confirmed.append)
    cluster["a"].forwarded.when_decided(queue, 0, 1, again.append)
    cluster["a"].forwarded.when_decided(queue, 0, 1, again.append, until_taken=True)
    cluster.settle()
    assert _outcomes(client) == {1: False}
    assert (confirmed, again) == ([False], [[], []])
    assert len(cluster.links) == 1
    client.send(*publish(b"1"))
    cluster.settle()
    assert _stored(cluster) == [b"0", b"1"]
