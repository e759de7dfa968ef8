"""Counting by names, a batch of rows at a time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.decode import MESSAGE, SETTLEMENT
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.recovery import inspect as module
from leveret.pipeline.recovery.inspect import Tally, has_replaced
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message

names = st.sampled_from([b"", b"a", b"b", b"\xff"])
rows = st.lists(st.tuples(names, names, st.sampled_from([MESSAGE, SETTLEMENT])), max_size=30)


def batch_of(found: list[tuple[bytes, bytes, int]]) -> pa.RecordBatch:
    exchanges, keys, kinds = zip(*found, strict=True) if found else ((), (), ())
    columns = [pa.array(each, pa.binary()).dictionary_encode() for each in (exchanges, keys)]
    columns.append(pa.array(kinds, pa.int8()))
    return pa.RecordBatch.from_arrays(columns, names=["exchange", "routing_key", "kind"])


@pytest.mark.parametrize("pairs_a_row", [0, 1000])
@given(batches=st.lists(st.tuples(st.sampled_from("vw"), rows), max_size=6))
def test_messages_are_counted_once_by_vhost_exchange_and_key(
    pairs_a_row: int, batches: list[tuple[str, list[tuple[bytes, bytes, int]]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PAIRS_A_ROW", pairs_a_row)
        tally = Tally()
        for vhost, found in batches:
            tally.count(vhost, batch_of(found))
    expected = Counter(
        (vhost, exchange, key) for vhost, found in batches for exchange, key, kind in found if kind == MESSAGE
    )
    counted = tally.rows()
    assert {row[:3]: row[3] for row in counted} == expected
    assert len(counted) == len(expected)


def test_files_that_the_transfer_replaced_while_they_were_read_are_told_from_damaged_ones(
    tmp_path: Path,
) -> None:
    upstream = StandbyUpstream()
    for _ in range(3):
        upstream.publish("/", "q", [stored_message(b"x")])
    seen = transfer(upstream, tmp_path, chunks_per_file=1)
    files = seen.files()
    upstream.publish("/", "q", [stored_message(b"x")])
    transferring = transfer(upstream, tmp_path)
    assert not has_replaced(seen, files), "there is only more"
    transferring.append([compact(tmp_path, files)], removed=[file.path for file in files])
    assert has_replaced(seen, files)
    assert seen.files() == Manifest(tmp_path).files()
    assert not has_replaced(seen, seen.files())
