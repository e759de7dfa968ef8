"""runtime.cluster.leader_offsets: offsets go to the leaders of their streams, and publishes behind them wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream
from leveret.model import definitions as d
from leveret.model.errors import LedElsewhere, LeveretError, StorageError
from leveret.runtime.cluster import leader_offsets
from leveret.runtime.cluster.leader_offsets import LeaderOffsets
from leveret.testing.network.waiting import until

KEY = ("/", "s")
STREAM = (*KEY, 0)
DEFINITION = d.Queue(name="s", vhost="/")
Ask = Callable[[str, str, Any], Awaitable[Any]]


class Logs:
    """The engine and the store of streams of a node: the disk and the replicas have what they are told to have."""

    def __init__(self, queue: Queue) -> None:
        self.broker = SimpleNamespace(queues={KEY: queue}, dirty={})
        self.calls: list[Callable[[], None]] = []
        self.refusal: StorageError | None = None
        self.appended: dict[bytes, int] = {}

    def offsets(self, ask: Ask) -> LeaderOffsets:
        engine = SimpleNamespace(
            touch=lambda: None, append_now=lambda stream: None, when_confirmable=self.when_confirmable
        )
        log_store = SimpleNamespace(streams=SimpleNamespace(append_settlements=self.append))
        return LeaderOffsets(
            ask,
            SimpleNamespace(broker=self.broker, engine=engine, log_store=log_store),  # type: ignore[arg-type]
        )

    def append(self, stream: Stream) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.appended |= stream.unlogged_offsets

    def when_confirmable(self, stream: Stream, then: Callable[[], None]) -> None:
        self.calls.append(then)


async def nobody(node: str, what: str, about: Any) -> Any:
    raise LeveretError("no node is asked")


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def stream() -> Stream:
    return Stream(DEFINITION, lambda queue, offset: [])


async def play(seed: int) -> None:
    """Store and publish in any order at a leader that answers late, or not: no publish overtakes an offset."""
    chance = random.Random(seed)
    stored: dict[str, int] = {}
    asked: list[asyncio.Future[None]] = []

    async def ask(node: str, what: str, about: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        asked.append(answer)
        await answer
        stored.update(about["offsets"])

    offsets = Logs(RemoteQueue(DEFINITION, "n2")).offsets(ask)
    newest: dict[str, int] = {}
    published: list[int] = []

    def publish(number: int) -> None:
        due = dict(newest)

        def pass_on() -> None:
            published.append(number)
            assert {name: stored.get(name, -1) >= offset for name, offset in due.items()} == dict.fromkeys(
                due, True
            )

        offsets.once_stored(STREAM, pass_on)

    count = 0
    for offset in range(200):
        match chance.choice(["store", "publish", "publish", "answer", "fail", "turn"]):
            case "store":
                name = chance.choice("ab")
                newest[name] = offset
                offsets.store(STREAM, name, offset)
            case "publish":
                publish(count)
                count += 1
            case "answer" if asked:
                asked.pop().set_result(None)
            case "fail" if asked:
                asked.pop().set_exception(LeveretError("the leader is gone"))
            case _:
                await settle()
    while len(published) < count:
        await settle()
        if asked:
            asked.pop().set_result(None)
    assert published == list(range(count))
    offsets.stop()


@pytest.mark.parametrize("seed", range(20))
async def test_a_publish_waits_for_the_offsets_before_it_and_for_none_behind_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_offsets, "_ASK_AGAIN_S", 0)
    await play(seed)


async def test_offsets_that_keep_coming_hold_up_no_publish() -> None:
    answers: list[asyncio.Future[None]] = []

    async def ask(node: str, what: str, about: Any) -> Any:
        answers.append(asyncio.get_running_loop().create_future())
        await answers[-1]

    offsets = Logs(RemoteQueue(DEFINITION, "n2")).offsets(ask)
    done: list[int] = []
    offsets.store(STREAM, "r", 1)
    await settle()
    offsets.once_stored(STREAM, lambda: done.append(1))
    offsets.store(STREAM, "r", 2)
    answers[0].set_result(None)
    await settle()
    assert done == [1]
    assert len(answers) == 2
    offsets.stop()


async def test_clients_that_ask_without_end_get_an_error_and_fill_no_memory() -> None:
    async def ask(node: str, what: str, about: Any) -> Any:
        await asyncio.Event().wait()

    offsets = Logs(RemoteQueue(DEFINITION, "n2")).offsets(ask)
    found: list[Any] = []
    for _ in range(leader_offsets._ASKED_MAX + 2):
        offsets.ask(STREAM, "r", found.append)
    offsets.ask_sequence(STREAM, "r", found.append)
    assert [type(each) for each in found] == [LeveretError] * 3
    offsets.stop()


async def test_a_stream_that_is_made_anew_gets_no_offset_of_the_one_before() -> None:
    """Its readers would begin behind messages that they have never seen."""

    asked: list[Any] = []

    async def ask(node: str, what: str, about: Any) -> Any:
        asked.append(about)
        raise LeveretError("it has no leader now")

    logs = Logs(RemoteQueue(DEFINITION, "n2"))
    offsets = logs.offsets(ask)
    offsets.store(STREAM, "r", 1_000_000)
    await settle()
    logs.broker.queues[KEY] = RemoteQueue(msgspec.structs.replace(DEFINITION, epoch=1), "n2")
    offsets.store((*KEY, 1), "r", 3)
    await until(lambda: len(asked) >= 3)
    assert [(each["epoch"], each["offsets"]) for each in asked[:3]] == [
        (0, {"r": 1_000_000}),
        (1, {"r": 3}),
        (1, {"r": 3}),
    ]
    offsets.stop()
    leader = Logs(Stream(msgspec.structs.replace(DEFINITION, epoch=1), lambda queue, offset: []))
    with pytest.raises(LedElsewhere, match="made anew"):
        leader.offsets(nobody).store_here(KEY, 0, {"r": 1_000_000})


async def test_a_stream_that_is_deleted_holds_nothing_up() -> None:
    logs = Logs(RemoteQueue(DEFINITION, "n2"))
    offsets = logs.offsets(nobody)
    done: list[int] = []
    offsets.store(STREAM, "r", 1)
    offsets.once_stored(STREAM, lambda: done.append(1))
    logs.broker.queues.clear()
    await settle()
    assert done == [1]


async def test_a_leader_answers_when_a_confirm_could_go_out() -> None:
    logs = Logs(stream())
    answer = asyncio.create_task(logs.offsets(nobody).store_safely(KEY, 0, {"r": 7}))
    await settle()
    assert logs.appended == {b"r": 7}
    assert not answer.done()
    [safe] = logs.calls
    safe()
    await answer


@pytest.mark.parametrize("queue", [RemoteQueue(DEFINITION, "n2"), stream()])
async def test_a_leader_that_is_replaced_says_so(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_offsets, "_ASK_AGAIN_S", 0.001)

    logs = Logs(stream())
    answer = asyncio.create_task(logs.offsets(nobody).store_safely(KEY, 0, {"r": 7}))
    await settle()
    logs.broker.queues[KEY] = queue
    with pytest.raises(LedElsewhere):
        await answer


async def test_offsets_that_are_not_safe_in_time_or_refused_by_the_disk_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_offsets, "_ASK_AGAIN_S", 0.001)
    monkeypatch.setattr(leader_offsets, "_ASKED_S", 0.005)
    logs = Logs(stream())
    with pytest.raises(LeveretError, match="not safe in time"):
        await logs.offsets(nobody).store_safely(KEY, 0, {"r": 7})
    logs.refusal = StorageError("no space")
    with pytest.raises(StorageError):
        await logs.offsets(nobody).store_safely(KEY, 0, {"r": 8})
