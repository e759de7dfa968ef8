from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from leveret.management.metrics.text import Metric, Row, render, summed

METRICS = (Metric("a_total", "counter", "How many"), Metric("b", "gauge", "How much"))


def test_each_metric_has_its_rows_together() -> None:
    rows = [Row((("queue", "x"),), (1, 2.5)), Row((("queue", "y"),), (3, 4))]
    assert "".join(render("p_", METRICS, rows)) == (
        "# TYPE p_a_total counter\n"
        "# HELP p_a_total How many\n"
        'p_a_total{queue="x"} 1\n'
        'p_a_total{queue="y"} 3\n'
        "# TYPE p_b gauge\n"
        "# HELP p_b How much\n"
        'p_b{queue="x"} 2.5\n'
        'p_b{queue="y"} 4\n'
    )


def test_what_has_no_value_has_no_row() -> None:
    assert "\np_b " not in "".join(render("p_", METRICS, [Row((), (1, None))]))


def test_any_name_survives_the_way_to_prometheus() -> None:
    name = 'a"b\\n\\\n}, c="d'
    text = "".join(render("p_", METRICS[1:], [Row((("queue", name),), (1,))]))
    [family] = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"queue": name}


def test_sums_are_over_all_rows() -> None:
    text = "".join(summed("p_", METRICS, [Row((("queue", str(n)),), (n, 0.5)) for n in range(5)]))
    assert "\np_a_total 10\n" in text
    assert "\np_b 2.5\n" in text


def test_sums_of_nothing_are_zero() -> None:
    assert "\np_a_total 0\n" in "".join(summed("p_", METRICS, []))


def test_sums_may_be_over_the_rows_of_the_same_labels() -> None:
    rows = [Row((("type", str(n % 2)),), (n, 1)) for n in range(4)]
    text = "".join(summed("p_", METRICS, rows, by_labels=True))
    assert 'p_a_total{type="0"} 2\np_a_total{type="1"} 4\n' in text


def test_many_rows_come_in_pieces() -> None:
    rows = [Row((("queue", str(n)),), (n, n)) for n in range(1200)]
    pieces = list(render("p_", METRICS, rows))
    assert max(piece.count("\n") for piece in pieces) == 500
    assert "".join(pieces).count("\n") == 2 * 1200 + 4
    assert list(summed("p_", METRICS, rows)).count("") == 2
