"""runtime.integrity.scrubbing: what the disk lost is found and mended from the other side, beside what lives."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from leveret.runtime.integrity import scrubbing
from leveret.runtime.integrity.scrubbing import Pace
from leveret.storage.inspection.scrub import repair
from leveret.testing.applications.compare import compare
from leveret.wire.chunk import HEADER_BYTES
from tests.unit.runtime.replication.pair import OtherSide, Pair, PairedNode
from tests.unit.storage.logs import append, scratch
from tests.unit.storage.places import TRAILER, flip, overwrite, segment_path

Q = "queues/a"
CHUNK_BYTES = HEADER_BYTES + 90 + len(TRAILER)
NAMED_BYTES = 10 + len(Q)
"""A segment's first chunk names the log."""
FIRST_BYTES = CHUNK_BYTES + NAMED_BYTES
PLACES = {"header": 20, "data": HEADER_BYTES + 5, "trailer": HEADER_BYTES + 90 + 3}


@pytest.fixture
def pair() -> Iterator[Pair]:
    with scratch() as directory:
        pair = Pair(directory)
        yield pair
        pair.close()


@pytest.fixture(params=["one", "two"])
def damaged(request: pytest.FixtureRequest, pair: Pair) -> PairedNode:
    """The node whose disk loses something: the leader, or the follower."""
    return pair.nodes[request.param]


def scrub(node: PairedNode) -> dict[str, Any]:
    return asyncio.run(node.inspection.scrub())


def assert_whole(pair: Pair) -> None:
    """Both have the same octets, and no damage in them."""
    assert compare(pair.leader.directory, pair.follower.directory).is_identical
    for node in pair.nodes.values():
        assert scrub(node)["damaged"] == 0


def side_of(node: PairedNode) -> OtherSide:
    (peer,) = node.peers
    assert isinstance(peer, OtherSide)
    return peer


# -- mending ----------------------------------------------------------------------------------


def test_what_is_whole_is_read_and_left_alone(pair: Pair, damaged: PairedNode) -> None:
    pair.fill(Q, 8)
    pair.fill("definitions", 3)
    assert scrub(damaged) == {
        "chunks": 11,
        "octets": 11 * CHUNK_BYTES + 4 * NAMED_BYTES + 2 * (10 + len("definitions")),
        "damaged": 0,
        "repaired": 0,
        "unrepaired": [],
    }
    assert side_of(damaged).asked == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("segment", [0, 8, 12])
def test_a_flipped_bit_is_mended_from_the_other_side(
    pair: Pair, damaged: PairedNode, place: str, segment: int, caplog: pytest.LogCaptureFixture
) -> None:
    pair.fill("queues/whole", 3)
    pair.fill(Q)
    flip(damaged.directory / Q, segment, FIRST_BYTES + PLACES[place])
    found = scrub(damaged)
    assert (found["damaged"], found["repaired"], found["unrepaired"]) == (1, 1, [])
    assert_whole(pair)
    other = side_of(damaged).name
    assert f"chunk_damaged log={Q} vhost=/ queue=a offset={segment + 2}" in caplog.text
    assert f"chunk_repaired log={Q} offset={segment + 2} octets={CHUNK_BYTES} from={other}" in caplog.text
    assert "log_mended" not in caplog.text


def test_all_that_is_damaged_is_mended_in_one_scrub(pair: Pair, damaged: PairedNode) -> None:
    for name in ("a", "b"):
        pair.fill(f"queues/{name}")
        for segment in (0, 4, 12):
            flip(damaged.directory / f"queues/{name}", segment, PLACES["header"])
            flip(damaged.directory / f"queues/{name}", segment, FIRST_BYTES + PLACES["data"])
    found = scrub(damaged)
    assert found["unrepaired"] == []
    assert found["damaged"] == found["repaired"] > 6
    assert_whole(pair)


