"""collecting.collector: a standby would recover what a queue holds, also what was stored again in its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leveret.model import definitions as d
from leveret.runtime.collecting.outgoing_log import key_by_counts
from leveret.runtime.logs import relocating
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import POLICY, TAGGED, FakeMember, Site

pytestmark = pytest.mark.usefixtures("collection")

STEP = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 12)),
    st.tuples(st.just("ack"), st.integers(1, 12)),
    st.tuples(st.just("ack all but some"), st.integers(1, 3)),
    st.tuples(st.just("relocate"), st.integers(1, 3)),
    st.tuples(
        st.sampled_from(["policy on", "policy off", "tag on", "tag off", "kill", "anew", "joins"]), st.just(0)
    ),
)

MOVED_WHILE_NAMED = [*[("publish", 1)] * 6, ("tag off", 0), ("relocate", 1)]
"""Messages that the outgoing log names are stored again elsewhere while no tag keeps their place."""
NAMED_BEFORE_IT_JOINS = [*MOVED_WHILE_NAMED, ("joins", 0)]
SETTLED_AND_DROPPED = [
    *[("publish", 8), ("ack all but some", 3), ("relocate", 0), ("publish", 4)],
    *[("tag off", 0), ("ack all but some", 2), ("relocate", 0)],
]
"""The record that settles a message is dropped, with the chunk that the message was stored again in."""


async def relocate(site: Site) -> bool:
    """Have the log give back what it can; whether messages were stored again for that."""
    reclaiming, queue = site.node._queues.reclaiming, site.queue()
    reclaiming.note(queue, site.node._queues.log(queue))
    before = len(queue.relocated.octets)
    for now_ms in range(0, 12_000, 2_000):
        reclaiming.look(now_ms)
        while reclaiming.relocating.unfinished:
            await site.touched()
        await site.settle()
    return len(queue.relocated.octets) > before


async def play(site: Site, what: str, count: int) -> bool:
    changes: dict[str, d.Change] = {
        "policy on": d.Put(POLICY),
        "policy off": d.Delete("policies", ("v", "p")),
        "tag on": d.Put(TAGGED),
        "tag off": d.Put(d.Vhost(name="v")),
    }
    if what in changes:
        await site.apply(changes[what])
    elif what == "kill":
        await site.restart()
    elif what == "joins":
        # It becomes a node of a cluster, with the logs of its time alone.
        site.member = site.member or FakeMember()
        await site.restart()
    elif what == "anew":
        site.node.upstream.delete_logs()
        await site.settle()
    elif what == "publish":
        await site.publish(count)
    elif what == "ack":
        await site.ack(count)
    elif what == "relocate":
        return await relocate(site)
    elif site.queue().ready_count > count:
        stay = site.queue().take(count)[0]
        await site.ack(site.queue().ready_count)
        for run in stay:
            site.queue().requeue(run.first, len(run.bodies))
    return False


@settings(max_examples=40, deadline=None)
@example(MOVED_WHILE_NAMED)
@example(NAMED_BEFORE_IT_JOINS)
@example(
    [*NAMED_BEFORE_IT_JOINS, ("tag on", 0), ("ack", 2), ("kill", 0), ("policy off", 0), ("policy on", 0)]
)
@example(SETTLED_AND_DROPPED)
@example([*SETTLED_AND_DROPPED, ("joins", 0)])
@given(st.lists(STEP, max_size=25))
def test_a_standby_would_recover_what_was_stored_again_too(steps: list[tuple[str, int]]) -> None:
    async def scenario(directory: Path) -> None:
        site = await Site.started(directory)
        await site.apply(d.Put(TAGGED), d.Put(POLICY), d.Put(d.Queue(name="q", vhost="v")))
        for step in [*steps, ("tag on", 0)]:
            await play(site, *step)
            queue = site.queue()
            if "v" in site.node.collector.logs:
                holds = queue.replicated and queue.message_count
                assert site.replicated() == ({"q": site.contents()} if holds else {})
                if site.member is not None and queue.replicated:
                    # Another node that leads the queue next continues the same incarnation.
                    collector = site.node.collector
                    shared = key_by_counts(queue, collector.incarnations)
                    assert collector.logs["v"].key_of(queue) == shared
        await site.kill()

    run(scenario)


@pytest.mark.parametrize("first", ["policy on", "anew", "kill"])
def test_what_was_stored_again_before_is_copied_when_a_queue_is_collected(first: str) -> None:
    async def scenario(directory: Path) -> None:
        site = await Site.started(directory)
        collected = [] if first == "policy on" else [d.Put(POLICY)]
        await site.apply(d.Put(TAGGED), *collected, d.Put(d.Queue(name="q", vhost="v")))
        await site.publish(3)
        stay = site.queue().take(3)[0]
        for _ in range(12):
            await site.publish(6)
            await site.ack(6)
        for each in stay:
            site.queue().requeue(each.first, len(each.bodies))
        if not await play(site, "relocate", 0):
            # The outgoing log only names what stands in the queue's: that has to stay.
            assert site.node.collector.keep_from(site.queue()) == 0
            await site.kill()
            return
        assert site.node._queues.log(site.queue()).first_offset > 3
        await play(site, first, 0)
        assert len(site.contents()) == 3
        assert site.replicated() == {"q": site.contents()}
        await site.ack(1)
        assert site.replicated() == {"q": site.contents()}
        await site.kill()

    run(scenario)


def run(scenario: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    """Play it with relocations that are worth it for next to nothing."""
    with pytest.MonkeyPatch.context() as patch, scratch() as directory:
        patch.setattr(relocating, "RELOCATED_BYTES_MIN", 1)
        patch.setattr(relocating, "_CHUNK_OVERHEAD_BYTES", 0)
        asyncio.run(scenario(directory))
