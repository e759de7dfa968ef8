"""A plot of a run as SVG: in each row a bar for each broker, in relation to RabbitMQ; longer is better.

The axis is logarithmic, and RabbitMQ's bar ends at 1. In rows where less is better a bar is RabbitMQ's figure divided
by the broker's, so that a longer bar is better in every row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from bench.contenders import LAVINMQ, LEVERET, RABBITMQ

ROWS: Final = (
    "together",
    "many",
    "mixed-1",
    "mixed-20",
    "mixed-100",
    "acked-alone",
    "fanout-10",
    "large",
    "quorum",
    "latency-p50",
    "latency-p99",
    "conns-500-p99",
    "reply-to",
    "confirm-each-p50",
    "mirrored-mixed",
    "mixed-transfer",
    "mixed-backlog-memory",
)
BROKERS: Final = (
    (LEVERET, "Leveret", "#d9773c"),
    (LAVINMQ, "LavinMQ", "#4f8a5b"),
    (RABBITMQ, "RabbitMQ", "#8a8f98"),
)
WIDTH: Final = 860
LEFT: Final = 430
RIGHT: Final = 90
BAR: Final = 11
GAP: Final = 9
TOP: Final = 44
LABEL_CHARS: Final = 66
_SMALLEST: Final = 0.1


def svg(record: dict[str, Any]) -> str:
    """Return the plot of a run, with the rows in which RabbitMQ was measured."""
    rows = [row for name in ROWS for row in record["rows"] if row["name"] == name and RABBITMQ in row]
    brokers = [each for each in BROKERS if each[0] in record["versions"]]
    best = max((_worth(row, name) for row in rows for name, _, _ in brokers if name in row), default=1.0)
    most = max(10.0, 10 ** math.ceil(math.log10(best)))
    row_height = len(brokers) * BAR + GAP
    height = TOP + len(rows) * row_height + GAP
    parts = [*_scale(most, height), *_legend(brokers, record["versions"])]
    for place, row in enumerate(rows):
        parts += _row(row, brokers, TOP + place * row_height, most)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def write(record: dict[str, Any], target: Path) -> None:
    """Write the plot."""
    target.write_text(svg(record))


def _worth(row: dict[str, Any], broker: str) -> float:
    """Return the quality of a broker's figure, in multiples of RabbitMQ's."""
    own, other = row[broker]["median"], row[RABBITMQ]["median"]
    above, below = (own, other) if row["higher_is_better"] else (other, own)
    return max(_SMALLEST, above / below if below else _SMALLEST)


def _x(worth: float, most: float) -> float:
    share = math.log10(worth / _SMALLEST) / math.log10(most / _SMALLEST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _scale(most: float, height: int) -> Iterator[str]:
    worth = _SMALLEST
    while worth <= most * 1.001:
        x = _x(worth, most)
        yield f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - GAP}" stroke="#dddddd"/>'
        yield f'<text x="{x:.1f}" y="{TOP - 10}" text-anchor="middle" fill="#555555">{worth:g}x</text>'
        worth *= 10


def _legend(brokers: list[tuple[str, str, str]], versions: dict[str, str]) -> Iterator[str]:
    x = 8
    for name, title, colour in brokers:
        text = escape(f"{title} {versions[name]}")
        yield f'<rect x="{x}" y="8" width="11" height="11" fill="{colour}"/>'
        yield f'<text x="{x + 16}" y="18" fill="#222222">{text}</text>'
        x += 30 + 7 * len(text)


def _row(row: dict[str, Any], brokers: list[tuple[str, str, str]], y: int, most: float) -> Iterator[str]:
    title = row["title"] if len(row["title"]) <= LABEL_CHARS else row["title"][: LABEL_CHARS - 3] + "..."
    middle = y + len(brokers) * BAR / 2 + 4
    yield f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end" fill="#222222">{escape(title)}</text>'
    for place, (name, _, colour) in enumerate(brokers):
        if name not in row:
            continue
        end, top = _x(_worth(row, name), most), y + place * BAR
        yield f'<rect x="{LEFT}" y="{top}" width="{end - LEFT:.1f}" height="{BAR - 1}" fill="{colour}"/>'
        figure = f"{row[name]['median']:,.3g}" if row[name]["median"] < 100 else f"{row[name]['median']:,.0f}"
        text = escape(f"{figure} {row['unit']}")
        yield f'<text x="{end + 4:.1f}" y="{top + BAR - 2}" font-size="9" fill="#444444">{text}</text>'
