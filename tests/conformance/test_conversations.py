"""Random conversations show the same on both brokers; `python -m tests.conformance.conversations` has more of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import pytest

from leveret.testing.servers.rabbitmq import available
from tests.conformance.brokers import LEVERET, RABBITMQ, running
from tests.conformance.conversations.play import Stage, staged
from tests.conformance.conversations.report import Plan, differences_of
from tests.conformance.conversations.shrinking import shortest

COUNT: Final = 50


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    reason = available()
    if reason is not None:
        pytest.skip(reason)
    with running(RABBITMQ) as rabbitmq, running(LEVERET) as leveret, staged(rabbitmq, leveret) as both:
        yield both


@pytest.mark.filterwarnings("ignore:This command is deprecated")  # basic.recover-async
@pytest.mark.oracle
@pytest.mark.rabbitmq
@pytest.mark.xdist_group("rabbitmq")
@pytest.mark.parametrize("plan", [Plan(), Plan(is_http=True)], ids=["amqp", "http"])
def test_both_brokers_show_the_same_in_random_conversations(stage: Stage, plan: Plan) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    found = [each for one in range(seed, seed + COUNT) for each in differences_of(stage, one, plan)]
    assert not found, "\n".join(found)


def test_a_seed_is_a_conversation() -> None:
    for plan in (Plan(), Plan(is_http=True)):
        assert plan.steps(7) == plan.steps(7)
        assert plan.steps(7) != plan.steps(8)


def test_of_a_conversation_only_the_steps_are_left_that_make_the_difference() -> None:
    assert shortest(range(100), lambda numbers: {3, 50, 99} <= set(numbers)) == [3, 50, 99]
