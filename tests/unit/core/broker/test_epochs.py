"""Epochs of queues."""

from __future__ import annotations

from leveret.core.broker.epochs import Epochs
from leveret.model.definitions import Queue


def test_no_two_queues_have_one_epoch() -> None:
    """Also what is transient may be collected for a standby, which knows queues by name and epoch."""
    epochs = Epochs()
    epochs.last = 7
    assert epochs.stamp(Queue(name="a", vhost="/", durable=True)).epoch == 8
    assert epochs.stamp(Queue(name="b", vhost="/", durable=False)).epoch == 9
    assert epochs.stamp(Queue(name="c", vhost="/", durable=True)).epoch == 10


def test_epochs_are_reserved_before_they_are_given() -> None:
    asked: list[int] = []

    def reserve(last: int) -> int:
        asked.append(last)
        return last + 3

    epochs = Epochs(reserve)
    given = [epochs.stamp(Queue(name="a", vhost="/", durable=False)).epoch for _ in range(7)]
    assert given == [1, 2, 3, 4, 5, 6, 7]
    assert asked == [0, 3, 6]
    epochs.stamp(Queue(name="b", vhost="/", durable=True, epoch=40))
    assert epochs.stamp(Queue(name="c", vhost="/", durable=True)).epoch == 41
    assert asked == [0, 3, 6, 40]


def test_an_epoch_that_is_given_is_kept_and_no_later_one_is_below_it() -> None:
    """As it comes from the log, or from another node."""
    epochs = Epochs()
    given = Queue(name="a", vhost="/", durable=True, epoch=40)
    assert epochs.stamp(given) is given
    assert epochs.stamp(Queue(name="b", vhost="/", durable=True)).epoch == 41
