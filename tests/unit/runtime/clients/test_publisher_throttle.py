"""How long a publisher waits whose consumers are far behind."""

from __future__ import annotations

from leveret.runtime.clients.publisher_throttle import (
    IDLE_LOOKS,
    LOOK_S,
    SLOW_S,
    WAIT_S_MAX,
    PublisherThrottle,
)

BEGAN_S = 100.0
DELIVERED = 5_000


def looks(published: int, delivered_each: list[int]) -> int:
    """How many looks a throttle takes in which so many messages are delivered before each of them."""
    throttle, delivered = PublisherThrottle(published, DELIVERED, BEGAN_S), DELIVERED
    for look, count in enumerate(delivered_each, 1):
        delivered += count
        if throttle.is_over(delivered, BEGAN_S + look * LOOK_S):
            return look
    raise AssertionError("it does not end")


def test_a_publisher_waits_until_as_many_are_delivered_as_it_published() -> None:
    assert looks(450, [150] * 9) == 3
    assert looks(450, [450]) == 1


def test_a_publisher_does_not_wait_for_consumers_that_take_nothing() -> None:
    assert looks(450, [0] * 9) == IDLE_LOOKS
    assert looks(450, [100, 0, 100, 0, 0]) == 3 + IDLE_LOOKS


def test_slow_consumers_do_not_hold_a_publisher_to_their_rate() -> None:
    assert looks(450, [1] * 99) == round(SLOW_S / LOOK_S)
    assert looks(450, [22] * 99) == round(SLOW_S / LOOK_S)


def test_consumers_that_are_nearly_as_fast_are_waited_for() -> None:
    assert looks(450, [75] * 99) == 6
    assert looks(450, [30] * 99) == round(WAIT_S_MAX / LOOK_S)
