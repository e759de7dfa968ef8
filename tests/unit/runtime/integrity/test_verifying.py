"""runtime.integrity.verifying: two nodes are compared while they go on, and what differs is named."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from leveret.model.errors import NotFound
from leveret.runtime.integrity import answers as answering
from leveret.runtime.integrity import verifying
from leveret.wire.chunk import HEADER_BYTES
from tests.unit.runtime.replication.pair import Pair, PairedNode
from tests.unit.storage.logs import append, scratch
from tests.unit.storage.places import TRAILER, flip, segment_path

Q = "queues/a"
CHUNK_BYTES = HEADER_BYTES + 90 + len(TRAILER)
NAMED_BYTES = 10 + len(Q)
"""A segment's first chunk names the log."""
DATA, TRAILER_AT = HEADER_BYTES + 5, HEADER_BYTES + 90 + 3


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(verifying, "_PAUSES_S", (0.0, 0.001))
    with scratch() as directory:
        pair = Pair(directory)
        yield pair
        pair.close()


@pytest.fixture(params=["one", "two"])
def asked(request: pytest.FixtureRequest, pair: Pair) -> PairedNode:
    """The node that is asked to compare: the leader, or the follower."""
    return pair.nodes[request.param]


def rows(node: PairedNode, *, deep: bool = False, follower: str | None = None) -> list[dict[str, Any]]:
    return asyncio.run(node.inspection.verify(follower, deep))


def differing(node: PairedNode, *, deep: bool = False) -> dict[str, str]:
    return {row["log"]: row["detail"] for row in rows(node, deep=deep) if not row["match"]}


# -- what is the same -------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
def test_two_that_hold_the_same_match_with_a_row_a_log_and_a_state_file(
    pair: Pair, asked: PairedNode, deep: bool
) -> None:
    pair.fill("definitions", 3)
    pair.fill(Q, 8)
    pair.leader.log("queues/empty")
    pair.copying.log("queues/empty")
    pair.leader.tree.file(pair.leader.directory / "modes.json").save({"a": 1})
    found = rows(asked, deep=deep)
    assert [(row["follower"], row["log"], row["match"], row["detail"]) for row in found] == [
        ("two", "definitions", True, ""),
        ("two", Q, True, ""),
        ("two", "queues/empty", True, ""),
        ("two", "modes.json", True, ""),
    ]
    assert found[1] == {
        "follower": "two",
        "log": Q,
        "vhost": "/",
        "queue": "a",
        "first_offset": 0,
        "next_offset": 16,
        "chunks": 8,
        "octets": 8 * CHUNK_BYTES + 4 * NAMED_BYTES,
        "match": True,
        "detail": "",
    }
    assert (found[0]["vhost"], found[0]["queue"]) == (None, None)
    assert (found[3]["octets"], found[3]["chunks"]) == (
        (pair.leader.directory / "modes.json").stat().st_size,
        None,
    )


def test_a_log_is_compared_in_steps_of_a_segment(pair: Pair) -> None:
    pair.fill(Q, 8)
    rows(pair.leader)
    digests = [about for what, about in pair.to_follower.asked if what == "digest"]
    assert [(about["from"], about["to"]) for about in digests] == [(0, 4), (4, 8), (8, 12), (12, 16)]


def test_how_far_a_comparison_is_shows_while_it_runs(pair: Pair) -> None:
    pair.fill(Q, 8)
    nothing = {"running": False, "octets_done": 0, "octets_total": 0}
    inspection = pair.leader.inspection
    assert inspection.verify_status() == nothing
    seen: list[dict[str, Any]] = []

    def look(what: str, about: dict[str, Any]) -> None:
        if what == "digest":
            seen.append(inspection.verify_status())

    pair.to_follower.before = look
    (row,) = rows(pair.leader)
    done = [each["octets_done"] for each in seen]
    assert done[0] == 0
    assert done == sorted(set(done))
    assert done[-1] < row["octets"]
    assert {(each["running"], each["octets_total"]) for each in seen} == {(True, row["octets"])}
    assert inspection.verify_status() == nothing


def test_there_may_be_more_logs_than_one_answer_holds(
    pair: Pair, asked: PairedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "PAGE_LOGS", 2)
    for number in range(5):
        pair.fill(f"queues/{number}", 1)
    assert [row["log"] for row in rows(asked)] == [f"queues/{number}" for number in range(5)]


def test_the_state_file_of_a_node_alone_is_not_compared(pair: Pair) -> None:
    (pair.leader.directory / "scrub.json").write_bytes(b"{}")
    (pair.leader.directory / "replication.json").write_bytes(b"{}")
    assert rows(pair.leader) == []


# -- what goes on meanwhile -------------------------------------------------------------------


def test_it_does_not_matter_what_is_appended_while_a_log_is_compared(pair: Pair, asked: PairedNode) -> None:
    log = pair.fill(Q, 4)

    def append_more(what: str, about: dict[str, Any]) -> None:
        append(log, 50)

    pair.to_leader.before = pair.to_follower.before = append_more
    (row,) = rows(asked, deep=True)
    assert row["match"]
    assert row["next_offset"] >= 8


