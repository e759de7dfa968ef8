"""What a partial promotion leaves to a later one is counted exactly: a later one brings back just as much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.job import LoginCredentials, RecoverJob
from leveret.pipeline.recovery.left_out_messages import (
    count_left_out,
    count_left_out_files,
    leaves_out,
    left_out_files,
)
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.pipeline.recovery.test_unsettled import QUEUES, VHOST, Standby, play, steps


def counted(data_dir: Path, **wanted: Any) -> list[dict[str, Any]]:
    """As the driver counts it, a task a file."""
    job = RecoverJob(
        data_dir=str(data_dir), endpoint="", credentials=LoginCredentials(username="", password=""), **wanted
    )
    assert leaves_out(job)
    return count_left_out_files(
        left_out_files(Manifest(data_dir), job),
        lambda rest: [rest._replace(files=[file]) for file in rest.files],
        lambda parts: [(part.vhost, count_left_out(data_dir, part)) for part in parts],
    )


def messages(rows: list[dict[str, Any]]) -> int:
    assert all(row["messages"] and not row["unreadable_records"] for row in rows)
    return sum(row["messages"] for row in rows)


@given(before=steps, after=steps, recovered=st.booleans(), chunks_per_file=st.integers(1, 6))
@settings(max_examples=50)
def test_what_a_later_promotion_brings_back_is_what_was_counted(
    before: list[Any], after: list[Any], recovered: bool, chunks_per_file: int, new_path: Callable[[], Path]
) -> None:
    upstream = StandbyUpstream()
    play(upstream, before)
    as_of_ms = upstream.now_ms - 1
    data_dir = new_path()
    standby = Standby(data_dir, chunks_per_file)
    standby.transfer(upstream)
    if recovered:
        standby.promote(queues=["a"])
    play(upstream, after, base=1000)
    standby.transfer(upstream)
    all_out, a_only = counted(data_dir, exclude=[VHOST]), counted(data_dir, queues=["a"])
    at_a_moment = counted(data_dir, as_of_ms=as_of_ms)
    assert messages(a_only) + standby.promote(queues=["a"]) == messages(all_out)
    left = messages(counted(data_dir, as_of_ms=as_of_ms)), standby.promote(as_of_ms=as_of_ms)
    assert left[0] <= messages(at_a_moment)
    assert standby.promote() == left[0]
    assert counted(data_dir, exclude=[VHOST]) == []


def test_queues_and_vhosts_are_counted_and_what_cannot_be_read_stops_nothing(tmp_path: Path) -> None:
    upstream = StandbyUpstream([VHOST, "other"])
    for vhost in (VHOST, "other"):
        for queue in QUEUES:
            upstream.publish(vhost, queue, [stored_message(b"x")] * 3)
    upstream.settle(VHOST, "b", [(0, 1)])
    standby = Standby(tmp_path)
    standby.transfer(upstream)
    row = {"virtual_host": VHOST, "queues": 1, "messages": 2, "unreadable_records": 0}
    other = {"virtual_host": "other", "queues": 2, "messages": 6, "unreadable_records": 0}
    assert counted(tmp_path, queues=["a"], exclude=["other"]) == [row, other]
    [file] = Manifest(tmp_path).files_of("other")
    (tmp_path / file.path).unlink()
    damaged = {"virtual_host": "other", "queues": 0, "messages": 0, "unreadable_records": file.records}
    assert counted(tmp_path, queues=["a"], exclude=["other"]) == [row, damaged]


def test_what_another_node_recovers_or_the_site_does_not_follow_is_not_counted(tmp_path: Path) -> None:
    """The last node to plan counted all of the others' messages in a shared archive as left out (2026-11-30)."""
    vhosts = ("excluded", "mine", "theirs", "unfollowed")
    upstream = StandbyUpstream(vhosts)
    for vhost in vhosts:
        for queue in QUEUES:
            upstream.publish(vhost, queue, [stored_message(b"x")] * 3)
    Standby(tmp_path).transfer(upstream)
    mine = {vhost: vhost for vhost in ("mine", "unfollowed")}
    followed = ["excluded", "mine", "theirs"]
    found = counted(tmp_path, queues=["a"], exclude=["excluded"], vhosts=mine, followed=followed)
    assert [(row["virtual_host"], row["messages"]) for row in found] == [("excluded", 6), ("mine", 3)]
