"""How a mirror is brought up to date: paced, cancelled, gone on with; slow ones; when one counts as whole."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from pathlib import Path

import pytest

from leveret.core.replication.sync_pace import SyncPace
from leveret.model.errors import StorageError
from leveret.runtime.link import heartbeat
from leveret.runtime.mirroring import copy_link, source_link, source_stream
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.replication import sending_link
from leveret.testing.network.link_proxy import Direction, LinkProxy
from leveret.testing.network.waiting import until
from leveret.wire.link import ChangeKind, log_change
from tests.unit.runtime.mirroring.sites import NAMES, Node, compared_when_stopped, mirrored, pair

A, B = NAMES[:2]


async def test_a_sync_goes_at_the_pace_that_is_allowed_and_the_limit_may_be_changed(tmp_path: Path) -> None:
    """What is published meanwhile comes on top, and is not held up. A minute passes at each look at the clock."""
    now = itertools.count(1, 60_000)
    leader, mirror = await pair(
        tmp_path, sync_bytes_s_max=1, ack_timeout_ms=1 << 60, clock_ms=lambda: next(now)
    )
    for _ in range(4):
        leader.append(A, 250_000, 4)
    leader.lead(A, automatic=True)
    mirror.copies.mirror(A, "leader")
    await until(lambda: leader.state(A, "mirror") is MirrorState.SYNCHRONISING, "begun")
    for _ in range(30):
        end = leader.append(A, 900)
        await asyncio.sleep(0.001)
    await until(lambda: leader.sources.rows(A)[0]["lag_records"] == 0, "all that is new is there")
    [row] = leader.sources.rows(A)
    assert row["state"] == "synchronising"
    assert 0 <= row["progress"]["bytes_done"] <= 2_000_000 < row["progress"]["bytes_total"]
    assert mirror.log(A).next_offset == end
    leader.sources.sync_bytes_s_max = 0
    await until(lambda: leader.is_live("mirror", A), "live")
    assert (await compared_when_stopped(leader, mirror)).is_identical


async def test_what_a_cancelled_sync_copied_is_kept_over_a_new_link_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled after each chunk, in the middle of segments too: nothing is sent twice."""
    monkeypatch.setattr(source_stream, "STEP_BYTES", 1)
    monkeypatch.setattr(copy_link, "RETRY_S", (0.001,))
    sent: list[int] = []
    leader, mirror = await pair(tmp_path)
    leader.fill(A, 32_000)
    log = leader.log(A)
    total, chunks = log.size_bytes, len(list(log.read(0, 1 << 30)))
    leader.lead(A)
    mirror.copies.mirror(A, "leader")
    await until(lambda: leader.state(A, "mirror") is MirrorState.UNSYNCHRONISED, "begun")

    def paying(self: SyncPace, octets: int, now_ms: int) -> None:
        sent.append(octets)
        leader.sources.cancel_synchronise(A)

    monkeypatch.setattr(SyncPace, "sent", paying)
    for each in range(1, chunks + 1):
        leader.sources.synchronise(A)
        await until(partial(lambda count: len(sent) == count, each), "a chunk sent")
        # What is on its way is there before the link is cut.
        leader.append(A)
        await until(lambda: leader.sources.rows(A)[0]["lag_records"] == 0, "there")
        if each < chunks:
            assert leader.state(A, "mirror") is MirrorState.UNSYNCHRONISED
            leader.states.clear()
            leader.cut_links()
            await until(lambda: (A, "mirror", MirrorState.GONE) in leader.states, "away")
            await until(lambda: leader.state(A, "mirror") is MirrorState.UNSYNCHRONISED, "back")
    await until(lambda: leader.is_live("mirror", A), "live")
    assert sum(sent) == total + chunks * len(log_change(ChangeKind.HEAD, 1, 0))
    assert (await compared_when_stopped(leader, mirror)).is_identical


