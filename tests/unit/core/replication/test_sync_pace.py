"""core.replication.sync_pace: RabbitMQ's unit_classic_mirrored_queue_sync_throttling_SUITE, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.replication.sync_pace import MEASURED_MS, SyncPace, pause_ms


@pytest.mark.parametrize(("bytes_s_max", "waits_ms"), [(100, 0), (200, 0), (50, 1000), (0, 0)])
def test_get_time_diff(bytes_s_max: int, waits_ms: int) -> None:
    assert pause_ms(100, 1000, bytes_s_max) == waits_ms


def test_append_to_acc() -> None:
    """What was sent counts, until the pace was measured; without a limit nothing does."""
    unlimited, limited = SyncPace(0, 0), SyncPace(100, 0)
    for now_ms in (10, 20):
        assert unlimited.sent(10, now_ms) == limited.sent(10, now_ms) == 0
    assert unlimited.sent(10, 200) == 0
    assert limited.sent(10, 200) == 100


def test_nothing_is_measured_before_50_ms_have_passed() -> None:
    pace = SyncPace(1000, 0)
    assert pace.sent(1000, MEASURED_MS) == 0
    assert pace.sent(0, MEASURED_MS + 1) == 1000 - (MEASURED_MS + 1)


def test_no_more_is_sent_at_once_than_in_a_second() -> None:
    pace = SyncPace(1000, 0)
    assert pace.sent(600, 1) == 0
    assert pace.sent(600, 2) == 1200 - 2
    assert pace.sent(1000, 1200) == 0


def test_a_new_limit_holds_at_once() -> None:
    pace = SyncPace(100, 0)
    pace.sent(1000, 100)
    assert pace.wait_ms(100, 200) == 9800
    assert pace.wait_ms(1000, 200) == 0
    assert pace.sent(1000, 200) == 0
    assert pace.sent(1000, 201) == pace.wait_ms(1000, 201) == 1999


def test_what_was_measured_once_does_not_count_again() -> None:
    pace = SyncPace(1000, 0)
    assert pace.sent(200, 100) == 100
    assert pace.sent(200, 300) == 100
    assert pace.sent(100, 500) == 0
    assert pace.sent(100, 600) == 0


@given(
    bytes_s_max=st.integers(1, 10**6),
    batches=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 500)), min_size=1, max_size=30),
)
def test_after_each_pause_no_more_was_sent_than_the_limit_allows(
    bytes_s_max: int, batches: list[tuple[int, int]]
) -> None:
    pace, now_ms, sent, pauses = SyncPace(bytes_s_max, 0), 0, 0, 0
    for octets, took_ms in batches:
        now_ms += took_ms
        sent += octets
        wait_ms = pace.sent(octets, now_ms)
        now_ms += wait_ms
        if wait_ms:
            pauses += 1
            assert sent * 1000 <= bytes_s_max * (now_ms + pauses)