def test_several_chunks_in_a_row_are_asked_for_a_part_at_a_time(
    pair: Pair, damaged: PairedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "CHUNKS_BYTES_MAX", FIRST_BYTES + 5)
    pair.fill(Q)
    overwrite(damaged.directory / Q, 4, 0, bytes(FIRST_BYTES + CHUNK_BYTES))
    found = scrub(damaged)
    assert (found["damaged"], found["repaired"]) == (1, 1)
    assert [about["offset"] for what, about in side_of(damaged).asked] == [4, 6]
    assert_whole(pair)


def test_what_is_not_synced_yet_is_not_looked_at(pair: Pair, damaged: PairedNode) -> None:
    log = pair.fill(Q, 1)
    append(log, 90, 2, TRAILER)
    flip(damaged.directory / Q, 0, FIRST_BYTES + PLACES["data"])
    assert (scrub(damaged)["chunks"], scrub(damaged)["damaged"]) == (1, 0)


def test_a_log_that_could_not_be_opened_for_its_damage_is_mended_and_opens_again(
    pair: Pair, damaged: PairedNode, caplog: pytest.LogCaptureFixture
) -> None:
    pair.fill(Q)
    flip(damaged.directory / Q, 4, PLACES["data"])
    for path in damaged.directory.glob("**/*.summary"):
        path.unlink()
    assert list(damaged.reopen()) == [Q]
    found = scrub(damaged)
    assert (found["damaged"], found["repaired"]) == (1, 1)
    assert f"log_mended log={Q} vhost=/ queue=a hint=restart this node" in caplog.text
    assert damaged.reopen() == {}
    assert_whole(pair)


def test_the_last_chunk_of_a_log_that_could_not_be_opened_is_mended_too(
    pair: Pair, damaged: PairedNode
) -> None:
    pair.fill(Q, 7)
    flip(damaged.directory / Q, 12, PLACES["header"])
    assert list(damaged.reopen()) == [Q]
    assert scrub(damaged)["repaired"] == 1
    assert damaged.reopen() == {}
    assert_whole(pair)


def test_a_queue_that_is_down_for_its_damage_wants_a_restart_once_its_log_is_mended(
    pair: Pair, damaged: PairedNode, caplog: pytest.LogCaptureFixture
) -> None:
    pair.fill(Q)
    flip(damaged.directory / Q, 4, PLACES["data"])
    damaged.down.add(("/", "a"))
    scrub(damaged)
    assert f"log_mended log={Q} vhost=/ queue=a hint=restart this node" in caplog.text


def test_the_second_side_is_asked_when_the_first_one_has_it_not(pair: Pair, damaged: PairedNode) -> None:
    pair.fill(Q)
    flip(damaged.directory / Q, 4, PLACES["data"])
    good = side_of(damaged)
    away = OtherSide(pair.leader, lambda: "streaming", is_leader=False)
    away.is_connected = False
    damaged.peers = [away, good]
    found = scrub(damaged)
    assert (found["repaired"], found["unrepaired"]) == (1, [])


# -- what is not mended -----------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_a_chunk_that_is_damaged_on_both_sides_is_left_and_named(
    pair: Pair, damaged: PairedNode, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    pair.fill(Q)
    for node in pair.nodes.values():
        flip(node.directory / Q, 4, PLACES[place], bit=3)
    before = segment_path(damaged.directory / Q, 4).read_bytes()
    found = scrub(damaged)
    assert (found["damaged"], found["repaired"]) == (1, 0)
    (why,) = found["unrepaired"]
    assert why.startswith(f"{Q} at offset 4 of segment 4 (")
    assert f"{side_of(damaged).name}: offset 4 is damaged there as well: " in why
    assert "chunk_not_repaired" in caplog.text
    assert segment_path(damaged.directory / Q, 4).read_bytes() == before
    assert damaged.inspection.scrub_status() == {
        "running": False,
        "octets_done": 0,
        "octets_total": 0,
        "last_at_ms": damaged.now_ms,
        "chunks": 7,
        "damaged": 1,
        "repaired": 0,
        "error": why,
    }