@pytest.mark.parametrize(
    ("batch_messages", "bytes_s_max", "batches"),
    [(4096, 0, [12, 14]), (5, 0, [5, 5, 2, 5, 5, 4]), (4096, 1, [1] * 26)],
)
async def test_maybe_master_batch_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_messages: int, bytes_s_max: int, batches: list[int]
) -> None:
    """As many messages as the policy says are sent at once, or as many octets as may be sent in a second.

    Without either it is a segment; the log has two, of 14 and of 12 messages.
    """
    now = itertools.count(1, 60_000)
    sent: list[int] = []

    leader, mirror = await pair(
        tmp_path, sync_bytes_s_max=bytes_s_max, ack_timeout_ms=1 << 60, clock_ms=lambda: next(now)
    )
    for _ in range(26):
        leader.append(A, 250)
    leader.lead(A, batch_messages=batch_messages)
    mirror.copies.mirror(A, "leader")
    await until(lambda: leader.state(A, "mirror") is MirrorState.UNSYNCHRONISED, "begun")
    size_bytes = leader.log(A).size_bytes // 26
    monkeypatch.setattr(SyncPace, "sent", lambda _, octets, now_ms: sent.append(octets // size_bytes))
    leader.sources.synchronise(A)
    await until(lambda: leader.is_live("mirror", A), "live")
    assert (await compared_when_stopped(leader, mirror)).is_identical
    assert sent == batches


async def test_a_mirror_that_begins_late_is_whole_once_all_before_is_settled(tmp_path: Path) -> None:
    """By hand, as RabbitMQ's sync_detection_SUITE has it: new mirrors are in step when the old messages are gone."""
    leader, mirror = await pair(tmp_path)
    leader.fill(A, 20_000)
    leader.lead(A)
    mirror.copies.mirror(A, "leader")
    await until(lambda: leader.state(A, "mirror") is MirrorState.UNSYNCHRONISED, "begun")
    first = leader.sources.rows(A)[0]["first_offset"]
    leader.append(A)
    leader.sources.floor(A, first - 1)
    assert leader.state(A, "mirror") is MirrorState.UNSYNCHRONISED
    leader.sources.floor(A, first)
    await until(lambda: leader.state(A, "mirror") is MirrorState.LIVE, "live")
    # What is left of the old there is never sent.
    await leader.commits.all_durable()
    leader.log(A).drop_before(first)
    leader.append(A)
    await until(lambda: leader.is_live("mirror", A), "still live")
    assert (await compared_when_stopped(leader, mirror)).is_identical


async def test_who_joins_an_empty_log_or_becomes_automatic_lacks_nothing(tmp_path: Path) -> None:
    leader, mirror = await pair(tmp_path)
    leader.lead(A, B)
    leader.fill(B, 20_000)
    for name in (A, B):
        mirror.copies.mirror(name, "leader")
    await until(lambda: leader.is_live("mirror", A), "live")
    await until(lambda: leader.state(B, "mirror") is MirrorState.UNSYNCHRONISED, "unsynchronised")
    leader.append(A)
    leader.lead(B, automatic=True)
    await until(lambda: leader.is_live("mirror", A, B), "live")
    assert (await compared_when_stopped(leader, mirror)).is_identical


def test_a_slow_mirror_is_gone_and_catches_up_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending_link, "LIVE_BYTES_MAX", 2_000_000)
    # The link stands still for as long as the leader writes, which may take more than ten seconds on a busy machine.
    monkeypatch.setattr(heartbeat, "BEAT_S", 60.0)

    async def scenario(proxy: LinkProxy) -> None:
        leader, mirror = Node(tmp_path / "leader", ack_timeout_ms=1 << 60), Node(tmp_path / "mirror")
        proxy.target_port = await leader.listen()
        mirror.via["leader"] = proxy.port
        leader.lead(A, B, automatic=True)
        describe: list[int] = []
        for name in (A, B):
            leader.append(name)
            mirror.copies.mirror(name, "leader")
        await until(lambda: leader.is_live("mirror", A, B), "live")
        leader.sources.wait_for(A, frozenset({"mirror"}))
        proxy.stall(Direction.BACK)
        while MirrorState.GONE not in [state for _, _, state in leader.states]:
            leader.append(A, 30_000, 4)
            leader.promise(describe, A)
            await asyncio.sleep(0)
        leader.commits.begin()
        assert len(describe) < leader.promised
        # Taken out of the record, and then waited for no longer.
        leader.sources.wait_for(A)
        assert len(describe) == leader.promised
        for _ in range(30):
            leader.append(A, 30_000, 4)
            leader.append(B)
        await asyncio.sleep(0)
        assert leader.state(A, "mirror") is MirrorState.SYNCHRONISING
        proxy.resume()
        await until(lambda: leader.is_live("mirror", A, B), "live again")
        # Nothing was sent twice.
        total = sum(leader.log(name).size_bytes for name in (A, B))
        assert total < proxy.passed(Direction.BACK) < 1.2 * total
        assert (await compared_when_stopped(leader, mirror)).is_identical

    with LinkProxy(1) as proxy:
        asyncio.run(scenario(proxy))


async def test_a_mirror_that_owes_an_ack_for_too_long_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_link, "BEAT_S", 0.02)
    monkeypatch.setattr(copy_link, "RETRY_S", (0.005,))
    leader, mirror = await pair(tmp_path, ack_timeout_ms=100)
    leader.lead(A, automatic=True)
    leader.append(A)
    await mirrored(leader, mirror, A)
    # Its disk takes no more.
    begin, mirror.commits.begin = mirror.commits.begin, lambda: None  # type: ignore[method-assign]
    leader.append(A)
    await until(lambda: (A, "mirror", MirrorState.GONE) in leader.states, "gone")
    mirror.commits.begin = begin  # type: ignore[method-assign]
    mirror.commits.begin()
    await until(lambda: leader.is_live("mirror", A), "live again")


async def test_a_publisher_never_waits_for_a_sync(tmp_path: Path) -> None:
    """A hundred megabytes are sent; between two turns of the loop there is never more than a step."""
    leader, mirror = await pair(tmp_path)
    log = leader.tree.log(leader.tree.path_of(A)).open(with_messages=False)
    while log.size_bytes < 32_000_000:
        leader.append(A, 60_000, 16)
    await leader.commits.all_durable()
    leader.lead(A, automatic=True)
    mirror.copies.mirror(A, "leader")
    await until(lambda: leader.state(A, "mirror") is MirrorState.SYNCHRONISING, "begun")
    turns = appended = 0
    while not leader.is_live("mirror", A):
        turns += 1
        if turns % 10 == 0:
            leader.append(A)
            appended += 1
        await asyncio.sleep(0)
    # More than a turn a step: so many that a publisher's are between them.
    assert turns > 32_000_000 / source_stream.STEP_BYTES / 16
    assert appended
    assert (await compared_when_stopped(leader, mirror)).is_identical


async def test_a_log_that_is_led_here_is_no_mirror(tmp_path: Path) -> None:
    leader, _mirror = await pair(tmp_path)
    leader.append(A)
    await leader.stop()
    again = Node(leader.directory)
    with pytest.raises(StorageError, match="not open"):
        again.sources.lead(A)
    again.lead(A)
    with pytest.raises(ValueError, match="led here"):
        again.copies.mirror(A, "mirror")
    with pytest.raises(ValueError, match="led here"):
        await again.copies.discard(A)
    with pytest.raises(StorageError, match="not the name"):
        again.copies.mirror("../x", "mirror")
