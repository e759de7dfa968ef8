from __future__ import annotations

from leveret.console.sites.documents import NodePlots, Overview, PlotsDocument
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


def told(*rows: list[float | None], node: str = "a") -> NodePlots:
    return NodePlots(node, [list(row) for row in rows])


def test_what_nodes_kept_reaches_back_to_before_the_log_in() -> None:
    samples = Samples()
    names = ["messages", "lag_ms", "disk_free", "longest_step_ms"]
    past = [[at_ms, 7.0, None, 50.0, 3.0] for at_ms in range(0, 600_000, 60_000)]
    samples.take(PlotsDocument(names, [told(*past)]), 60_000)
    facts = SiteFacts("eu")
    facts.plots = PlotsDocument(names, [told([595_000, 8.0, 2_000.0, 40.0, 9.0])])
    samples.add(facts, 600_000)
    series = samples.series(day=False, now_ms=600_000)["series"]
    [run] = series["messages"]
    assert (len(run), run[0], run[-1]) == (11, (0, 7.0), (595_000, 8.0))
    assert series["lag_s"] == [[(595_000, 2.0)]]
    assert series["publish_rate"] == []


def test_numbers_of_a_clusters_nodes_add_up_or_are_those_of_the_worst() -> None:
    names = ["messages", "lag_ms", "disk_free", "longest_step_ms", "deliver_rate"]
    samples = Samples()
    nodes = [told([0, 7.0, 100.0, 50.0, 3.0, 1.5]), told([0, 2.0, 3_000.0, 40.0, 9.0, None], node="b")]
    samples.take(PlotsDocument(names, nodes), 5_000)
    series = samples.series(day=False, now_ms=0)["series"]
    assert {name: runs[0][0][1] for name, runs in series.items() if runs} == {
        "messages": 9.0,
        "lag_s": 3.0,
        "disk_free": 40.0,
        "longest_step_ms": 9.0,
        "deliver_rate": 1.5,
    }


def test_a_gap_that_a_node_reports_is_a_gap() -> None:
    samples = Samples()
    rows: list[list[float | None]] = [[at_ms, 1.0] for at_ms in (0, 60_000, 120_000, 900_000, 960_000)]
    samples.take(PlotsDocument(["messages"], [told(*rows)]), 60_000)
    runs = samples.series(day=False, now_ms=960_000)["series"]["messages"]
    assert [len(run) for run in runs] == [3, 2]


def test_a_site_without_a_history_shows_what_was_heard_and_unknown_is_no_zero() -> None:
    samples = Samples()
    samples.add(with_messages(1), 5_000)
    series = samples.series(day=False, now_ms=5_000)["series"]
    assert series["publish_rate"] == [[(5_000, 2.5)]]
    assert (series["disk_free"], series["lag_s"]) == ([], [])
