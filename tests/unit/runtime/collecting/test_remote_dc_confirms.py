"""runtime.collecting.remote_dc_confirms: on a real node, with downstreams that report what they have."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from leveret.core.queues.confirms import ConfirmBatch
from leveret.model import definitions as d
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.collecting.remote_dc_confirms import HeldConfirm
from leveret.testing.network.waiting import until
from leveret.wire.record import downstream_reference, taking_over
from tests.unit.runtime.collecting.site import POLICY, SEGMENT_BYTES, Site, replicating, served

pytestmark = pytest.mark.usefixtures("collection")
EU, US = "eu.1", "us.2"


async def confirming(directory: Path, **keys: Any) -> tuple[Site, OutgoingLog]:
    """A site whose queue q has confirms wait for downstreams."""
    site = await replicating(directory, "q")
    policy({"remote-dc-confirm": True, "remote-dc-confirm-timeout": 60_000} | keys, site)
    await site.settle()
    return site, await served(site)


def policy(keys: dict[str, Any], site: Site) -> None:
    definition = {"remote-dc-replicate": True} | {key.replace("_", "-"): value for key, value in keys.items()}
    site.node.broker.apply(d.Put(d.Policy(vhost="v", name=POLICY.name, pattern="^q", definition=definition)))


def come(site: Site, name: str, offset: int) -> None:
    """A connection of a downstream reports what its manifest holds."""
    site.node.stream_server.downstream_came("v", name)
    report(site, name, offset)


def report(site: Site, name: str, offset: int) -> None:
    site.node.stream_server.store_offset("v", name, offset)


def held(site: Site, messages: int = 1) -> list[bool]:
    """The answers to a confirm of what is published by now."""
    answers: list[bool] = []
    site.node.collector.remote_dc_confirms.hold(site.queue(), messages, answers.append)
    return answers


async def committed(log: OutgoingLog, end: int) -> None:
    await until(lambda: log.committed_offset >= end, f"the outgoing log up to {end}")


async def test_a_confirm_comes_when_the_manifest_of_a_downstream_holds_the_messages(directory: Path) -> None:
    site, log = await confirming(directory)
    come(site, EU, 0)
    await site.publish(4)
    answers = held(site, 4)
    await committed(log, 4)
    assert (answers, log.confirms_waiting) == ([], 1)
    assert site.node.upstream.confirms_of(site.queue()) == {
        "rule": "any",
        "unmet": "",
        "on_timeout": "local",
        "waiting": 4,
        "confirmed_locally": 0,
        "refused": 0,
    }
    report(site, EU, 3)
    assert answers == []
    report(site, EU, log.committed_offset + 1)
    assert answers == [], "more than there is counts for nothing"
    report(site, EU, 4)
    assert (answers, log.confirms_waiting) == ([True], 0)
    assert site.queue().remote_confirms.waiting == 0


@pytest.mark.uvloop
async def test_a_confirm_may_come_while_another_one_is_late_at_once(directory: Path) -> None:
    """uvloop's handle of a call that is due within half a millisecond does not tell its time."""
    site, _ = await confirming(directory)
    come(site, EU, 0)
    await site.publish(1)
    confirms, now_s = site.node.collector.remote_dc_confirms, asyncio.get_running_loop().time()
    first = held(site)
    confirms._due[0] = (now_s, *confirms._due[0][1:])
    confirms._late()
    confirms._due.append((now_s + 0.0001, -1, HeldConfirm(site.queue(), "any", 1, list[bool]().append)))
    confirms._arm()
    second = held(site)
    assert (first, second) == ([True], [])
    await site.stop()


@pytest.mark.parametrize(("answer", "ok"), [("local", True), ("nack", False)])
async def test_without_a_downstream_the_policy_s_answer_comes_at_once_and_is_counted(
    directory: Path, answer: str, ok: bool, caplog: pytest.LogCaptureFixture
) -> None:
    site, _ = await confirming(directory, remote_dc_confirm_on_timeout=answer)
    await site.publish(4)
    with caplog.at_level(logging.WARNING):
        assert held(site, 4) == [ok]
        assert held(site, 2) == [ok]
    assert sum("remote_dc_confirm_unmet" in each.getMessage() for each in caplog.records) == 1
    counts = site.queue().remote_confirms
    assert (counts.confirmed_locally, counts.refused, counts.waiting) == ((6, 0, 0) if ok else (0, 6, 0))
    found = site.node.upstream.confirms_of(site.queue())
    assert found is not None
    assert found["unmet"] == "no downstream is connected"
    come(site, EU, 0)
    assert held(site) == []
    site.node.stream_server.downstream_left("v", EU)
    assert held(site) == [ok]