def test_with_nobody_there_damage_is_named(pair: Pair, damaged: PairedNode) -> None:
    pair.fill(Q)
    flip(damaged.directory / Q, 4, PLACES["data"])
    damaged.peers = []
    (why,) = scrub(damaged)["unrepaired"]
    assert why.endswith("CRC of its data does not match): no other node is connected that has it")


@pytest.mark.parametrize("state", ["connecting", "joining", "catching_up", "failed"])
def test_nothing_is_written_before_the_join_is_over(pair: Pair, damaged: PairedNode, state: str) -> None:
    pair.fill(Q)
    flip(damaged.directory / Q, 4, PLACES["data"])
    before = segment_path(damaged.directory / Q, 4).read_bytes()
    pair.follower.state = state
    (why,) = scrub(damaged)["unrepaired"]
    assert state in why
    assert segment_path(damaged.directory / Q, 4).read_bytes() == before


def test_a_delayed_follower_gives_and_takes_chunks(pair: Pair, damaged: PairedNode) -> None:
    pair.fill(Q)
    flip(damaged.directory / Q, 4, PLACES["data"])
    pair.follower.state = "delayed"
    assert scrub(damaged)["repaired"] == 1


def test_other_chunks_than_those_that_were_lost_are_not_taken(pair: Pair, damaged: PairedNode) -> None:
    pair.fill(Q, 2)
    pair.copying.is_connected = False
    for node, size in ((pair.leader, 90), (pair.follower, 91)):
        log = node.log(Q)
        append(log, size, 2)
        append(log, 90, 2)
        log.sync()
    flip(damaged.directory / Q, 4, PLACES["data"])
    before = segment_path(damaged.directory / Q, 4).read_bytes()
    (why,) = scrub(damaged)["unrepaired"]
    assert "not mended" in why or "do not fit" in why
    assert segment_path(damaged.directory / Q, 4).read_bytes() == before


def test_a_segment_that_is_missing_is_named_and_not_made_up(pair: Pair, damaged: PairedNode) -> None:
    pair.fill(Q)
    segment_path(damaged.directory / Q, 4).unlink()
    (why,) = scrub(damaged)["unrepaired"]
    assert "a segment is missing" in why
    assert side_of(damaged).asked == []


def test_an_answer_that_makes_no_sense_is_a_reason_and_no_crash(pair: Pair, damaged: PairedNode) -> None:
    pair.fill(Q)
    flip(damaged.directory / Q, 4, PLACES["data"])

    class Odd(OtherSide):
        async def ask(self, what: str, about: dict[str, str | int | bool]) -> dict[str, Any]:
            return {"octets": "text", "next_offset": 6}

    damaged.peers = [Odd(pair.leader, lambda: "streaming", is_leader=False)]
    (why,) = scrub(damaged)["unrepaired"]
    assert "has no octets" in why


def test_chunks_that_were_damaged_on_the_way_are_not_written(pair: Pair, damaged: PairedNode) -> None:
    pair.fill(Q)
    flip(damaged.directory / Q, 4, PLACES["data"])
    before = segment_path(damaged.directory / Q, 4).read_bytes()
    honest = side_of(damaged)

    class Noisy(OtherSide):
        async def ask(self, what: str, about: dict[str, str | int | bool]) -> dict[str, Any]:
            found = await honest.ask(what, about)
            octets = bytearray(found["octets"])
            octets[70] ^= 1
            return found | {"octets": bytes(octets)}

    damaged.peers = [Noisy(pair.leader, lambda: "streaming", is_leader=False)]
    (why,) = scrub(damaged)["unrepaired"]
    assert "the chunks that the other side sent are damaged" in why
    assert segment_path(damaged.directory / Q, 4).read_bytes() == before


