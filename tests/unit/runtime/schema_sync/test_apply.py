"""The history of applied deltas: kept in order, whatever becomes of those who keep it."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from leveret.core.broker.broker import Broker
from leveret.core.schema.delta import Delta
from leveret.core.schema.steps import SchemaStep
from leveret.model.definitions import Put, Queue, Vhost
from leveret.runtime.schema_sync.apply import CHANGES_PER_SLICE, AppliedDelta, SyncHistory, apply
from leveret.storage.state_file import StateFile


def applied(stamp: int) -> AppliedDelta:
    return AppliedDelta(
        stamp=stamp,
        upstream="a:5672",
        upstream_cluster="eu.1",
        duration_ms=1,
        sent_bytes=1,
        received_bytes=1,
        puts=1,
        deletes=0,
        conflicts=0,
        refused=0,
        changes=["put queues //q"],
    )


async def test_a_save_that_was_cancelled_and_the_next_one_do_not_meet_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.2)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)

    history = SyncHistory(StateFile(tmp_path / "history.json"))
    first = asyncio.create_task(history.add(applied(1)))
    await asyncio.sleep(0.05)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    await history.add(applied(2))
    assert [row["stamp"] for row in SyncHistory(StateFile(tmp_path / "history.json")).rows()] == [2, 1]


def test_a_stream_that_has_fewer_copies_here_than_it_asks_for_is_taken_and_noted() -> None:
    broker = Broker(lambda queue, offset: [])
    broker.apply(Put(Vhost(name="v")))
    broker.shared = []
    arguments = {"x-queue-type": "stream", "x-initial-cluster-size": 3}
    stream = Queue(name="s", vhost="v", arguments=arguments)
    outcome = asyncio.run(apply(broker, Delta([SchemaStep(Put(stream))], [], []), (), lambda: None))
    assert (outcome.puts, outcome.refused, list(broker.queues)) == (1, [], [("v", "s")])
    [less] = broker.fewer_copies
    assert "stream 's' in vhost 'v' is to have 3 copies (initial-cluster-size), and there is 1 node" in less


async def test_no_flush_has_more_changes_of_a_delta_than_a_slice() -> None:
    broker, flushed = Broker(lambda queue, offset: []), list[int]()

    def flush() -> None:
        flushed.append(len(broker.changes))
        broker.changes.clear()

    steps = [SchemaStep(Put(Vhost(name=f"v{number}"))) for number in range(10 * CHANGES_PER_SLICE + 1)]
    broker.changes.clear()
    outcome = await apply(broker, Delta(steps, [], []), (), flush)
    assert outcome.puts == len(steps)
    assert flushed
    per_step = max(1, (sum(flushed) + len(broker.changes)) // len(steps))
    assert max(*flushed, len(broker.changes)) <= per_step * CHANGES_PER_SLICE