@pytest.mark.parametrize(("answer", "told"), [("local", ""), ("nack", "queue 'q' in vhost 'v'")])
async def test_a_refused_batch_tells_that_no_other_site_has_it(
    directory: Path, answer: str, told: str
) -> None:
    site, _ = await confirming(directory, remote_dc_confirm_on_timeout=answer)
    await site.publish(1)
    batch, answers = ConfirmBatch(), list[bool]()
    batch.queues[site.queue()] = True
    site.node.collector.remote_dc_confirms.when_kept(batch, lambda: answers.append)
    assert (answers, told in batch.unmet, bool(batch.unmet)) == ([not told], True, bool(told))
    if told:
        assert "no downstream is connected; the messages are in the queue here" in batch.unmet


async def test_a_confirm_that_is_late_gets_the_policy_s_answer_and_no_other(directory: Path) -> None:
    site, log = await confirming(directory, remote_dc_confirm_timeout=20, remote_dc_confirm_on_timeout="nack")
    come(site, EU, 0)
    await site.publish(4)
    answers, later = held(site, 4), held(site, 1)
    await until(lambda: later == [False], "the answer to what is late")
    assert answers == [False]
    await committed(log, 4)
    report(site, EU, 4)
    assert answers == [False]
    assert site.queue().remote_confirms.refused == 5


async def test_all_waits_for_every_known_downstream_and_says_who_is_away(directory: Path) -> None:
    site, log = await confirming(directory, remote_dc_confirm="all")
    come(site, EU, 0)
    come(site, US, 0)
    await site.publish(4)
    answers = held(site)
    await committed(log, 4)
    report(site, EU, 4)
    assert answers == []
    site.node.stream_server.downstream_left("v", US)
    found = site.node.upstream.confirms_of(site.queue())
    assert found is not None
    assert found["unmet"] == "1 of 2 known downstreams are not connected"
    assert site.node.upstream.forget_downstream(US)
    assert answers == [True]


async def test_what_is_not_collected_is_not_confirmed_as_if_it_were(directory: Path) -> None:
    site, _ = await confirming(directory, remote_dc_confirm_on_timeout="nack")
    come(site, EU, 0)
    answers = held(site)
    assert answers in ([], [True])
    await site.publish(2)
    waits = held(site)
    await site.apply(d.Put(d.Vhost(name="v")))
    assert waits == [False], "the outgoing log is closed"
    assert held(site) == [False]
    found = site.node.upstream.confirms_of(site.queue())
    assert found is not None
    assert found["unmet"] == "the queue is not collected for downstreams"


async def test_a_confirm_before_the_copy_waits_for_the_copy(directory: Path) -> None:
    """The order of the steps: held with the flush, copied once durable, acked by the manifest."""
    site, log = await confirming(directory)
    come(site, EU, 0)
    queue = site.queue()
    await site.publish(1)
    queue_end = queue.next_offset
    site.node.collector.pause(queue)
    await site.publish(1)
    answers = held(site)
    await committed(log, 1)
    report(site, EU, log.committed_offset)
    assert answers == [], "the second message is not in the log yet"
    site.node.collector.resume([queue])
    await site.settle()
    assert queue.next_offset == queue_end + 1
    await committed(log, 2)
    assert answers == []
    report(site, EU, log.committed_offset)
    assert answers == [True]


async def test_nothing_is_held_for_queues_without_the_key_or_that_end_with_their_node(
    directory: Path,
) -> None:
    site, _ = await confirming(directory)
    port = site.node.collector.remote_dc_confirms
    await site.apply(d.Put(d.Queue(vhost="v", name="q-transient", durable=False)))
    await site.apply(d.Put(d.Queue(vhost="v", name="other", durable=True)))
    assert port.concerns(site.queue())
    assert not port.concerns(site.queue("q-transient"))
    assert not port.concerns(site.queue("other"))
    assert site.node.upstream.confirms_of(site.queue("other")) is None
    await asyncio.sleep(0)


