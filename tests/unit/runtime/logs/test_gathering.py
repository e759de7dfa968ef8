"""How long a flush waits for more publishes."""

from __future__ import annotations

import pytest

from leveret.runtime.logs.gathering import MESSAGES_EACH, WAIT_S_MAX, Gathering

BEGAN_S = 100.0
QUEUES = 20


def gathering(count: int) -> Gathering:
    found = Gathering()
    found.begin(BEGAN_S)
    found.add(count)
    return found


@pytest.mark.parametrize(
    ("count", "queues", "waits"),
    [
        (0, QUEUES, False),
        (1, QUEUES, False),
        (2, QUEUES, True),
        (QUEUES * MESSAGES_EACH - 1, QUEUES, True),
        (QUEUES * MESSAGES_EACH, QUEUES, False),
        (2, 1, False),
    ],
)
def test_a_flush_waits_until_its_queues_have_messages_enough(count: int, queues: int, waits: bool) -> None:
    assert gathering(count).goes_on(queues, BEGAN_S) is waits


def test_a_flush_waits_as_long_as_each_turn_brings_publishes() -> None:
    found = gathering(2)
    assert found.goes_on(QUEUES, BEGAN_S)
    found.add(1)
    assert found.goes_on(QUEUES, BEGAN_S)
    assert not found.goes_on(QUEUES, BEGAN_S)


@pytest.mark.parametrize(("waited_s", "waits"), [(0.9 * WAIT_S_MAX, True), (WAIT_S_MAX, False)])
def test_a_flush_waits_no_longer_than_a_limit(waited_s: float, waits: bool) -> None:
    assert gathering(2).goes_on(QUEUES, BEGAN_S + waited_s) is waits


def test_each_flush_begins_anew() -> None:
    found = gathering(QUEUES * MESSAGES_EACH)
    found.begin(BEGAN_S)
    assert not found.goes_on(QUEUES, BEGAN_S)
    found.add(2)
    assert found.goes_on(QUEUES, BEGAN_S)
