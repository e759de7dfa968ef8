"""Publishes a plan's messages: every queue in order, each message once, with bodies read from the archive's files.

`PlanReader` reads the messages and passes them to publishers; `PlanPublisher` connects publishers to a broker. All
queues of a call go through the files together, so a file's row group is read once for all queues with unsettled
messages in it. The broker writes the last publishing id of each queue together with the messages; a publisher
continues after that id, and the broker drops ids that it has. It takes a chunk of a segment only right behind that id.
So any number of repeated, killed or stray publishers of one plan put each message there once, in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leveret.model.errors import StorageError
from leveret.pipeline.archive.pages import check_pages
from leveret.pipeline.archive.recovery_plan import (
    PlanDirectory,
    QueueOrder,
    QueueOutcome,
    RecoveryPlan,
    RunSpan,
    read_order,
)
from leveret.pipeline.archive.settled_offsets import Int64s
from leveret.pipeline.archive.tables import RESTORE, messages_in
from leveret.pipeline.files.files import Place, opened, uncache
from leveret.pipeline.recovery.entry_positions import EntryPositions, is_of_stream
from leveret.pipeline.recovery.message_runs import BODY, SHAPE, message_runs
from leveret.pipeline.recovery.segments import SegmentPublisher
from leveret.wire.record import RECOVERY_STREAM_PREFIX
from leveret.wire.stream.publish import MessageRun

PUBLISHERS_PER_CLIENT: Final = 200
CONFIRM_TIMEOUT_S: Final = 60.0
GROUPS_UNDER_WAY: Final = 2
"""The row groups whose confirms are in flight: the broker syncs one while the next is read."""
BATCH_ROWS: Final = 2048
"""The messages of a queue that are read at once: those of usual sizes stay in the processor's cache until written."""
FILES_KEPT: Final = 4
"""The files behind the present one that stay in memory if another task may read them a little later."""
_PROGRESS_INTERVAL_S: Final = 0.2


class IngestPublisher(Protocol):
    """The used part of `stream_client.RecoveryPublisher`."""

    last_sequence: int

    def publish(self, run: MessageRun) -> None: ...  # noqa: D102

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None: ...  # noqa: D102


