from __future__ import annotations

from leveret.console.sites.documents import Overview, StandbyDetails, TransferredVhost
from leveret.console.sites.facts import SiteFacts
from leveret.console.sites.samples import HOUR_MS, Samples


def with_messages(count: int) -> SiteFacts:
    facts = SiteFacts("eu")
    facts.overview = Overview(
        queue_totals={"messages": count}, message_stats={"publish_details": {"rate": 2.5}, "publish": 9}
    )
    return facts


def test_a_gap_in_hearing_is_a_gap_in_the_series() -> None:
    samples = Samples()
    for at_ms in (0, 5_000, 10_000, 60_000, 65_000):
        samples.add(with_messages(at_ms), at_ms)
    runs = samples.series(day=False, now_ms=65_000)["series"]["messages"]
    assert [[at_ms for at_ms, _ in run] for run in runs] == [[0, 5_000, 10_000], [60_000, 65_000]]


def test_an_hour_and_a_day_take_bounded_memory() -> None:
    samples = Samples()
    for at_ms in range(0, 30 * HOUR_MS, 5_000):
        samples.add(with_messages(1), at_ms)
    now_ms = 30 * HOUR_MS
    assert sum(map(len, samples.series(day=False, now_ms=now_ms)["series"]["messages"])) <= 721
    assert sum(map(len, samples.series(day=True, now_ms=now_ms)["series"]["messages"])) <= 721


def test_the_lag_is_that_of_the_slowest_vhost_and_unknown_is_no_zero() -> None:
    facts = with_messages(1)
    samples = Samples()
    samples.add(facts, 0)
    facts.standby = StandbyDetails(
        vhosts=[TransferredVhost("a", lag_ms=100), TransferredVhost("b", lag_ms=2_000)]
    )
    samples.add(facts, 5_000)
    series = samples.series(day=False, now_ms=5_000)["series"]
    assert series["lag_s"] == [[(5_000, 2.0)]]
    assert series["publish_rate"] == [[(0, 2.5), (5_000, 2.5)]]
    assert series["disk_free"] == []
