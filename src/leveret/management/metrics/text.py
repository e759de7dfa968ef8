"""Prometheus' text format, version 0.0.4, written in pieces. Pure.

A scrape of ten thousand queues is some hundred thousand lines. They are joined in blocks of a few hundred, so that
the sender can let other work run in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
ROWS_AT_ONCE: Final = 500

Number = int | float
Labels = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    """A metric: its name without prefix; `kind` is `counter`, `gauge` or `untyped`."""

    name: str
    kind: str
    help: str


class Row(NamedTuple):
    """One labelled object, and its values in the order of the metrics; None for a missing value."""

    labels: Labels
    values: Sequence[Number | None]


class Family(NamedTuple):
    """Metrics that are read together from the same objects, under the name in `family=`.

    Attributes:
        rows: the rows of all objects, or of the given virtual hosts' objects.
        is_summed: whether rows with equal labels are summed in every answer.
    """

    name: str
    metrics: tuple[Metric, ...]
    rows: Callable[[frozenset[str] | None], Iterable[Row]]
    is_summed: bool = False


def render(prefix: str, metrics: Sequence[Metric], rows: Iterable[Row]) -> Iterator[str]:
    """The lines of some metrics; no lock is held between pieces."""
    taken: list[tuple[str, Sequence[Number | None]]] = []
    for count, row in enumerate(rows, 1):
        taken.append((label_text(row.labels), row.values))
        if not count % ROWS_AT_ONCE:
            yield ""
    for column, metric in enumerate(metrics):
        name = prefix + metric.name
        yield f"# TYPE {name} {metric.kind}\n# HELP {name} {metric.help}\n"
        for start in range(0, len(taken), ROWS_AT_ONCE):
            block = taken[start : start + ROWS_AT_ONCE]
            yield "".join(
                [
                    f"{name}{labels} {value}\n"
                    for labels, values in block
                    if (value := values[column]) is not None
                ]
            )


def summed(
    prefix: str, metrics: Sequence[Metric], rows: Iterable[Row], *, by_labels: bool = False
) -> Iterator[str]:
    """The lines of the sums over all rows, or over rows with equal labels."""
    nothing: list[Number] = [0] * len(metrics)
    sums: dict[Labels, list[Number]] = {} if by_labels else {(): nothing}
    for count, row in enumerate(rows, 1):
        labels = row.labels if by_labels else ()
        before = sums.get(labels, nothing)
        sums[labels] = [total + (value or 0) for total, value in zip(before, row.values, strict=True)]
        if not count % ROWS_AT_ONCE:
            yield ""
    yield from render(prefix, metrics, [Row(labels, values) for labels, values in sums.items()])


def label_text(labels: Labels) -> str:
    """`{name="value",...}`, nothing for no labels."""
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in labels]) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