class IngestClient(Protocol):
    """The used part of `stream_client.StreamClient`."""

    def declare_publisher(self, reference: str, stream: str) -> IngestPublisher: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class PlanReader:
    """Reads a plan's messages from the archive's files, for any number of its queues at once.

    Args:
        sent: called with the number of messages of each row group that were passed on.
        numbers_streams: mark entries of streams for a node (`entry_positions`).
        shares_files: whether another task may read a file a little later; files behind the present one stay in
            memory then, unless all queues of the plan are read here.

    Attributes:
        plan: the plan.
    """

    def __init__(
        self,
        directory: PlanDirectory,
        sent: Callable[[int], None] = lambda messages: None,
        *,
        numbers_streams: bool = False,
        shares_files: bool = True,
    ) -> None:
        self.plan: RecoveryPlan = directory.load()
        self._directory = directory
        self._sent = sent
        self._numbers_streams = numbers_streams
        self._shares_files = shares_files
        self._entry_positions: dict[str, EntryPositions] = {}

    def orders(self, queues: Iterable[str]) -> dict[str, QueueOrder]:
        """The order of each of these queues."""
        parts = self.plan.parts_by_queue()
        return {queue: read_order(self._directory.runs, parts.get(queue, [])) for queue in queues}

    def pass_on(self, orders: Mapping[str, QueueOrder], publishers: Sequence[IngestPublisher]) -> None:
        """Pass the rests of these queues to their publishers, one a queue, until each message is confirmed.

        Raises:
            LeveretError: a publisher takes no more, or a file cannot be read.
        """
        queues, ordered = [*orders], [*orders.values()]
        files_kept = FILES_KEPT if self._shares_files and len(queues) < len(self.plan.queues) else 0
        sweeps = [
            order.sweeps(publisher.last_sequence)
            for order, publisher in zip(ordered, publishers, strict=True)
        ]
        under_way: deque[dict[int, int]] = deque()
        for turn in range(max(map(len, sweeps), default=0)):
            pieces = [(index, pieces[turn]) for index, pieces in enumerate(sweeps) if turn < len(pieces)]
            last_ids: dict[int, int] = {}
            for batch, ends_group in self._batches(ordered, pieces, files_kept):
                for index, first_id, messages in batch:
                    for run in self._runs(queues[index], ordered[index], messages, first_id):
                        publishers[index].publish(run)
                    last_ids[index] = first_id + messages.num_rows - 1
                if ends_group:
                    under_way.append(last_ids)
                    last_ids = {}
                if len(under_way) > GROUPS_UNDER_WAY:
                    _wait(publishers, under_way.popleft())
                self._sent(sum(messages.num_rows for _, _, messages in batch))
        while under_way:
            _wait(publishers, under_way.popleft())

    def _runs(self, queue: str, order: QueueOrder, messages: pa.Table, first_id: int) -> Iterator[MessageRun]:
        if self._numbers_streams and queue not in self._entry_positions and is_of_stream(messages):
            stored = [each for each in self.plan.stored_positions if each.queue == queue]
            self._entry_positions[queue] = EntryPositions(order, stored)
        numbered = self._entry_positions.get(queue)
        return message_runs(messages, first_id) if numbered is None else numbered.runs(messages, first_id)

    def _batches(
        self, orders: list[QueueOrder], pieces: list[tuple[int, Int64s]], files_kept: int
    ) -> Iterator[tuple[list[tuple[int, int, pa.Table]], bool]]:
        """Yield batches, (queue's index, first id, messages with consecutive ids), and whether they end a row group."""
        ids = np.concatenate([piece for _, piece in pieces])
        queues = np.concatenate([np.full(len(piece), index, np.int64) for index, piece in pieces])
        places = np.concatenate([orders[index].places_of(piece) for index, piece in pieces])
        order = np.argsort(places, kind="stable")
        ids, queues, places = ids[order], queues[order], places[order]
        files = places >> 32
        bounds = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        been_read: deque[Place] = deque()
        for begin, end in pairwise(bounds):
            path = self._directory.data_dir / self.plan.files[int(files[begin])]
            rows = places[begin:end] & 0xFFFF_FFFF
            # Smaller batches of many queues would be cut into small chunks.
            for first, last, messages, ends_group in _messages(path, rows, BATCH_ROWS * len(pieces)):
                at = slice(begin + first, begin + last)
                yield list(_by_queue(queues[at], ids[at], messages)), ends_group
            been_read.append(path)
            if len(been_read) > files_kept:
                # The broker gets the memory for its writes: new memory would cost it as much as all other work.
                uncache(been_read.popleft())


class PlanPublisher:
    """Publishes some queues of one plan over connections of its own.

    Args:
        connect: makes a connection to the plan's vhost; called once for every 200 queues.
        progress: called now and then with the number of messages sent since the last call.
        numbers_streams: mark entries of streams for a node (`entry_positions`).
        reported: the last message of each queue that the reports of progress had before.
    """

    def __init__(
        self,
        directory: PlanDirectory,
        connect: Callable[[], IngestClient],
        progress: Callable[[int], None],
        *,
        numbers_streams: bool = False,
        reported: Mapping[str, int] | None = None,
    ) -> None:
        self._directory = directory
        self._connect = connect
        self._progress = progress
        self._numbers_streams = numbers_streams
        self._reported = reported or {}
        self._clients: list[IngestClient] = []
        self._sent = 0
        self._reported_s = time.monotonic()

    def publish(self, queues: list[str]) -> list[QueueOutcome]:
        """Publish the rest of these queues; all of it is durable in the broker when this returns.

        Raises:
            LeveretError: the broker is gone or refuses; confirmed messages stay.
            StorageError: a file cannot be read.
        """
        reader = PlanReader(self._directory, self._note, numbers_streams=self._numbers_streams)
        orders = reader.orders(queues)
        publishers: list[IngestPublisher] = []
        try:
            for index, queue in enumerate(queues):
                publishers.append(self._declare(index, reader.plan.reference, queue))
            reader.pass_on(orders, publishers)
            for publisher in publishers:
                if isinstance(publisher, SegmentPublisher):
                    publisher.finish()
        finally:
            for publisher in publishers:
                if isinstance(publisher, SegmentPublisher):
                    publisher.close()
            for client in self._clients:
                client.close()
        self._report(now=True)
        return [queue_outcome(queue, order) for queue, order in orders.items()]

    def _declare(self, index: int, reference: str, queue: str) -> IngestPublisher:
        if index % PUBLISHERS_PER_CLIENT == 0:
            self._clients.append(self._connect())
        publisher = self._clients[-1].declare_publisher(reference, RECOVERY_STREAM_PREFIX + queue)
        self._sent += publisher.last_sequence - self._reported.get(queue, 0)
        return publisher

    def _note(self, messages: int) -> None:
        self._sent += messages
        self._report()

    def _report(self, now: bool = False) -> None:
        if self._sent > 0 and (now or time.monotonic() - self._reported_s > _PROGRESS_INTERVAL_S):
            self._progress(self._sent)
            self._sent, self._reported_s = 0, time.monotonic()


