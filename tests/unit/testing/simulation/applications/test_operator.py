"""The operator of a simulated world: commands at nodes, and the messages left in queues."""

from __future__ import annotations

import warnings
from random import Random
from types import SimpleNamespace
from typing import Any

from pamqp import commands

from leveret.testing.applications.run_books import RunBooks
from leveret.testing.simulation.applications.application import drain
from leveret.testing.simulation.applications.client import ClientDelivery
from leveret.testing.simulation.applications.operator import SimulatedOperator
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.process import SimulatedProcess


def test_a_command_that_never_begins_leaves_no_coroutine_without_an_owner() -> None:
    """A node was killed in the turn in which a policy was set at it, and Python warned when the run was cleared."""
    loop = VirtualLoop(Random(1))
    network = SimulatedNetwork(loop, Random(1))
    operator = SimulatedOperator([], network, RunBooks(), Random(1))
    process = SimulatedProcess("n1")
    node: Any = SimpleNamespace(process=process)
    begun: list[int] = []

    async def command() -> None:
        begun.append(1)

    async def play() -> None:
        operator.at(node, command)
        process.kill()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.run_until_complete(play())
        process.discard()
    assert begun == []


async def test_a_queue_is_drained_by_several_requests_at_once_and_each_message_is_taken_once() -> None:
    class Client:
        def __init__(self) -> None:
            self.left = [ClientDelivery(tag, str(tag), b"", False, {}) for tag in range(1, 48)]
            self.acks: list[int] = []
            self.gets = 0

        async def call(self, method: Any) -> Any:
            self.gets += 1
            return self.left.pop(0) if self.left else commands.Basic.GetEmpty()

        def send(self, method: Any) -> None:
            self.acks.append(method.delivery_tag)

    client: Any = Client()
    noted: list[int] = []
    await drain(client, "q", lambda got: noted.append(got.tag), at_once=20)
    assert noted == client.acks == list(range(1, 48))
    assert client.gets == 60
    few: Any = Client()
    await drain(few, "q", lambda got: None, count_max=25, at_once=20)
    assert few.acks == list(range(1, 26))
