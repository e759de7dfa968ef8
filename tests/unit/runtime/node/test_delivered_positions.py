"""What was handed out before a restart is redelivered after it, however the node ended; see conformance, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.runtime.node.delivered_positions import FILE, DeliveredPositions
from tests.unit.runtime.collecting.site import Site, play

KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "priority": {"x-max-priority": 3},
}
ENDS = ["stop", "stop", "kill", "stop elsewhere"]
Step = tuple[Literal["publish", "take", "ack", "requeue", "restart"], int]
STEP: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(["publish", "take", "ack", "requeue", "restart"]), st.integers(0, 7)
)


class Played(Site):
    """A node whose one queue is taken from; `handed` are offsets that were, `existing` those that are unacked."""

    handed: set[int]
    existing: list[int]

    async def begin(self, arguments: dict[str, Any]) -> None:
        self.handed, self.existing = set(), []
        await self.start()
        await self.apply(d.Put(d.Vhost(name="v")))
        await self.apply(d.Put(d.Queue(vhost="v", name="q", arguments=arguments)))

    async def take(self, limit: int) -> list[tuple[int, bool]]:
        """(offset, whether it is redelivered) of what is next."""
        runs, redelivered = self.queue().take(limit) if self.queue().ready_count else ([], False)
        found = [offset for run in runs for offset in range(run.first, run.end)]
        self.handed |= set(found)
        self.existing += found
        return [(offset, redelivered) for offset in found]

    async def end(self, how: str) -> None:
        """End, and start again; elsewhere is on a copy of the directory, from which another node went on since."""
        for offset in self.existing:
            # As its connection's end has it, which a crash does not wait for.
            self.queue().requeue(offset, 1)
        self.existing = []
        if how == "kill":
            await self.kill()
        else:
            await self.node.stop()
        self.epoch += 2 if how == "stop elsewhere" else 1
        await self.start()

    async def judge(self, is_known: bool, queue: Queue) -> None:
        """Take all that is left; it is flagged where it was handed out before, and may be where nobody knows."""
        before, flagged = set(self.handed), set()
        left = set(range(queue.next_offset)) - {
            offset for offset in range(queue.next_offset) if offset in queue.settled
        }
        taken: list[int] = []
        while queue.ready_count:
            found = await self.take(100)
            assert found
            for offset, redelivered in found:
                taken.append(offset)
                flagged |= {offset} if redelivered else set()
        assert sorted(taken) == sorted(left)
        assert before & left <= flagged
        if is_known:
            assert flagged == before & left


async def live(site: Played, kind: str, steps: list[Step]) -> None:
    await site.begin(KINDS[kind])
    is_known = True
    for what, amount in [*steps, ("restart", 0)]:
        if what == "publish":
            await site.publish(amount + 1)
        elif what == "take":
            await site.take(amount + 1)
        elif what == "restart":
            how = ENDS[amount % len(ENDS)]
            await site.end(how)
            # Of what nobody knew once, nothing is known later.
            is_known = is_known and how == "stop" and kind != "priority"
        elif site.existing:
            offset = site.existing.pop(amount % len(site.existing))
            settle = site.queue().settle if what == "ack" else site.queue().requeue
            settle(offset, 1)
            await site.touched()
    await site.judge(is_known, site.queue())
    await site.kill()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEP, max_size=14))
def test_whatever_was_handed_out_comes_back_as_redelivered(kind: str, steps: list[Step]) -> None:
    play(lambda directory: live(Played(directory), kind, steps))


def test_a_note_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"{")
    queue = Queue(d.Queue(vhost="v", name="q", epoch=3), lambda queue, offset: [])
    queue.restore(0, 5, queue.settled)
    noted = DeliveredPositions(tmp_path, 7)
    noted.load()
    noted.redeliver(queue)
    assert queue.backlog.returned.count == 5


def test_the_note_of_an_earlier_start_is_as_none(tmp_path: Path) -> None:
    """Another one ran in between, and may have handed out more."""
    for before, expected in ((6, 0), (5, 5)):
        queue = Queue(d.Queue(vhost="v", name="q", epoch=3), lambda queue, offset: [])
        queue.restore(0, 5, queue.settled)
        DeliveredPositions(tmp_path, before).save([queue])
        noted = DeliveredPositions(tmp_path, 7)
        noted.load()
        noted.redeliver(queue)
        assert queue.backlog.returned.count == expected


def test_what_a_full_disk_kept_from_being_settled_is_flagged_after_a_stop(tmp_path: Path) -> None:
    """The settlements were in memory only: the messages come back, and a consumer had them."""
    stopped, started = (
        Queue(d.Queue(vhost="v", name="q", epoch=3), lambda queue, offset: []) for _ in range(2)
    )
    stopped.restore(0, 5, stopped.settled)
    stopped.backlog.cursor = 5
    stopped.unacked_count = 5
    stopped.settle(0, 5)
    assert stopped.settling
    DeliveredPositions(tmp_path, 6).save([stopped])
    started.restore(0, 5, started.settled)
    noted = DeliveredPositions(tmp_path, 7)
    noted.load()
    noted.redeliver(started)
    assert started.backlog.returned.count == 5


def test_all_of_a_queue_that_was_not_led_at_the_stop_is_flagged(tmp_path: Path) -> None:
    """A node of a cluster stopped after a hand-over had recorded it as the next leader, and before it led."""
    DeliveredPositions(tmp_path, 6).save([])
    queue = Queue(d.Queue(vhost="v", name="q", epoch=3), lambda queue, offset: [])
    queue.restore(0, 5, queue.settled)
    noted = DeliveredPositions(tmp_path, 7)
    noted.load()
    noted.redeliver(queue)
    assert queue.backlog.returned.count == 5
