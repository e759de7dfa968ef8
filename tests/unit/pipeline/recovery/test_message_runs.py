from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.pipeline.recovery import message_runs as module
from leveret.pipeline.recovery.message_runs import BODY, SHAPE, message_runs
from leveret.wire.record import content_header, message_head
from leveret.wire.stream.publish import MessageRun

Row = tuple[bytes, bytes, bytes, bytes]

few = st.sampled_from([b"", b"a", b"bc"])
rows = st.lists(
    st.tuples(few, few, few, st.one_of(st.binary(max_size=40), st.just(b"0123456789"))), max_size=60
)


def table(of: list[Row]) -> pa.Table:
    columns = list(zip(*of, strict=True)) or [()] * 4
    shape = [pa.array(column, pa.binary()).dictionary_encode() for column in columns[:3]]
    return pa.table([*shape, pa.array(columns[3], pa.binary())], [*SHAPE, BODY])


def stored(row: Row) -> bytes:
    exchange, key, properties, body = row
    return message_head(exchange, key, content_header(properties, len(body))) + body


def messages(runs: list[MessageRun]) -> list[tuple[int, bytes]]:
    return [message for run in runs for message in run.messages()]


@given(rows, st.integers(60, 400), st.integers(1, 20))
def test_every_message_is_there_in_order_whatever_its_neighbours_are(
    of: list[Row], bytes_max: int, count_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RUN_BYTES_MAX", bytes_max)
        patch.setattr(module, "RUN_RECORDS_MAX", count_max)
        runs = list(message_runs(table(of), 7))
    assert messages(runs) == [(number, stored(row)) for number, row in enumerate(of, 7)]
    for run in runs:
        assert run.records <= count_max
        assert run.records == 1 or len(run.data) <= bytes_max


@given(rows, st.integers(0, 10), st.integers(0, 10))
def test_a_part_of_a_table_is_no_more_than_that(of: list[Row], first: int, count: int) -> None:
    part = table(of).slice(first, count)
    assert messages(list(message_runs(part, 1))) == [
        (number, stored(row)) for number, row in enumerate(of[first : first + count], 1)
    ]


def test_a_table_of_several_pieces_with_dictionaries_of_their_own_is_one_sequence() -> None:
    one, other = [(b"x", b"k", b"", b"1")], [(b"y", b"k", b"", b"2"), (b"x", b"k", b"", b"3")]
    runs = list(message_runs(pa.concat_tables([table(one), table(other)]), 1))
    assert messages(runs) == [(number, stored(row)) for number, row in enumerate(one + other, 1)]


def test_as_many_messages_as_fit_share_a_run() -> None:
    bodies = [(b"", b"k", b"", b"x" * 1000)] * 600
    runs = list(message_runs(table(bodies), 1))
    assert [(run.first, run.records) for run in runs] == [(1, 256), (257, 256), (513, 88)]