async def test_a_downstream_with_another_name_is_no_other_one(directory: Path) -> None:
    site, log = await confirming(directory, remote_dc_confirm="all", remote_dc_confirm_on_timeout="nack")
    before, now = (downstream_reference(name, "1f") for name in ("eu", "europe"))
    come(site, before, 0)
    await site.publish(4)
    answers = held(site)
    site.node.stream_server.downstream_left("v", before)
    come(site, now, 0)
    more = held(site)
    assert (answers, more) == ([], [])
    await committed(log, 4)
    report(site, now, 4)
    assert (answers, more) == ([True], [True])


@pytest.mark.parametrize("rule", ["any", "all"])
async def test_no_confirm_rests_on_a_node_that_is_taking_the_vhost_over(directory: Path, rule: str) -> None:
    """A promotion would recover from the archive of the node before it, which lacks the messages."""
    site, log = await confirming(directory, remote_dc_confirm=rule, remote_dc_confirm_on_timeout="nack")
    owner = downstream_reference("eu", "1f")
    come(site, owner, 0)
    await site.publish(4)
    waiting = held(site)
    await committed(log, 4)
    site.node.stream_server.downstream_left("v", owner)
    come(site, taking_over(owner), 4)
    assert "is taking the virtual host over" in site.node.collector.remote_dc_confirms.why_unmet(site.queue())
    assert (waiting, held(site)) == ([], [False])
    assert [each.offset for each in log.downstreams.by_reference.values()] == [4], "the log is kept for it"
    site.node.stream_server.downstream_left("v", taking_over(owner))
    come(site, owner, 4)
    assert (waiting, held(site)) == ([True], [True])


async def test_after_a_start_of_the_upstream_a_node_that_takes_over_does_not_count_either(
    directory: Path,
) -> None:
    site, log = await confirming(directory, remote_dc_confirm="all", remote_dc_confirm_on_timeout="nack")
    come(site, taking_over(EU), 0)
    await site.publish(4)
    await committed(log, 4)
    site.node.collector.remote_dc_confirms.closed("v")
    site.node.collector.remote_dc_confirms.opened("v")
    come(site, US, 4)
    assert held(site) == [True]


async def test_what_retention_dropped_is_not_confirmed_by_a_downstream_that_goes_on_behind_it(
    directory: Path,
) -> None:
    site, log = await confirming(directory, remote_dc_confirm_on_timeout="nack")
    come(site, EU, 0)
    await site.publish(4)
    answers = held(site)
    while log.log.size_bytes < 4 * SEGMENT_BYTES:
        await site.publish(4)
    later = held(site)
    await served(site)
    site.node.collector._retain_bytes_max = SEGMENT_BYTES
    await site.node.collector.retain()
    assert log.first_offset > 4
    report(site, EU, log.first_offset)
    assert (answers, later) == ([False], [])
    report(site, EU, log.committed_offset)
    assert (answers, later) == ([False], [True])


async def test_a_downstream_that_acks_nothing_fills_no_memory(directory: Path) -> None:
    site, _ = await confirming(directory, remote_dc_confirm_timeout=1)
    confirms = site.node.collector.remote_dc_confirms
    come(site, EU, 0)
    await site.publish(1)
    for is_copied in (True, False):
        if not is_copied:
            site.node.collector.pause(site.queue())
            await site.publish(1)
        for _ in range(3):
            answers = [held(site) for _ in range(1001)]
            await until(lambda answers=answers: all(answers), "the answer to what is late")  # type: ignore[misc]
    waiting = sum(map(len, confirms._uncopied.values())) + confirms._confirms["v"].waiting
    assert waiting < 2002


async def test_behind_a_confirm_that_waits_long_no_answered_one_stays_in_memory(directory: Path) -> None:
    """Those of an hour did, behind that of a queue that could not be collected (2026-11-29)."""
    site = await replicating(directory, "q", "qb")
    policy({"remote-dc-confirm": True, "remote-dc-confirm-timeout": 3_600_000}, site)
    await site.settle()
    confirms, other = site.node.collector.remote_dc_confirms, site.queue("qb")
    site.node.collector.pause(site.queue())
    come(site, EU, 0)
    await site.publish(1)
    waiting, answers = held(site), list[bool]()
    for _ in range(5000):
        confirms.hold(other, 1, answers.append)
    assert (waiting, answers) == ([], [True] * 5000)
    assert len(confirms._due) <= 1001
