"""Simulated publishers: fast at first, slower once a run has many messages; nothing is committed after the end."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest
from pamqp import commands

from leveret.testing.applications.run_books import RunBooks
from leveret.testing.simulation.applications.client import SimulatedClient
from leveret.testing.simulation.applications.publishers import (
    FAST_COPIES,
    SLOWER,
    PublishingPace,
    SimulatedTransactionalPublisher,
)
from leveret.testing.simulation.applications.users import SimulatedUsers
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.network import SimulatedNetwork


@pytest.mark.parametrize("pace", [PublishingPace(0.02), PublishingPace(0.005, 30, 5.0)])
def test_publishers_of_a_run_with_many_messages_make_longer_pauses(pace: PublishingPace) -> None:
    first = [pace.pause_s(chance, FAST_COPIES) for chance in map(Random, range(50))]
    later = [pace.pause_s(chance, FAST_COPIES + 1) for chance in map(Random, range(50))]
    assert later == pytest.approx([SLOWER * each for each in first])


def test_a_run_may_have_another_number_of_copies_after_which_publishers_are_slower() -> None:
    pace = PublishingPace(0.02, fast_copies=50)
    assert pace.pause_s(Random(1), 51) == pytest.approx(SLOWER * pace.pause_s(Random(1), 50))
    network = SimulatedNetwork(VirtualLoop(Random(1)), Random(1))
    books = RunBooks()
    users = SimulatedUsers(network, (), (), books, 1, fast_copies=50)
    assert users.publisher(("q",), PublishingPace(0.02)).pace.fast_copies == 50
    assert users.owner("q", 1.0).pace.fast_copies == 50


class OpenClient:
    """A connection that answers at once, and notes what it was asked."""

    is_closed = False

    def __init__(self) -> None:
        self.called: list[type] = []

    async def call(self, method: Any) -> None:
        self.called.append(type(method))

    def publish(self, *_given: object, **_named: object) -> None:
        pass


async def test_a_transaction_that_the_end_meets_in_a_pause_is_not_committed() -> None:
    """The count of a run began ten seconds after the end, and took messages before they were committed."""
    network, books, client = SimulatedNetwork(VirtualLoop(Random(1)), Random(1)), RunBooks(), OpenClient()
    users = SimulatedUsers(network, (), (), books, 1)
    publisher = users.publisher(("q",), PublishingPace(0.001), in_transactions=True)
    assert isinstance(publisher, SimulatedTransactionalPublisher)
    publisher.on_publish = lambda: setattr(publisher, "is_stopping", True)
    await publisher.work(cast("SimulatedClient", client))
    assert client.called == [commands.Tx.Select]
    [message] = books.messages.values()
    assert message.is_withheld
    assert not message.is_confirmed