def test_what_is_dropped_while_a_log_is_compared_is_no_difference(pair: Pair, asked: PairedNode) -> None:
    log = pair.fill(Q, 8)

    def drop(what: str, about: dict[str, Any]) -> None:
        if what == "digest" and about["from"] == 4:
            log.drop_before(12)

    pair.to_leader.before = pair.to_follower.before = drop
    (row,) = rows(asked)
    assert row["match"], row
    assert row["chunks"] < 8
    assert row["detail"] == "a part of it was dropped meanwhile"


def test_a_follower_that_has_yet_to_drop_a_segment_matches(pair: Pair, asked: PairedNode) -> None:
    log = pair.fill(Q, 8)
    pair.copying.is_connected = False
    log.drop_before(5)
    (row,) = rows(asked)
    assert (row["match"], row["first_offset"], row["chunks"]) == (True, 4, 6)


@pytest.mark.parametrize("deep", [False, True])
def test_a_log_that_is_deleted_while_it_is_compared_has_no_row_that_differs(
    pair: Pair, asked: PairedNode, deep: bool
) -> None:
    log = pair.fill(Q, 8)

    def delete(what: str, about: dict[str, Any]) -> None:
        if what == "digest" and log.directory.exists():
            log.delete()

    pair.to_leader.before = pair.to_follower.before = delete
    assert all(row["match"] for row in rows(asked, deep=deep))


def test_a_log_that_both_delete_before_it_is_looked_at_has_no_row(pair: Pair, asked: PairedNode) -> None:
    log = pair.fill(Q, 8)

    def delete(what: str, about: dict[str, Any]) -> None:
        if what == "bounds" and "path" in about and log.directory.exists():
            log.delete()

    pair.to_leader.before = pair.to_follower.before = delete
    assert rows(asked) == []


def test_a_log_that_was_just_made_is_looked_at_again_before_it_is_missed(
    pair: Pair, asked: PairedNode
) -> None:
    pair.copying.is_connected = False
    log = pair.fill(Q, 4)
    seen = []

    def arrive(what: str, about: dict[str, Any]) -> None:
        seen.append(about)
        if len(seen) == 4:
            copy = pair.copying.log(Q)
            for segment, header, octets in log.read_segments(0, 1 << 20):
                copy.append_raw(header, octets, segment)

    pair.to_leader.before = pair.to_follower.before = arrive
    (row,) = rows(asked)
    assert (row["match"], row["chunks"]) == (True, 4)


def test_segments_may_change_their_names_while_a_log_is_compared(pair: Pair, asked: PairedNode) -> None:
    log = pair.leader.log(Q)
    for _ in range(8):
        append(log, 90, 2, TRAILER)

    def sync(what: str, about: dict[str, Any]) -> None:
        if what == "digest":
            pair.sync()

    assert [path.suffixes for path in log.directory.iterdir()].count([".segment", ".new"]) == 3
    pair.to_leader.before = pair.to_follower.before = sync
    (row,) = rows(asked, deep=True)
    assert (row["match"], row["chunks"], row["detail"]) == (True, 8, "")


# -- what differs -----------------------------------------------------------------------------


@pytest.mark.parametrize("where", [DATA, TRAILER_AT])
@pytest.mark.parametrize("damaged", ["one", "two"])
def test_a_flipped_bit_is_found_by_a_deep_comparison_only(
    pair: Pair, asked: PairedNode, where: int, damaged: str
) -> None:
    pair.fill("queues/whole")
    pair.fill(Q)
    flip(pair.nodes[damaged].directory / Q, 8, CHUNK_BYTES + NAMED_BYTES + where)
    assert differing(asked) == {}
    byte = f"damaged at offset 10, byte {CHUNK_BYTES + NAMED_BYTES} of its segment"
    assert differing(asked, deep=True) == {Q: f"offsets 8 to 12: {damaged}: it is {byte}"}


@pytest.mark.parametrize("deep", [False, True])
def test_a_damaged_header_is_always_found(pair: Pair, asked: PairedNode, deep: bool) -> None:
    pair.fill(Q)
    flip(pair.follower.directory / Q, 4, 20)
    assert list(differing(asked, deep=deep)) == [Q]


@pytest.mark.parametrize("deep", [False, True])
def test_other_chunks_than_the_leaders_are_found_though_they_are_whole(
    pair: Pair, asked: PairedNode, deep: bool
) -> None:
    log = pair.fill(Q, 3)
    pair.copying.is_connected = False
    append(log, 90, 1)
    append(pair.copying.log(Q), 91, 1)
    pair.sync()
    (detail,) = differing(asked, deep=deep).values()
    assert detail.startswith("offsets 4 to 7: one has 2 chunks of ")
    assert ", two has 2 chunks of " in detail


def test_a_segment_that_was_removed_is_missed(pair: Pair, asked: PairedNode) -> None:
    pair.fill(Q)
    segment_path(pair.follower.directory / Q, 4).unlink()
    assert list(differing(asked)) == [Q]
    segment_path(pair.follower.directory / Q, 0).unlink()
    (detail,) = differing(asked).values()
    assert detail.endswith("two: it does not have all of them")


