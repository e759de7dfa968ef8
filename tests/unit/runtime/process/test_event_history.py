from __future__ import annotations

from pathlib import Path

import pytest

from leveret.runtime.process.event_history import EVENTS_MAX, EventHistory
from leveret.storage.state_file import StateFile


class Clock:
    """Stands still until it is set."""

    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(folder: Path, clock: Clock) -> EventHistory:
    return EventHistory(StateFile(folder / "event_history.json"), clock)


async def test_an_event_that_takes_long_is_kept_from_its_begin_on(tmp_path: Path, clock: Clock) -> None:
    history = opened(tmp_path, clock)
    rehearsal = await history.begin("rehearsal", "ops", queues=["a"])
    [row] = history.rows()
    assert (row["kind"], row["by"], row["ended_ms"], row["is_running"]) == ("rehearsal", "ops", None, True)
    history.note(rehearsal, {"event": "planned", "queues": {"a": 40}})
    history.note(rehearsal, {"event": "published", "messages": 10})
    clock.now_ms = 6_000
    [running] = history.running()
    assert (running["step"], running["done"], running["total"], running["seconds_left"]) == (
        "recovering", 10, 40, 15.0,
    )  # fmt: skip
    await history.end(rehearsal, compared=40)
    assert history.running() == []
    [row] = history.rows()
    assert (row["begun_ms"], row["ended_ms"], row["result"]) == (
        1_000,
        6_000,
        {"queues": ["a"], "compared": 40},
    )


async def test_an_event_that_its_node_did_not_survive_neither_runs_nor_has_ended(
    tmp_path: Path, clock: Clock
) -> None:
    await opened(tmp_path, clock).begin("promotion", "ops")
    [row] = opened(tmp_path, clock).rows()
    assert (row["is_running"], row["ended_ms"]) == (False, None)


async def test_what_was_declined_did_not_happen(tmp_path: Path, clock: Clock) -> None:
    history = opened(tmp_path, clock)
    await history.withdraw(await history.begin("promotion", "ops"))
    assert (history.rows(), history.running()) == ([], [])


async def test_a_higher_epoch_is_a_fail_over_and_is_told_once(tmp_path: Path, clock: Clock) -> None:
    for epoch in (1, 1, 2, 2, 5):
        clock.now_ms += 1
        await opened(tmp_path, clock).led("b", epoch)
    assert [row["result"] for row in opened(tmp_path, clock).rows()] == [
        {"epoch": 5, "leader": "b"},
        {"epoch": 2, "leader": "b"},
    ]


async def test_the_newest_are_kept_also_of_one_moment(tmp_path: Path, clock: Clock) -> None:
    history = opened(tmp_path, clock)
    for at in range(EVENTS_MAX + 3):
        await history.add("queues_led_on", queues=at)
    rows = history.rows()
    assert len(rows) == EVENTS_MAX
    assert sorted(row["result"]["queues"] for row in rows) == [*range(3, EVENTS_MAX + 3)]


async def test_a_damaged_file_and_a_disk_that_refuses_stop_nobody(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "event_history.json").write_text("no")
    history = opened(tmp_path, clock)
    assert history.rows() == []
    await history.add("rejoin", "ops")
    assert [row["kind"] for row in history.rows()] == ["rejoin"]
    await opened(tmp_path / "nowhere", clock).add("rejoin", "ops")


async def test_a_file_that_cannot_be_read_for_a_while_loses_no_event(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = opened(tmp_path, clock)
    await history.add("rejoin", "ops")

    def refuse(path: Path) -> bytes:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        await history.add("promotion", "ops")
    await history.add("rehearsal", "ops")
    assert [row["kind"] for row in history.rows()] == ["rehearsal", "rejoin"]
