"""What the world of queues that come and go takes for a fault, beside the books.

The tests are coroutines, because a world tells the context in which it is prepared of its etcd.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.testing.simulation.applications.operator import NeverConverged
from leveret.testing.simulation.applications.patience import PatientApplication
from leveret.testing.simulation.worlds import churn
from leveret.testing.simulation.worlds.churn import ChurnWorld
from leveret.testing.simulation.worlds.cluster import PLACEMENTS

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
