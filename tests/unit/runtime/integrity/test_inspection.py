"""runtime.integrity.inspection: when scrubs happen, what is told of them, and what is answered to the other side."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.model.errors import LeveretError, NotFound, PreconditionFailed
from leveret.runtime.integrity import scrubbing
from leveret.runtime.integrity.inspection import RETRY_MS, Inspection
from leveret.testing.network.ports import wait_until
from leveret.wire.chunk import HEADER_BYTES
from tests.unit.runtime.replication.pair import Pair
from tests.unit.storage.logs import scratch
from tests.unit.storage.places import flip

Q = "queues/a"
DAY_MS = 86_400_000
DATA = HEADER_BYTES + 5
_sleep = asyncio.sleep


@pytest.fixture
def pair() -> Iterator[Pair]:
    with scratch() as directory:
        pair = Pair(directory)
        pair.fill(Q)
        yield pair
        pair.close()


class Running:
    """The leader's scrubs in the background, on a clock that sleeping alone moves on."""

    def __init__(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scrubs: list[tuple[int, list[str] | None]] = []
        self.node = pair.leader
        self._monkeypatch = monkeypatch

    def run(self, count: int) -> Inspection:
        """A node that is started now, until it has scrubbed so many times and waits for the next."""
        node = self.node
        node.interval_ms = 7 * DAY_MS
        started = node.inspection = node.inspect()
        self.scrubs = []
        real = started._scrub

        async def scrub(pace: Any, names: Any) -> Any:
            self.scrubs.append((node.now_ms, names))
            return await real(pace, names)

        async def main() -> None:
            enough = asyncio.Event()

            async def sleep(seconds: float) -> None:
                if len(self.scrubs) == count:
                    enough.set()
                    await asyncio.Event().wait()
                node.now_ms += round(seconds * 1000)
                await _sleep(0)

            with self._monkeypatch.context() as patched:
                patched.setattr(started, "_scrub", scrub)
                patched.setattr(asyncio, "sleep", sleep)
                task = asyncio.create_task(started.run())
                await asyncio.wait_for(enough.wait(), 60)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(main())
        return started


@pytest.fixture
def running(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Running:
    return Running(pair, monkeypatch)


# -- in the background ------------------------------------------------------------------------


def test_all_is_scrubbed_an_interval_after_the_first_start_and_again_and_again(running: Running) -> None:
    began_ms = running.node.now_ms
    running.run(3)
    assert running.scrubs == [(began_ms + count * 7 * DAY_MS, None) for count in (1, 2, 3)]


def test_restarts_do_not_put_a_scrub_off(running: Running) -> None:
    node = running.node
    began_ms = node.now_ms
    running.run(1)
    node.now_ms += 3 * DAY_MS
    running.run(1)
    assert running.scrubs == [(began_ms + 14 * DAY_MS, None)]
    node.now_ms += 30 * DAY_MS
    due_ms = node.now_ms
    running.run(1)
    assert running.scrubs == [(due_ms, None)]


def test_a_node_that_never_ran_for_an_interval_is_scrubbed_all_the_same(pair: Pair, running: Running) -> None:
    node = running.node

    async def short_life() -> None:
        task = asyncio.create_task(node.inspect().run())
        await asyncio.to_thread(wait_until, (node.directory / "scrub.json").exists, "its first time", 10)
        task.cancel()

    node.interval_ms = 7 * DAY_MS
    began_ms = node.now_ms
    asyncio.run(short_life())
    node.now_ms += 6 * DAY_MS
    running.run(1)
    assert running.scrubs == [(began_ms + 7 * DAY_MS, None)]


def test_damage_that_is_left_is_tried_again_sooner_and_then_less_often(pair: Pair, running: Running) -> None:
    pair.fill("queues/whole", 3)
    flip(pair.leader.directory / Q, 4, DATA)
    pair.to_follower.is_connected = False
    began_ms = running.node.now_ms + 7 * DAY_MS
    started = running.run(4)
    assert running.scrubs == [
        (began_ms, None),
        (began_ms + RETRY_MS, [Q]),
        (began_ms + 3 * RETRY_MS, [Q]),
        (began_ms + 7 * RETRY_MS, [Q]),
    ]
    status = started.scrub_status()
    assert (status["last_at_ms"], status["chunks"]) == (began_ms, 11 - 1 + 3 * 7)
    assert "the replication link ended" in status["error"]


def test_damage_is_mended_once_the_other_side_is_there(pair: Pair, running: Running) -> None:
    flip(pair.leader.directory / Q, 4, DATA)
    pair.to_follower.is_connected = False
    began_ms = running.node.now_ms + 7 * DAY_MS

    def connect(what: str, about: dict[str, Any]) -> None:
        pair.to_follower.is_connected = len(running.scrubs) == 2

    pair.to_follower.before = connect
    started = running.run(3)
    assert running.scrubs[2] == (began_ms + 7 * DAY_MS, None)
    status = started.scrub_status()
    assert (status["damaged"], status["repaired"], status["error"]) == (2, 1, "")


def test_without_an_interval_nothing_is_scrubbed(pair: Pair) -> None:
    asyncio.run(asyncio.wait_for(pair.leader.inspection.run(), 60))
    assert not (pair.leader.directory / "scrub.json").exists()


def test_a_damaged_file_of_times_stops_nothing(pair: Pair, running: Running) -> None:
    (pair.leader.directory / "scrub.json").write_bytes(b"\0\0")
    began_ms = running.node.now_ms
    running.run(1)
    assert running.scrubs == [(began_ms + 7 * DAY_MS, None)]


def test_a_clock_that_was_ahead_does_not_put_a_scrub_off(running: Running) -> None:
    node = running.node
    node.now_ms += 1000 * DAY_MS
    running.run(1)
    node.now_ms -= 1000 * DAY_MS
    began_ms = node.now_ms
    running.run(1)
    assert running.scrubs == [(began_ms + 7 * DAY_MS, None)]


def test_the_background_waits_for_a_scrub_that_somebody_asked_for(pair: Pair, running: Running) -> None:
    """Its own one begins later; the one that was asked for counts as one."""
    node = running.node
    running.run(1)
    asked_ms = node.now_ms = node.now_ms + 5 * DAY_MS
    asyncio.run(node.inspection.scrub())
    running.run(1)
    assert running.scrubs == [(asked_ms + 7 * DAY_MS, None)]


# -- one at a time ----------------------------------------------------------------------------


class Held:
    """A scrub that has begun and is held at its first read until `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        real = scrubbing.Pace.__call__

        def extent(pace: scrubbing.Pace, octets: int) -> None:
            self.begun.set()
            assert self.go_on.wait(10)
            real(pace, octets)

        monkeypatch.setattr(scrubbing.Pace, "__call__", extent)


async def test_only_one_scrub_goes_on_and_the_status_shows_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    extent = Held(monkeypatch)
    inspected = pair.leader.inspection

    scrub = asyncio.create_task(inspected.scrub())
    assert await asyncio.to_thread(extent.begun.wait, 10)
    assert inspected.scrub_status()["running"]
    with pytest.raises(PreconditionFailed, match="going on already"):
        await inspected.scrub()
    extent.go_on.set()
    assert (await scrub)["chunks"] == 8
    assert not inspected.scrub_status()["running"]
    assert (await inspected.scrub())["chunks"] == 8
    assert inspected.scrub_status()["chunks"] == 16
    remembered = json.loads((pair.leader.directory / "scrub.json").read_bytes())
    assert remembered["last_at_ms"] == pair.leader.now_ms


async def test_a_node_that_stops_does_not_wait_for_a_scrub(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    extent = Held(monkeypatch)
    inspected = pair.leader.inspection

    scrub = asyncio.create_task(inspected.scrub())
    assert await asyncio.to_thread(extent.begun.wait, 10)
    inspected.stop()
    extent.go_on.set()
    with pytest.raises(LeveretError, match="the node stops"):
        await asyncio.wait_for(scrub, 60)
    with pytest.raises(LeveretError, match="the node stops"):
        await inspected.scrub()


async def test_a_background_scrub_that_is_cancelled_leaves_no_thread_that_reads_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    extent = Held(monkeypatch)
    pair.leader.interval_ms = 1
    inspected = pair.leader.inspection = pair.leader.inspect()

    run = asyncio.create_task(inspected.run())
    await asyncio.sleep(0.01)
    pair.leader.now_ms += 1
    assert await asyncio.to_thread(extent.begun.wait, 10)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    extent.go_on.set()
    inspected._scrubber._executor.shutdown(wait=True)
    assert inspected.scrub_status()["chunks"] == 0


# -- answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "about"),
    [
        ("nonsense", {}),
        ("bounds", {"path": 5}),
        ("digest", {}),
        ("digest", {"path": Q, "from": "a", "to": 4}),
        ("digest", {"path": "../one", "from": 0, "to": 4}),
        ("digest", {"path": "/etc", "from": 0, "to": 4}),
        ("chunk", {"path": Q}),
        ("chunk", {"path": "queues/../../x", "offset": 0, "to": 4}),
        ("bounds", {"path": ".replication_secret"}),
        ("bounds", {"path": "divergent/x"}),
    ],
)
def test_a_question_that_makes_no_sense_is_an_error_and_no_crash(
    pair: Pair, what: str, about: dict[str, Any]
) -> None:
    with pytest.raises(LeveretError):
        pair.leader.inspection.answer(what, about)


def test_a_chunk_is_only_given_whole(pair: Pair) -> None:
    answer = pair.leader.inspection.answer
    whole = answer("chunk", {"path": Q, "offset": 4, "to": 8})
    last = answer("chunk", {"path": Q, "offset": 6, "to": 8})
    first_bytes = len(last["octets"]) + 10 + len(Q)
    assert (len(whole["octets"]), whole["next_offset"]) == (first_bytes + len(last["octets"]), 8)
    assert "gone" in answer("chunk", {"path": Q, "offset": 5, "to": 8})
    assert "gone" in answer("chunk", {"path": "queues/none", "offset": 4, "to": 8})
    flip(pair.leader.directory / Q, 4, first_bytes + DATA)
    assert answer("chunk", {"path": Q, "offset": 4, "to": 8})["next_offset"] == 6
    assert "damage" in answer("chunk", {"path": Q, "offset": 6, "to": 8})


def test_a_log_that_begins_later_is_gone_for_who_asks_for_what_was_before(pair: Pair) -> None:
    pair.leader.log(Q).drop_before(8)
    answer = pair.leader.inspection.answer
    assert "gone" in answer("digest", {"path": Q, "from": 4, "to": 12})
    assert "gone" in answer("chunk", {"path": Q, "offset": 4, "to": 12})
    assert answer("digest", {"path": Q, "from": 8, "to": 12})["chunks"] == 2


def test_without_reports_nothing_is_divergent(pair: Pair, tmp_path: Path) -> None:
    assert pair.leader.inspection.divergent() == []
    assert list(pair.leader.inspection.divergent_messages(None)) == []
    with pytest.raises(NotFound):
        list(pair.leader.inspection.divergent_messages("20260101T000000-e1"))
