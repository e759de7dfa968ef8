"""When publishers are stopped for want of memory or disk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.broker.alarms import Alarms, Watermark, reason

GB = 10**9


def alarms(memory: Watermark | None = None, disk: Watermark | None = None) -> Alarms:
    return Alarms(memory or Watermark(ratio=0.5), disk or Watermark(bytes_=GB), 4 * GB)


def test_memory_is_low_above_its_watermark_and_not_at_it() -> None:
    one = alarms()
    assert one.memory_limit_bytes == 2 * GB
    assert not one.measure(2 * GB, GB)
    assert one.measure(2 * GB + 1, GB)
    assert (one.mem_alarm, one.disk_free_alarm) == (True, False)
    assert not one.measure(3 * GB, GB)
    assert one.measure(GB, GB)
    assert one.active == ()


def test_a_disk_is_low_below_its_limit_and_not_at_it() -> None:
    one = alarms()
    assert not one.measure(0, GB)
    assert one.measure(0, GB - 1)
    assert (one.mem_alarm, one.disk_free_alarm) == (False, True)


def test_a_disk_that_cannot_be_asked_is_not_low() -> None:
    assert not alarms().measure(0, None)


def test_a_limit_may_be_a_size_or_a_part_of_memory_or_none() -> None:
    assert alarms(Watermark(bytes_=7, ratio=0.5)).memory_limit_bytes == 7
    assert alarms(disk=Watermark(ratio=1.5)).disk_limit_bytes == 6 * GB
    unlimited = alarms(Watermark(), Watermark())
    assert not unlimited.measure(100 * GB, 0)


def test_a_part_of_memory_beyond_all_numbers_is_no_alarm_of_memory_and_one_of_the_disk() -> None:
    endless = Watermark(ratio=1e308)
    one = alarms(endless, endless)
    assert one.measure(100 * GB, 100 * GB)
    assert (one.mem_alarm, one.disk_free_alarm) == (False, True)


def test_another_limit_counts_at_once() -> None:
    one = alarms()
    one.measure(GB, GB)
    assert one.set_memory(Watermark(ratio=0.0))
    assert one.set_disk(Watermark(bytes_=2 * GB))
    assert not one.set_disk(Watermark(bytes_=3 * GB))
    assert reason(one.active) == "low on disk & memory"
    assert one.set_memory(Watermark(ratio=0.5))
    assert reason(one.active) == "low on disk"


@given(st.lists(st.tuples(st.integers(0, 5 * GB), st.none() | st.integers(0, 5 * GB)), max_size=20))
def test_a_change_is_told_exactly_when_the_alarms_in_effect_are_others(
    measured: list[tuple[int, int | None]],
) -> None:
    one = alarms()
    for used, free in measured:
        before = one.active
        assert one.measure(used, free) == (one.active != before)
        assert one.mem_alarm == (used > 2 * GB)
        assert one.disk_free_alarm == (free is not None and free < GB)
