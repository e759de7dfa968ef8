"""Archives of a standby of any size, written in seconds: files as a transfer writes them, without messages of a broker.

`python -m bench.archives DIR --messages N` writes one. Each queue gets its messages in runs of 100, and a settlement
behind each run. A file has the runs of 500 queues, so a queue is in every 20th file of an archive of 10,000 queues.

scattered   the last message of each run is never settled: one of 100, in every file
in order    all messages but those of the last hundredth of the files are settled, as in queues that are consumed
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from leveret.model.reasons import Reason
from leveret.pipeline.archive.decode import MESSAGE, NO_MESSAGE, RECORDS, SETTLEMENT, SETTLEMENTS
from leveret.pipeline.archive.manifest import Manifest, QueuePart, StoredFile
from leveret.pipeline.archive.store import DATA, ROW_GROUP_ROWS, SETTLED, range_name, records_writer
from leveret.pipeline.archive.tables import write_table
from leveret.pipeline.files.files import name_in, vhost_directory
from leveret.wire.record import Settlement, encode_settlements

VHOST: Final = "/"
RUN: Final = 100
"""Messages of a queue side by side."""
QUEUES_OF_FILE: Final = 500
MESSAGES_OF_FILE: Final = RUN * QUEUES_OF_FILE
BEGIN_MS: Final = 1_790_000_000_000
FILE_MS: Final = 1000
_EPOCH: Final = 1
_BODY: Final = b"order no"
_PROPERTIES: Final = b"\x10\x00\x02"
_ENTRY_FILES: Final = 100
"""Files of an entry of the manifest."""


class Shape(NamedTuple):
    """The size of an archive."""

    messages: int
    queues: int = 10_000
    scattered: bool = True

    @property
    def files(self) -> int:
        """The number of its files."""
        return max(1, self.messages // MESSAGES_OF_FILE)

    @property
    def unsettled(self) -> int:
        """The number of messages that are left."""
        left = QUEUES_OF_FILE if self.scattered else MESSAGES_OF_FILE
        return left * (self.files if self.scattered else self._kept_files)

    @property
    def _kept_files(self) -> int:
        return max(1, self.files // RUN)

    def settled_of_run(self, file: int) -> int:
        """The number of the first messages of a file's runs that are settled."""
        if self.scattered:
            return RUN - 1
        return 0 if file >= self.files - self._kept_files else RUN

    def queues_of(self, file: int) -> list[str]:
        """The queues with messages in a file."""
        begin = file * QUEUES_OF_FILE
        return [f"q{number % self.queues:05}" for number in range(begin, begin + QUEUES_OF_FILE)]

    def first_offset(self, file: int) -> int:
        """The offset of each run of a file in its queue."""
        return file * QUEUES_OF_FILE // self.queues * (RUN + 1)


def write_archive(data_dir: Path, shape: Shape) -> Manifest:
    """Write an archive to a directory without one.

    Raises:
        StorageError: the disk refuses.
    """
    if shape.queues % QUEUES_OF_FILE:
        raise ValueError(f"the number of queues is a multiple of {QUEUES_OF_FILE}")
    manifest = Manifest(data_dir)
    directory = data_dir / DATA / vhost_directory(VHOST)
    directory.mkdir(parents=True)
    for begin in range(0, shape.files, _ENTRY_FILES):
        end = min(begin + _ENTRY_FILES, shape.files)
        manifest.append([_write_file(data_dir, directory, shape, number) for number in range(begin, end)])
    return manifest


def _write_file(data_dir: Path, directory: Path, shape: Shape, number: int) -> StoredFile:
    queues, offset = shape.queues_of(number), shape.first_offset(number)
    at_ms, settled = BEGIN_MS + number * FILE_MS, shape.settled_of_run(number)
    rows = QUEUES_OF_FILE * (RUN + 1)
    first = number * rows
    path = directory / (range_name(first, first + rows, "") + ".parquet")
    with records_writer(path) as writer:
        writer.write_batch(_records(queues, offset, at_ms, settled), row_group_size=ROW_GROUP_ROWS)
    sidecar = path.with_suffix(SETTLED)
    size = path.stat().st_size + write_table(sidecar, _settlements(queues, offset, at_ms, settled))
    parts = [
        QueuePart(
            queue,
            _EPOCH,
            messages=RUN,
            settled=settled,
            ranges=[(offset, RUN + 1)],
            min_ms=at_ms,
            max_ms=at_ms + RUN,
            type="classic",
            settled_span=(offset, offset + settled - 1) if settled else None,
        )
        for queue in queues
    ]
    return StoredFile(
        vhost=VHOST,
        path=name_in(data_dir, path),
        settlements=name_in(data_dir, sidecar),
        first=first,
        next=first + rows,
        records=rows,
        bytes=size,
        min_ms=at_ms,
        max_ms=at_ms + RUN,
        queues=parts,
    )


def _records(queues: list[str], offset: int, at_ms: int, settled: int) -> pa.RecordBatch:
    """The rows of a file: of each queue a run of messages, and the settlement record behind it."""
    rows = len(queues) * (RUN + 1)
    within = np.tile(np.arange(RUN + 1), len(queues))
    is_settlement = within == RUN
    ranges = [Settlement(Reason.ACKED, offset, settled)] if settled else []
    octets = encode_settlements(ranges)
    which = pa.array(is_settlement.astype(np.int32))

    def content(message: bytes, settlement: bytes = b"") -> pa.Array:
        return pa.array([message, settlement], pa.binary()).take(which)

    owners = np.repeat(np.arange(len(queues), dtype=np.int32), RUN + 1)
    columns = [
        pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([VHOST])),
        pa.DictionaryArray.from_arrays(owners, pa.array(queues)),
        pa.array(np.full(rows, _EPOCH)),
        pa.array(offset + within),
        pa.array(np.where(is_settlement, SETTLEMENT, MESSAGE).astype(np.int8)),
        pa.array(at_ms + within),
        content(b"orders"),
        content(b"placed"),
        content(_PROPERTIES),
        content(_BODY, octets),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def _settlements(queues: list[str], offset: int, at_ms: int, settled: int) -> pa.Table:
    """The sidecar of a file: the settled messages of each queue, and the settlement records themselves."""
    kinds = [(offset, settled, int(Reason.ACKED), at_ms + RUN)] if settled else []
    kinds.append((offset + RUN, 1, NO_MESSAGE, 0))
    firsts, counts, reasons, times = (
        np.tile(np.array(column), len(queues)) for column in zip(*kinds, strict=True)
    )
    owners = np.repeat(np.arange(len(queues), dtype=np.int32), len(kinds))
    columns = [
        pa.DictionaryArray.from_arrays(owners, pa.array(queues)),
        pa.array(np.full(len(owners), _EPOCH)),
        pa.array(firsts),
        pa.array(counts),
        pa.array(reasons.astype(np.uint8)),
        pa.array(times),
    ]
    return pa.Table.from_arrays(columns, schema=SETTLEMENTS)


def main() -> None:
    """Write an archive as the arguments say."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.archives", description="Write an archive of a standby."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--queues", type=int, default=10_000, help=f"a multiple of {QUEUES_OF_FILE}")
    parser.add_argument(
        "--in-order", action="store_true", help="the messages that are left are the newest ones"
    )
    given = parser.parse_args()
    shape = Shape(given.messages, given.queues, not given.in_order)
    write_archive(given.directory, shape)
    print(f"{shape.files} files, {shape.unsettled} messages unsettled")


if __name__ == "__main__":
    main()
