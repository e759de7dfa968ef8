"""A queue as it stood at a moment, of an upstream whose policy came and went."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from leveret.model import definitions as d
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.recovery_plan import PlanOutcome
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.jobs.job import Selection
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.runtime.process.clock import clock_ms
from leveret.testing.network.waiting import until
from leveret.testing.sites.standby_archive import freeze_plan
from leveret.wire.record import decode_message
from tests.seeds import seeds
from tests.unit.pipeline.recovery.test_unsettled import FakeBroker
from tests.unit.runtime.collecting.site import POLICY, Site, replicating, served

pytestmark = pytest.mark.usefixtures("collection")

OFF = d.Delete("policies", ("v", "p"))
STEPS = ["publish", "publish", "ack", "ack", "policy off", "policy on", "policy on", "kill"]


async def moment(site: Site) -> int:
    """A time that no chunk has, with everything before it collected."""
    await until(lambda: not site.node.collector._catching_up)
    await served(site)
    await asyncio.sleep(0.002)
    at_ms = clock_ms()
    await asyncio.sleep(0.002)
    return at_ms


def transfer(site: Site, data_dir: Path) -> Manifest:
    """All that is served, a few chunks a file."""
    log, manifest = site.node.collector.logs["v"], Manifest(data_dir)
    while (at := manifest.next_by_log.get("v", 0)) < log.committed_offset:
        file = store_range(data_dir, "v", [bytes(chunk) for chunk in log.read(at, 600)])
        assert file is not None
        manifest.append([file])
    return manifest


def recovered(manifest: Manifest, broker: FakeBroker, at_ms: int | None = None) -> list[bytes]:
    """What a recovery, of now or as of a moment, brings into the queue."""
    broker.queues.clear()
    directory = freeze_plan(manifest, "v", Selection(as_of_ms=at_ms))
    if directory is None:
        return []
    plan = directory.load()
    queues = PlanPublisher(directory, broker.connect, lambda count: None).publish(sorted(plan.queues))
    directory.finish(
        PlanOutcome(
            plan_id=plan.plan_id,
            vhost="v",
            number=plan.number,
            selection=plan.selection,
            finished_ms=1,
            queues=queues,
        )
    )
    return [bytes(decode_message(body).body) for body in broker.queues.get("q", [])]


@pytest.mark.parametrize("seed", seeds(6, each_time=2))
@pytest.mark.long
async def test_every_moment_has_each_message_once_however_often_the_queue_was_collected_anew(
    directory: Path, seed: int
) -> None:
    chance = random.Random(seed)

    site = await replicating(directory, "q")
    moments: dict[int, list[bytes]] = {}
    for step in ["publish", *chance.choices(STEPS, k=14)]:
        match step:
            case "publish":
                await site.publish(chance.randint(1, 6))
            case "ack":
                await site.ack(chance.randint(1, 4))
            case "kill":
                await site.restart()
            case _:
                await site.apply(OFF if step == "policy off" else d.Put(POLICY))
        at_ms = await moment(site)
        if site.queue().replicated:
            moments[at_ms] = site.contents()
    for number, (at_ms, there) in enumerate(moments.items()):
        manifest = transfer(site, directory / f"archive-{number}")
        assert recovered(manifest, FakeBroker(), at_ms) == there
        assert recovered(manifest, FakeBroker(), at_ms) == [], "it was recovered already"


@pytest.mark.parametrize("seed", seeds(6, each_time=2))
@pytest.mark.long
async def test_one_recovery_after_the_other_brings_each_message_once_however_often_it_was_collected_anew(
    directory: Path, seed: int
) -> None:
    """Into a broker that keeps what it has; the upstream goes on."""
    chance = random.Random(seed)

    site = await replicating(directory, "q")
    came: list[bytes] = []
    moments: list[int] = []
    for step in ["publish", *chance.choices([*STEPS, "recover", "recover", "as of"], k=24)]:
        match step:
            case "publish":
                await site.publish(chance.randint(1, 6))
            case "ack":
                await site.ack(chance.randint(1, 4))
            case "kill":
                await site.restart()
            case "recover":
                came += recovered(transfer(site, directory / "archive"), FakeBroker())
                assert not site.queue().replicated or set(site.contents()) <= set(came)
            case "as of":
                at_ms = chance.choice(moments)
                came += recovered(transfer(site, directory / "archive"), FakeBroker(), at_ms)
            case _:
                await site.apply(OFF if step == "policy off" else d.Put(POLICY))
        assert len(came) == len(set(came)), f"after {step}"
        moments.append(await moment(site))
    assert came
