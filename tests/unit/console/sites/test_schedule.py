from __future__ import annotations

import pytest

from leveret.console.sites.schedule import (
    OFTEN_MAX_S,
    OFTEN_S,
    SELDOM_MAX_S,
    SELDOM_S,
    SILENT_S,
    PollSchedule,
)


def waits(took_s: float, askers: int = 1, *, often: bool = False) -> float:
    schedule = PollSchedule(*((OFTEN_S, OFTEN_MAX_S) if often else (SELDOM_S, SELDOM_MAX_S)))
    assert schedule.is_due(0.0)
    schedule.took(0.0, [0.01, 0.01, took_s + 0.01], askers)
    return schedule.due_in_s(0.0)


@pytest.mark.parametrize("took_s", [0.11, 0.5, 2.0, 2.9])
def test_a_node_works_for_the_console_a_hundredth_of_the_time_at_each_kind_of_round(took_s: float) -> None:
    assert took_s / waits(took_s) <= 0.01001


def test_the_way_to_a_far_site_is_not_taken_for_work_of_its_node() -> None:
    schedule = PollSchedule(SELDOM_S, SELDOM_MAX_S)
    schedule.took(0.0, [0.4, 0.41, 0.4, 0.45])
    assert schedule.due_in_s(0.0) == SELDOM_S


def test_a_quick_site_is_asked_at_the_interval_and_a_very_slow_one_at_last() -> None:
    assert waits(0.01) == SELDOM_S
    assert waits(60.0) == SELDOM_MAX_S


def test_several_users_share_the_time_of_a_site() -> None:
    assert waits(0.01, askers=3) == 3 * SELDOM_S


def test_a_slow_site_is_asked_how_it_does_all_the_same() -> None:
    assert waits(4.0, often=True) == OFTEN_MAX_S


def test_a_silent_site_is_tried_again_soon_and_a_change_is_looked_at_at_once() -> None:
    schedule = PollSchedule(SELDOM_S, SELDOM_MAX_S)
    schedule.failed(100.0)
    assert not schedule.is_due(100.0 + SILENT_S - 0.1)
    assert schedule.is_due(100.0 + SILENT_S)
    schedule.took(100.0, [1.0, 0.0])
    schedule.hurry()
    assert schedule.is_due(101.0)
