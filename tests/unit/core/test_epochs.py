"""Epochs of queues."""

from __future__ import annotations

from leveret.core.epochs import Epochs
from leveret.model.definitions import Queue


def test_durable_and_transient_queues_of_a_node_alone_are_counted_apart() -> None:
    """The logs of transient ones are this node's alone, and go with it."""
    epochs = Epochs()
    epochs.last = 7
    assert epochs.stamp(Queue(name="a", vhost="/", durable=True)).epoch == 8
    assert epochs.stamp(Queue(name="b", vhost="/", durable=False)).epoch == 1
    assert epochs.stamp(Queue(name="c", vhost="/", durable=True)).epoch == 9


def test_in_a_cluster_no_two_queues_have_one_epoch() -> None:
    """Each node knows those of all others."""
    epochs = Epochs()
    epochs.is_shared = True
    assert epochs.stamp(Queue(name="a", vhost="/", durable=False)).epoch == 1
    assert epochs.stamp(Queue(name="b", vhost="/", durable=True)).epoch == 2


def test_an_epoch_that_is_given_is_kept_and_no_later_one_is_below_it() -> None:
    """As it comes from the log, or from another node."""
    epochs = Epochs()
    given = Queue(name="a", vhost="/", durable=True, epoch=40)
    assert epochs.stamp(given) is given
    assert epochs.stamp(Queue(name="b", vhost="/", durable=True)).epoch == 41
