"""Simulated consumers: a settled message that arrives again is a fault if its connection is still open."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from pamqp import commands

from leveret.testing.applications.run_books import ResurrectionFault, RunBooks
from leveret.testing.simulation.applications.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.applications.users import SimulatedUsers
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.network import SimulatedNetwork


class LateClient:
    """A connection that delivers a settled message once it consumes; then it answers, or it does not."""

    is_closed = False

    def __init__(self, delivery: ClientDelivery, *, is_open: bool) -> None:
        self.on_delivery: Callable[[ClientDelivery], None] = lambda _: None
        self.delivery = delivery
        self.is_open = is_open

    async def call(self, method: Any) -> None:
        if isinstance(method, commands.Basic.Consume):
            self.on_delivery(self.delivery)
        elif isinstance(method, commands.Tx.Commit) and not self.is_open:
            raise ClientClosed("the leader had closed it")


@pytest.mark.parametrize(("is_open", "ends"), [(True, ResurrectionFault), (False, ClientClosed)])
async def test_a_settled_message_is_resurrected_if_its_connection_answers_afterwards(
    is_open: bool, ends: type[Exception]
) -> None:
    network, books = SimulatedNetwork(VirtualLoop(Random(1)), Random(1)), RunBooks()
    [message] = books.published(("q",), "p")
    books.settle(message)
    consumer = SimulatedUsers(network, (), (), books, 1).consumer("q")
    delivery = ClientDelivery(1, str(message.number), message.body, True, message.properties)
    client = LateClient(delivery, is_open=is_open)
    with pytest.raises(ends):
        await consumer.work(cast("SimulatedClient", client))
