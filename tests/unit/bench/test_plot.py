from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from bench import plot, report
from bench.__main__ import ROW_NAMES
from bench.rows import Reading, Row

RATE = Row("mixed-1", "a rate", "msg/s", True)
TIME = Row("latency-p50", "a time & more", "ms", False)
OTHER = Row("small", "not plotted", "msg/s", True)
SVG = "{http://www.w3.org/2000/svg}"


def drawn(*brokers: str, **values: float) -> ElementTree.Element:
    """Draw two rows; each value is a broker's rate, and its time is as many milliseconds."""
    rows = [
        report.row_record(row, {name: [Reading(value)] for name, value in values.items()})
        for row in (RATE, TIME, OTHER)
    ]
    return ElementTree.fromstring(plot.svg({"rows": rows, "versions": dict.fromkeys(brokers, "1.0")}))


def bars(root: ElementTree.Element) -> list[dict[str, Any]]:
    return [one.attrib for one in root.iter(f"{SVG}rect") if one.attrib.get("x") == str(plot.LEFT)]


def test_a_bar_is_longer_where_the_broker_is_better_and_shorter_where_it_is_slower() -> None:
    leveret, rabbit, leveret_time, rabbit_time = (
        float(one["width"]) for one in bars(drawn("leveret", "rabbitmq", leveret=400.0, rabbitmq=100.0))
    )
    assert rabbit == rabbit_time
    assert leveret_time < rabbit < leveret


def test_lavinmq_has_bars_where_it_was_measured() -> None:
    root = drawn("leveret", "rabbitmq", "lavinmq", leveret=4.0, rabbitmq=1.0, lavinmq=2.0)
    assert len(bars(root)) == 6
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert "LavinMQ 1.0" in texts
    assert "a time & more" in texts
    assert "not plotted" not in texts


def test_every_row_of_the_plot_is_a_row_of_the_benchmark() -> None:
    assert set(plot.ROWS) <= set(ROW_NAMES)


def test_an_empty_run_is_a_plot_too(tmp_path: Path) -> None:
    plot.write({"rows": [], "versions": {"leveret": "1", "rabbitmq": "1"}}, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")
