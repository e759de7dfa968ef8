"""The parts of files, by columns, are those that the manifest has."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from leveret.pipeline.archive.manifest import QueuePart, StoredFile
from leveret.pipeline.archive.settled_offsets import QueueIncarnation
from leveret.pipeline.recovery.part_columns import PartColumns, columns_of

VHOST = "shop"
Row = tuple[int, int, int, list[tuple[int, int]]]
"""A part: the number of its file, its times, and its ranges as begin and end."""

parts = st.builds(
    QueuePart,
    queue=st.sampled_from("ab"),
    epoch=st.integers(1, 2),
    messages=st.integers(0, 1),
    ranges=st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), max_size=3),
    min_ms=st.integers(0, 9),
    max_ms=st.integers(10, 19),
)
archives = st.lists(st.lists(parts, max_size=4), max_size=5)


def files_with(archive: list[list[QueuePart]]) -> list[StoredFile]:
    return [
        StoredFile(
            vhost=VHOST,
            path=f"{number}",
            first=0,
            next=0,
            records=0,
            bytes=0,
            min_ms=0,
            max_ms=0,
            queues=queues,
        )
        for number, queues in enumerate(archive)
    ]


def rows_of(columns: PartColumns) -> dict[QueueIncarnation, list[Row]]:
    found: dict[QueueIncarnation, list[Row]] = {}
    places = dict(columns.ranges_by_incarnation())
    for part, number in enumerate(columns.incarnation_of.tolist()):
        incarnation = columns.incarnations[number]
        mine = columns.owners == part
        assert set(np.flatnonzero(mine)) <= set(range(*places.get(incarnation, slice(0)).indices(len(mine))))
        ranges = list(zip(columns.firsts[mine].tolist(), columns.ends[mine].tolist(), strict=True))
        row = int(columns.files[part]), int(columns.min_ms[part]), int(columns.max_ms[part]), ranges
        found.setdefault(incarnation, []).append(row)
    return found


@given(archives, st.integers())
def test_columns_have_the_parts_with_messages_by_incarnation_and_file(
    archive: list[list[QueuePart]], seed: int
) -> None:
    expected: dict[QueueIncarnation, list[Row]] = {}
    for number, queues in enumerate(archive):
        for part in queues:
            if part.messages:
                ranges = [(first, first + count) for first, count in part.ranges]
                incarnation = QueueIncarnation(VHOST, part.queue, part.epoch)
                row = number, part.min_ms, part.max_ms, ranges
                expected.setdefault(incarnation, []).append(row)
    columns = columns_of(files_with(archive))
    assert rows_of(columns) == expected
    kept = np.array([Random(seed + part).random() < 0.5 for part in range(len(columns.files))], np.bool_)
    left = iter(kept.tolist())
    ordered = [
        expected[columns.incarnations[number]] for number in dict.fromkeys(columns.incarnation_of.tolist())
    ]
    chosen = [[row for row in rows if next(left)] for rows in ordered]
    assert list(rows_of(columns.only(kept)).values()) == [rows for rows in chosen if rows]
