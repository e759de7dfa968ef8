from __future__ import annotations

from leveret.management.rates.plots import OWN, UNKNOWN, Gap, SummedColumns, plot_rows

COLUMNS = SummedColumns(messages=0, publish=1, deliver_get=2)


class Counted:
    """A history of which each moment is known."""

    def __init__(self, rows: dict[int, tuple[int, ...]]) -> None:
        self.rows = rows

    def at(self, time_ms: int) -> tuple[int, ...]:
        return self.rows[time_ms]


def own(times: list[int]) -> Counted:
    return Counted({time: (7, UNKNOWN, *[1] * (len(OWN) - 2)) for time in times})


def test_rates_are_those_since_the_moment_before_and_what_is_not_known_is_none() -> None:
    times = [0, 5_000, 10_000]
    sums = Counted({0: (3, 100, 50), 5_000: (4, 200, 50), 10_000: (4, 150, 60)})
    rows = plot_rows(sums, COLUMNS, own(times), times, [])
    assert [row[:6] for row in rows] == [
        [0, None, None, 3, 7, None],
        [5_000, 20.0, 0.0, 4, 7, None],
        # Counts began anew.
        [10_000, None, 2.0, 4, 7, None],
    ]


def test_a_gap_has_no_rows_and_no_rate_goes_over_it() -> None:
    times = [0, 5_000, 10_000, 15_000, 20_000]
    sums = Counted({time: (0, time, 0) for time in times})
    rows = plot_rows(sums, COLUMNS, own(times), times, [Gap(0, 15_000)])
    assert [row[:2] for row in rows] == [[0, None], [15_000, None], [20_000, 1000.0]]
