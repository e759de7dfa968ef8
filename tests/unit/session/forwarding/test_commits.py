"""Commits whose publishes other nodes have to keep: they settle once these have them, or not at all."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests.unit.session.amqp091.fakes import publish
from tests.unit.session.forwarding.sites import Client, Cluster

B = commands.Basic
COUNTS = (1, 60)
"""Of messages that a transaction acknowledges: in one step, and in several."""


def committing(count: int) -> tuple[Cluster, Client]:
    """A client of `a` that moves so many messages from a queue there to one of `b`, which has not answered yet.

    Every other message, so each acknowledgement is a run of its own.
    """
    cluster = Cluster("a", "b", "c")
    cluster.declare("from", "a")
    cluster.declare("to", "b")
    client = Client(cluster["a"])
    for number in range(2 * count):
        client.send(*publish(b"%d" % number, "from"))
    client.send(commands.Tx.Select())
    client.send(*(B.Get(queue="from") for _ in range(2 * count)))
    cluster.settle()
    client.send(*(B.Ack(2 * number + 1) for number in range(count)), *publish(b"moved", "to"))
    client.send(commands.Tx.Commit())
    for _ in range(20):
        cluster["a"].turn()
    return cluster, client


def left(cluster: Cluster) -> int:
    return cluster["a"].queue("from").message_count


@pytest.mark.parametrize("count", COUNTS)
def test_a_commit_settles_once_the_other_node_has_what_it_publishes(count: int) -> None:
    """If this node is lost in between, what was moved is in one of the queues, or in both."""
    cluster, client = committing(count)
    assert left(cluster) == 2 * count
    assert not client.told(commands.Tx.CommitOk)
    cluster.settle()
    assert cluster["b"].queue("to").message_count == 1
    assert left(cluster) == count
    assert len(client.told(commands.Tx.CommitOk)) == 1
    client.send(commands.Channel.Close(200, "", 0, 0))
    cluster.settle()
    assert cluster["a"].queue("from").ready_count == count


@pytest.mark.parametrize("count", COUNTS)
def test_a_commit_whose_publishes_the_other_node_refuses_settles_nothing(count: int) -> None:
    cluster, client = committing(count)
    cluster["b"].refuses_messages = True
    cluster.settle()
    assert len(client.told(commands.Channel.Close)) == 1
    assert not client.told(commands.Tx.CommitOk)
    assert cluster["a"].queue("from").ready_count == 2 * count


@pytest.mark.parametrize("count", COUNTS)
def test_a_channel_that_ends_before_its_commit_settles_leaves_all_it_had_in_the_queue(count: int) -> None:
    cluster, client = committing(count)
    client.send(commands.Channel.Close(200, "", 0, 0))
    cluster.settle()
    assert cluster["b"].queue("to").message_count == 1
    assert cluster["a"].queue("from").ready_count == 2 * count
    assert not client.told(commands.Tx.CommitOk)


@pytest.mark.parametrize("count", COUNTS)
def test_a_commit_whose_deliveries_moved_before_it_settles_says_what_was_done(count: int) -> None:
    cluster, client = committing(count)
    cluster.move("from", "c")
    cluster.settle()
    [close] = client.told(commands.Channel.Close)
    assert close.reply_code == 406
    assert "delivers it again: what the transaction published was published" in close.reply_text
    assert cluster["b"].queue("to").message_count == 1
    assert cluster["c"].queue("from").message_count == 2 * count


def test_a_rollback_undoes_no_commit_that_has_not_settled_yet() -> None:
    cluster, client = committing(1)
    client.send(B.Ack(2), commands.Tx.Rollback())
    cluster.settle()
    assert left(cluster) == 1
    assert len(client.told(commands.Tx.CommitOk)) == len(client.told(commands.Tx.RollbackOk)) == 1