def _wait(publishers: Sequence[IngestPublisher], last_ids: dict[int, int]) -> None:
    for index, last_id in last_ids.items():
        publishers[index].wait_confirmed(last_id, CONFIRM_TIMEOUT_S)


def _by_queue(queues: Int64s, ids: Int64s, messages: pa.Table) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield the messages of each queue, in order, cut where ids are not consecutive: (queue, first id, messages)."""
    for queue in np.unique(queues).tolist():
        rows = np.flatnonzero(queues == queue)
        mine = messages if len(rows) == len(queues) else messages.take(pa.array(rows))
        cuts = [0, *(np.flatnonzero(np.diff(ids[rows]) != 1) + 1).tolist(), len(rows)]
        for begin, end in pairwise(cuts):
            yield queue, int(ids[rows[begin]]), mine.slice(begin, end - begin)


def _messages(path: Place, rows: Int64s, batch_rows: int) -> Iterator[tuple[int, int, pa.Table, bool]]:
    """Yield the messages of ascending rows of a file, batch by batch.

    That is the first index in `rows` and the one behind the last, the messages, and whether they end a row group's.

    Raises:
        StorageError: the file cannot be read; batches before that one were yielded.
    """
    try:
        with opened(path) as source, _checked_messages(source) as (octets, file):
            begin = 0
            for group in range(file.num_row_groups):
                end = begin + file.metadata.row_group(group).num_rows
                first, last = np.searchsorted(rows, (begin, end)).tolist()
                if first < last:
                    if octets is not None:
                        check_pages(octets, file.metadata.row_group(group), [*SHAPE, BODY])
                    # A recovery has a task for each core, so Arrow's threads would only take turns.
                    batches = file.iter_batches(
                        batch_rows, row_groups=[group], columns=[*SHAPE, BODY], use_threads=False
                    )
                    for at, upto, messages in _chosen(batches, rows[first:last] - begin):
                        yield first + at, first + upto, messages, first + upto == last
                begin = end
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{path}: {error}; {RESTORE}") from error


def _chosen(batches: Iterator[pa.RecordBatch], rows: Int64s) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield those of ascending rows, batch by batch: (first, last) index in `rows`, messages."""
    begin = first = 0
    for batch in batches:
        if first == len(rows):
            return
        end = begin + batch.num_rows
        last = int(np.searchsorted(rows, end))
        if first < last:
            table = pa.Table.from_batches([batch])
            if last - first < batch.num_rows:
                table = table.take(pa.array(rows[first:last] - begin))
            yield first, last, table
        begin, first = end, last


@contextmanager
def _checked_messages(source: pa.NativeFile) -> Iterator[tuple[pa.Buffer | None, pq.ParquetFile]]:
    """The octets of a file on this machine, whose pages the caller checks, and the file; Arrow checks an object's."""
    octets = source.read_buffer() if isinstance(source, pa.MemoryMappedFile) else None
    with messages_in(source, dictionaries=SHAPE, checks=octets is None) as file:
        yield octets, file


def queue_outcome(queue: str, order: QueueOrder, count: int | None = None) -> QueueOutcome:
    """The outcome of publishing `count` of a queue's messages, or all."""
    timestamps = order.timestamps[:count]
    return QueueOutcome(
        queue=queue,
        messages=len(timestamps),
        first_ms=int(timestamps.min(initial=order.timestamps[0])),
        last_ms=int(timestamps.max(initial=order.timestamps[0])),
    )


def complete_outcome(queue: str, spans: list[RunSpan], messages: int) -> QueueOutcome:
    """The outcome of publishing all messages of a queue whose parts have these spans."""
    return QueueOutcome(
        queue=queue,
        messages=messages,
        first_ms=min(span.first_ms for span in spans),
        last_ms=max(span.last_ms for span in spans),
    )