@pytest.mark.parametrize("state", ["streaming", "delayed"])
def test_a_follower_in_step_that_lacks_a_log_or_has_one_more_differs(
    pair: Pair, asked: PairedNode, state: str
) -> None:
    """A delayed follower appends at once, and delays drops only."""
    pair.follower.state = state
    pair.copying.is_connected = False
    pair.fill("queues/lost", 1)
    pair.copying.log("queues/extra")
    assert differing(asked) == {"queues/extra": "one does not have it", "queues/lost": "two does not have it"}


@pytest.mark.parametrize("state", ["streaming", "delayed"])
def test_a_follower_in_step_that_lacks_the_end_differs(pair: Pair, asked: PairedNode, state: str) -> None:
    pair.follower.state = state
    log = pair.fill(Q, 4)
    pair.copying.is_connected = False
    append(log, 50)
    pair.sync()
    assert differing(asked) == {Q: "one ends at offset 9, two at 8"}


def test_a_follower_that_has_more_than_its_leader_differs(pair: Pair, asked: PairedNode) -> None:
    pair.fill(Q, 4)
    append(pair.copying.log(Q), 50)
    pair.follower.state = "catching_up"
    assert differing(asked) == {Q: "one ends at offset 8, two at 9"}


def test_what_a_follower_that_is_behind_lacks_is_told_and_is_no_difference(
    pair: Pair, asked: PairedNode
) -> None:
    log = pair.fill(Q, 4)
    pair.copying.is_connected = False
    pair.follower.state = "catching_up"
    append(log, 50)
    pair.fill("queues/new", 1)
    pair.leader.tree.file(pair.leader.directory / "modes.json").save({})
    assert [(row["log"], row["match"], row["detail"]) for row in rows(asked)] == [
        (Q, True, "one ends at offset 9, two at 8"),
        ("queues/new", True, "two does not have it"),
        ("modes.json", True, "two does not have it"),
    ]


def test_what_a_follower_that_is_behind_does_have_is_compared(pair: Pair, asked: PairedNode) -> None:
    pair.fill(Q)
    pair.follower.state = "catching_up"
    flip(pair.follower.directory / Q, 0, DATA)
    assert list(differing(asked, deep=True)) == [Q]


def test_a_log_that_is_on_disk_and_could_not_be_opened_differs(pair: Pair, asked: PairedNode) -> None:
    pair.fill(Q)
    flip(pair.leader.directory / Q, 4, DATA)
    assert list(pair.leader.reopen()) == [Q]
    assert differing(asked) == {
        Q: "it is on the disk of one and cannot be used: see the log there, and scrub"
    }


def test_state_files_that_differ_are_named(pair: Pair, asked: PairedNode) -> None:
    for name in ("changed", "lost", "same"):
        pair.leader.tree.file(pair.leader.directory / f"{name}.json").save({"a": 1})
    (pair.follower.directory / "changed.json").write_bytes(b"{}")
    (pair.follower.directory / "lost.json").rename(pair.follower.directory / "extra.json")
    assert differing(asked) == {
        "changed.json": "its contents differ",
        "extra.json": "one does not have it",
        "lost.json": "two does not have it",
    }


# -- who is compared --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["two", "id-of-two"])
def test_a_follower_is_chosen_by_name_or_id(pair: Pair, asked: PairedNode, name: str) -> None:
    pair.fill(Q, 1)
    assert [row["follower"] for row in rows(asked, follower=name)] == ["two"]


def test_a_follower_that_is_not_there_is_refused(pair: Pair, asked: PairedNode) -> None:
    with pytest.raises(NotFound, match="no follower 'three' is connected"):
        rows(asked, follower="three")


def test_with_nobody_there_is_nothing_to_compare(pair: Pair, asked: PairedNode) -> None:
    pair.fill(Q, 1)
    asked.peers = []
    assert rows(asked) == []


def test_a_link_that_ends_ends_the_rows_with_one_that_says_so(pair: Pair, asked: PairedNode) -> None:
    for name in ("a", "b", "c"):
        pair.fill(f"queues/{name}", 2)
    (peer,) = asked.peers

    def end(what: str, about: dict[str, Any]) -> None:
        peer.is_connected = about.get("path") != "queues/b"  # type: ignore[misc]

    peer.before = end  # type: ignore[attr-defined]
    assert [(row["log"], row["match"], row["detail"]) for row in rows(asked)] == [
        ("queues/a", True, ""),
        ("queues/b", False, "not compared: the replication link ended"),
    ]


def test_a_side_that_cannot_even_be_asked_has_a_row_that_says_so(pair: Pair, asked: PairedNode) -> None:
    (peer,) = asked.peers
    peer.is_connected = False  # type: ignore[misc]
    assert [(row["follower"], row["match"], row["detail"]) for row in rows(asked)] == [
        ("two", False, "not compared: the replication link ended")
    ]


def test_a_directory_that_is_gone_is_a_difference(pair: Pair, asked: PairedNode) -> None:
    pair.fill(Q)
    shutil.rmtree(pair.follower.directory / Q)
    assert list(differing(asked)) == [Q]
