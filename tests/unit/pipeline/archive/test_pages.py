"""The checksums of pages: a page that the disk altered is noticed, wherever that was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leveret.pipeline.archive.pages import check_pages
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message

COLUMNS = ("vhost", "queue", "queue_offset", "kind", "exchange", "body")


@pytest.fixture(scope="module")
def archived(new_path: Callable[[], Path]) -> bytes:
    upstream = StandbyUpstream(["/"])
    for first in range(0, 400, 20):
        bodies = [b"%d" % number * (number % 50 * 200) for number in range(first, first + 20)]
        upstream.publish("/", "a", [stored_message(body, b"ex", b"key") for body in bodies])
    data_dir = new_path()
    [file] = transfer(upstream, data_dir).files()
    return (Path(data_dir) / file.path).read_bytes()


def check(octets: bytes) -> None:
    file = pa.py_buffer(octets)
    metadata = pq.ParquetFile(pa.BufferReader(file)).metadata
    for group in range(metadata.num_row_groups):
        check_pages(file, metadata.row_group(group), COLUMNS)


def test_pages_as_they_were_written_pass(archived: bytes) -> None:
    check(archived)


@pytest.mark.parametrize("column", COLUMNS)
def test_an_altered_octet_of_a_page_is_noticed_and_the_column_named(archived: bytes, column: str) -> None:
    group = pq.ParquetFile(pa.BufferReader(archived)).metadata.row_group(0)
    [found] = [each for each in map(group.column, range(group.num_columns)) if each.path_in_schema == column]
    begin = found.dictionary_page_offset or found.data_page_offset
    altered = bytearray(archived)
    altered[begin + found.total_compressed_size - 1] ^= 1
    with pytest.raises(pa.ArrowInvalid, match=f"a page of column {column} at byte"):
        check(bytes(altered))


def test_any_header_of_a_page_is_read_or_refused(archived: bytes) -> None:
    group = pq.ParquetFile(pa.BufferReader(archived)).metadata.row_group(0)
    begin = group.column(0).dictionary_page_offset
    for place in range(begin, begin + 20):
        for octet in range(256):
            altered = bytearray(archived)
            altered[place] = octet
            try:
                check(bytes(altered))
            except pa.ArrowInvalid as error:
                assert "altered" in str(error) or "impossible size" in str(error)  # noqa: PT017