# -- what goes on meanwhile -------------------------------------------------------------------


def test_damage_in_a_segment_that_is_dropped_meanwhile_is_no_damage_any_more(pair: Pair) -> None:
    log = pair.fill(Q)
    flip(pair.leader.directory / Q, 0, PLACES["data"])

    def drop(what: str, about: dict[str, Any]) -> None:
        log.drop_before(4)

    pair.to_follower.before = drop
    found = scrub(pair.leader)
    assert (found["repaired"], found["unrepaired"]) == (0, [])
    assert_whole(pair)


def test_a_log_that_is_deleted_meanwhile_is_no_damage(pair: Pair) -> None:
    log = pair.fill(Q)
    pair.fill("queues/b", 3)
    flip(pair.leader.directory / Q, 0, PLACES["data"])
    pair.to_follower.before = lambda what, about: log.delete()
    found = scrub(pair.leader)
    assert (found["damaged"], found["repaired"], found["unrepaired"]) == (1, 0, [])
    assert found["chunks"] >= 3
    assert not log.directory.exists()


def test_a_log_that_is_begun_anew_meanwhile_is_not_written_to(pair: Pair) -> None:
    pair.fill(Q)
    flip(pair.follower.directory / Q, 0, PLACES["data"])

    def anew(what: str, about: dict[str, Any]) -> None:
        pair.follower.log(Q).delete()
        log = pair.follower.tree.log(pair.follower.directory / Q).open()
        append(log, 90, 2, TRAILER)
        log.sync()

    pair.to_leader.before = anew
    found = scrub(pair.follower)
    assert (found["repaired"], found["unrepaired"]) == (0, [])


def test_appends_and_drops_go_on_while_all_is_scrubbed(pair: Pair, damaged: PairedNode) -> None:
    log = pair.fill(Q, 40)
    for segment in (8, 40, 60):
        flip(damaged.directory / Q, segment, PLACES["data"])

    async def main() -> dict[str, Any]:
        scrubbing = asyncio.create_task(damaged.inspection.scrub())
        while not scrubbing.done():
            append(log, 90, 2, TRAILER)
            pair.sync()
            log.drop_before(log.next_offset - 60)
            await asyncio.sleep(0)
        return await scrubbing

    found = asyncio.run(main())
    assert found["unrepaired"] == []
    assert_whole(pair)


def test_a_join_waits_until_what_is_being_written_is_written(
    pair: Pair, damaged: PairedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.fill(Q)
    flip(damaged.directory / Q, 4, PLACES["data"])
    writes, may_end = threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        writes.set()
        assert may_end.wait(10)
        repair(*args)

    monkeypatch.setattr(scrubbing, "repair", slow)

    async def main() -> None:
        await damaged.inspection.repaired()
        scrub = asyncio.create_task(damaged.inspection.scrub())
        assert await asyncio.to_thread(writes.wait, 10)
        settled = asyncio.create_task(damaged.inspection.repaired())
        # Also when nobody waits for the scrub any more.
        scrub.cancel()
        await asyncio.gather(scrub, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert not settled.done()
        may_end.set()
        await asyncio.wait_for(settled, 60)

    asyncio.run(main())
    assert_whole(pair)


# -- pace -------------------------------------------------------------------------------------


def test_a_pace_rests_in_proportion_to_what_it_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    rests: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    pace = Pace(0.2)
    monkeypatch.setattr(pace._stopping, "wait", lambda timeout: rests.append(timeout))
    for worked in (0.01, 0.05):
        now[0] += worked
        pace(1)
    assert rests == [pytest.approx(0.04), pytest.approx(0.2)]


def test_a_scrub_that_is_stopped_ends_at_its_next_read(pair: Pair) -> None:
    pair.fill(Q)
    pace = Pace(1.0)
    pace.stop()
    with pytest.raises(scrubbing.Stopped):
        asyncio.run(pair.leader.inspection._scrub(pace, None))
