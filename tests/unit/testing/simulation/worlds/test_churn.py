"""What the world of queues that come and go takes for a fault, beside the books.

The tests are coroutines, because a world tells the context in which it is prepared of its etcd.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.model import definitions as d
from leveret.testing.simulation.applications.operator import NeverConverged
from leveret.testing.simulation.applications.patience import PatientApplication
from leveret.testing.simulation.worlds import churn
from leveret.testing.simulation.worlds.churn import ChurnWorld
from leveret.testing.simulation.worlds.churn_situations import REPLACED
from leveret.testing.simulation.worlds.cluster import KEYS, PLACEMENTS

PLACEMENT = b'{"epoch":4,"leader":"n1@localhost","incarnation":"a","term":1}'


@pytest.mark.parametrize(("is_recorded", "is_durable"), [(False, True), (True, True), (False, False)])
async def test_a_confirm_in_a_durable_queue_that_etcd_never_knew_is_one(
    tmp_path: Path, is_recorded: bool, is_durable: bool
) -> None:
    world = ChurnWorld(1, tmp_path)
    world.prepare()
    if is_recorded:
        world._recorded(StoreTransaction((), (PutKey(f"{PLACEMENTS}%2F/q", PLACEMENT),)))
    queue: Any = SimpleNamespace(key=("/", "q"), epoch=4, definition=SimpleNamespace(durable=is_durable))
    batch: Any = SimpleNamespace(queues={})
    world.promised("n1", batch, [queue])
    assert (world.fault is None) == (is_recorded or not is_durable)


async def test_an_application_that_waits_for_an_answer_at_rest_is_named_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ChurnWorld(1, tmp_path)
    application = PatientApplication("o1", world.network, [], world.books, world.random)
    world.applications.append(application)

    async def at_once() -> None:
        """All nodes are open."""

    monkeypatch.setattr(world, "until_open", at_once)
    monkeypatch.setattr(churn, "REST_TIMEOUT_S", 0.01)
    with (
        application.waiting_for("Queue.Delete q"),
        pytest.raises(NeverConverged, match=r"unanswered for .*: o1 for 1 x Queue\.Delete q"),
    ):
        await world.heal()
    assert application.is_stopping


@pytest.mark.parametrize("stored", [{}, {"definition": 4}, {"record": 4}, {"definition": 3, "record": 4}])
async def test_a_definition_in_etcd_without_the_record_of_its_queue_is_one(
    tmp_path: Path, stored: dict[str, int]
) -> None:
    """Also the definition of one life of the queue beside the record of another one."""
    world = ChurnWorld(1, tmp_path)
    world.prepare()
    puts = {
        KEYS.definition("queues", ("/", "q")): d.encode_change(
            d.Put(d.Queue(vhost="/", name="q", epoch=stored.get("definition", 0)))
        ),
        KEYS.placement("/", "q"): PLACEMENT,
    }
    writes = [
        PutKey(key, value)
        for (key, value), name in zip(puts.items(), ("definition", "record"), strict=True)
        if name in stored
    ]
    for write in writes:
        entry: Any = SimpleNamespace(value=write.value, modified=1)
        world.etcd.state.entries[write.key] = entry
    world._judge_pairs(StoreTransaction((), tuple(writes)))
    assert (world.fault is None) == (not stored)


async def test_the_situations_of_replaced_queues_are_for_runs_that_replace_them(tmp_path: Path) -> None:
    for name in REPLACED:
        world = ChurnWorld(1, tmp_path, often=name)
        assert (world.replaces, world.is_healthy, world.often) == (True, False, name)
        assert name in world.situations
