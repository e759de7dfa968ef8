from __future__ import annotations

from leveret.core.replication.unacked_age import UnackedAge


def test_it_grows_from_the_oldest_frame_that_was_not_acked() -> None:
    age = UnackedAge()
    assert age.ms(5) == 0
    for position, at_ms in ((10, 100), (20, 200), (20, 900), (30, 1000)):
        age.sent(position, at_ms)
    assert age.ms(2000) == 1900
    age.acked(10)
    assert age.ms(2000) == 1800, "a frame without a change is not younger than what is before it"
    age.acked(25)
    assert age.ms(2000) == 1000
    age.acked(30)
    age.sent(30, 3000)
    assert age.ms(9000) == 0


def test_of_very_many_frames_the_oldest_is_known() -> None:
    age = UnackedAge()
    for number in range(1, 50_001):
        age.sent(number, number)
    assert age.ms(50_000) == 49_999
    assert len(age._sent) <= 1024
    age.acked(49_000)
    assert 999 <= age.ms(50_000) < 1200
    age.acked(50_000)
    assert age.ms(50_000) == 0
