"""Recovered messages for queues that another node leads: in order, once, and from the recoverer of the vhost only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.broker.broker import Broker
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.model.definitions import Queue
from leveret.model.errors import LeveretError, PreconditionFailed, StorageError
from leveret.runtime.clients.recovery_forwarding import ForwardingIngest, recover_here
from leveret.runtime.clients.recovery_ingest import RecoveryIngest
from leveret.wire.stream.publish import MessageRun

KEY = ("v", "q")
RUNS = [MessageRun.of(1, [b"a", b"b"]), MessageRun.of(3, [b"c"])]


class FakeIngest:
    """A queue that this node leads; `fails` is what its disk says."""

    def __init__(self, queues: dict[tuple[str, str], Any]) -> None:
        self.taken: list[int] = []
        self.fails: LeveretError | None = None
        self._queues = queues

    def check(self) -> None:
        """It would last."""

    def last_sequence(self, reference: str) -> int:
        return self.taken[-1] if self.taken else 0

    def append(
        self,
        reference: str,
        runs: list[MessageRun],
        done: Callable[[], None],
        failed: Callable[[LeveretError], None],
    ) -> None:
        if self.fails is not None:
            raise self.fails
        self.taken += [run.last for run in runs]
        asyncio.get_running_loop().call_soon(done)

    def make_for(self, runs: list[MessageRun]) -> None:
        self._queues[KEY] = led_by("n2")

    async def all_durable(self) -> None:
        """All nodes know it."""


class FakePort:
    """The other nodes; `owner` is who recovers the vhost, and in which term."""

    name = "n1"

    def __init__(self) -> None:
        self.owner = ("n1", 4)
        self.asked: list[tuple[str, list[int]]] = []
        self.changes = 0
        self.leader = FakeIngest({})

    def check_recoverer(self, vhost: str, node: str, term: int) -> None:
        if (node, term) != self.owner:
            raise PreconditionFailed(f"recovered by {self.owner}")

    def term_of(self, vhost: str) -> int:
        return self.owner[1]

    async def ask(self, node: str, about: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((node, [first for first, _, _ in about.get("runs", [])]))
        return await recover_here(cast(RecoveryIngest, self.leader), self, about)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        self.changes += 1
        yield


def led_by(node: str) -> RemoteQueue:
    return RemoteQueue(Queue(name="q", vhost="v"), node)


class Story:
    """A queue of a cluster, and what became of what was published to it."""

    def __init__(self, queue: RemoteQueue | None) -> None:
        self.queues: dict[tuple[str, str], Any] = {} if queue is None else {KEY: queue}
        self.port = FakePort()
        broker = SimpleNamespace(queues=self.queues, queue=lambda vhost, name: self.queues[vhost, name])
        own = FakeIngest(self.queues)
        self.ingest = ForwardingIngest(cast(Broker, broker), KEY, cast(RecoveryIngest, own), self.port)
        self.done: list[int] = []
        self.failed: list[str] = []

    async def publish(self) -> None:
        for number, run in enumerate(RUNS):
            self.ingest.append(
                "recovery.1",
                [run],
                lambda number=number: self.done.append(number),  # type: ignore[misc]
                lambda error: self.failed.append(str(error)),
            )
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(self.done) + len(self.failed) == len(RUNS)

    async def sequence(self) -> int | str:
        told: asyncio.Future[int | str] = asyncio.get_running_loop().create_future()
        self.ingest.ask_sequence("recovery.1", told.set_result, lambda error: told.set_result(str(error)))
        return await told


async def test_messages_go_to_the_leader_in_order_and_it_tells_the_last_one() -> None:
    story = Story(led_by("n2"))
    assert await story.sequence() == 0
    await story.publish()
    assert story.port.asked[1:] == [("n2", [1]), ("n2", [3])]
    assert (story.done, story.failed) == ([0, 1], [])
    assert await story.sequence() == 3


async def test_a_missing_queue_is_made_once_before_its_first_messages() -> None:
    story = Story(None)
    assert await story.sequence() == 0
    await story.publish()
    assert (story.port.changes, story.port.asked) == (1, [("n2", [1]), ("n2", [3])])
    assert story.done == [0, 1]


@pytest.mark.parametrize("owner", [("n3", 5), ("n1", 5)], ids=["another node", "a later term"])
async def test_a_leader_takes_nothing_from_a_previous_owner(owner: tuple[str, int]) -> None:
    """It was paused, and does not know yet that another node has the vhost; or that it has it anew."""
    story = Story(led_by("n2"))
    story.port.owner = owner
    await story.publish()
    assert story.failed == [f"recovered by {owner}"] * 2
    assert story.port.leader.taken == []


async def test_what_the_leader_refuses_is_told_as_not_stored() -> None:
    story = Story(led_by("n2"))
    story.port.leader.fails = StorageError("the disk is full")
    await story.publish()
    assert (story.done, story.failed) == ([], ["the disk is full"] * 2)


async def test_a_queue_without_a_leader_is_told_as_rabbitmq_does() -> None:
    queue = led_by("n2")
    queue.is_down = True
    story = Story(queue)
    assert "home node 'n2' of durable queue 'q'" in str(await story.sequence())
    await story.publish()
    assert len(story.failed) == len(RUNS)


async def test_an_answer_that_nobody_expects_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(led_by("n2"))

    async def ask(node: str, about: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("a later version's answer")

    story.port.ask = ask  # type: ignore[method-assign]
    assert "a later version's answer" in str(await story.sequence())
    await story.publish()
    assert len(story.failed) == len(RUNS)
    assert "recovered_messages_not_passed_on" in caplog.text
