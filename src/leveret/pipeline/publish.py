"""Publishing a plan's messages: every queue in order, each message once, bodies read where they lie.

All queues of a call go through the files together, so a file's row group is read once however many queues
have survivors in it. The broker keeps the last publishing id of each queue in the same write as the
messages; a publisher goes on after it, and ids that it has are dropped. So any number of repeated, killed
or stray publishers of one plan put each message there once, in order.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leveret.model.errors import StorageError
from leveret.pipeline.plan import PlanDirectory, QueueOrder, QueueOutcome, read_order
from leveret.pipeline.settled import Int64s
from leveret.wire.record import RECOVERY_STREAM_PREFIX, content_header, message_head

PUBLISHERS_PER_CLIENT: Final = 200
CONFIRM_TIMEOUT_S: Final = 60.0
GROUPS_UNDER_WAY: Final = 2
"""Row groups whose confirms are not yet waited for: the broker syncs one while the next is read."""
_COLUMNS: Final = ["exchange", "routing_key", "properties", "body"]
_NEWS_INTERVAL_S: Final = 0.2


class Publisher(Protocol):
    """What is needed of `stream_client.RecoveryPublisher`."""

    last_sequence: int

    def publish(self, entries: list[tuple[int, bytes]]) -> None: ...  # noqa: D102

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None: ...  # noqa: D102


class Client(Protocol):
    """What is needed of `stream_client.StreamClient`."""

    def declare_publisher(self, reference: str, stream: str) -> Publisher: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class PlanPublisher:
    """Publishes some queues of one plan.

    Args:
        connect: makes a connection to the plan's vhost; called once for every 200 queues.
        news: told now and then how many messages were sent since.
    """

    def __init__(
        self, directory: PlanDirectory, connect: Callable[[], Client], news: Callable[[int], None]
    ) -> None:
        self._directory = directory
        self._plan = directory.load()
        self._connect = connect
        self._news = news
        self._clients: list[Client] = []
        self._sent = 0
        self._told_s = time.monotonic()

    def publish(self, queues: list[str]) -> list[QueueOutcome]:
        """Publish what is left of these queues; all of it is durable in the broker when this returns.

        Raises:
            LeveretError: the broker went away or declines; what was confirmed stays.
            StorageError: a file cannot be read.
        """
        parts = defaultdict(list)
        for part in self._plan.parts:
            parts[part.queue].append(part)
        orders = [read_order(self._directory.runs, parts[queue]) for queue in queues]
        try:
            publishers = [self._declare(index, queue) for index, queue in enumerate(queues)]
            self._sweep(orders, publishers)
        finally:
            for client in self._clients:
                client.close()
        self._tell(now=True)
        return [queue_outcome(queue, order) for queue, order in zip(queues, orders, strict=True)]

    def _declare(self, index: int, queue: str) -> Publisher:
        if index % PUBLISHERS_PER_CLIENT == 0:
            self._clients.append(self._connect())
        publisher = self._clients[-1].declare_publisher(self._plan.reference, RECOVERY_STREAM_PREFIX + queue)
        self._sent += publisher.last_sequence
        return publisher

    def _sweep(self, orders: list[QueueOrder], publishers: list[Publisher]) -> None:
        sweeps = [
            order.sweeps(publisher.last_sequence) for order, publisher in zip(orders, publishers, strict=True)
        ]
        under_way: deque[dict[int, int]] = deque()
        for turn in range(max(map(len, sweeps), default=0)):
            pieces = [(index, pieces[turn]) for index, pieces in enumerate(sweeps) if turn < len(pieces)]
            for entries in self._row_groups(orders, pieces):
                last_ids = {index: batch[-1][0] for index, batch in entries.items()}
                for index, batch in entries.items():
                    publishers[index].publish(batch)
                    self._sent += len(batch)
                under_way.append(last_ids)
                if len(under_way) > GROUPS_UNDER_WAY:
                    _wait(publishers, under_way.popleft())
                self._tell()
        while under_way:
            _wait(publishers, under_way.popleft())

    def _row_groups(
        self, orders: list[QueueOrder], pieces: list[tuple[int, Int64s]]
    ) -> Iterator[dict[int, list[tuple[int, bytes]]]]:
        """Entries by queue (its index), in order; those of one row group at a time."""
        ids = np.concatenate([piece for _, piece in pieces])
        queues = np.concatenate([np.full(len(piece), index, np.int64) for index, piece in pieces])
        places = np.concatenate([orders[index].places[piece - 1] for index, piece in pieces])
        order = np.argsort(places, kind="stable")
        ids, queues, places = ids[order], queues[order], places[order]
        files = places >> 32
        bounds = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        for begin, end in pairwise(bounds):
            path = self._directory.data_dir / self._plan.files[int(files[begin])]
            rows = places[begin:end] & 0xFFFF_FFFF
            for first, last, messages in _messages(path, rows):
                at = slice(begin + first, begin + last)
                entries: dict[int, list[tuple[int, bytes]]] = {}
                numbered = zip(queues[at].tolist(), ids[at].tolist(), messages, strict=True)
                for queue, publishing_id, message in numbered:
                    entries.setdefault(queue, []).append((publishing_id, message))
                yield entries

    def _tell(self, now: bool = False) -> None:
        if self._sent and (now or time.monotonic() - self._told_s > _NEWS_INTERVAL_S):
            self._news(self._sent)
            self._sent, self._told_s = 0, time.monotonic()


def _wait(publishers: list[Publisher], last_ids: dict[int, int]) -> None:
    for index, last_id in last_ids.items():
        publishers[index].wait_confirmed(last_id, CONFIRM_TIMEOUT_S)


def _messages(path: Path, rows: Int64s) -> Iterator[tuple[int, int, list[bytes]]]:
    """Stored messages of ascending rows of a file, by row group: (first, last) place in `rows`, messages.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            groups = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
            ends = np.cumsum(groups)
            begins = ends - groups
            cuts = np.searchsorted(rows, np.append(begins, ends[-1]))
            for group, (first, last) in enumerate(pairwise(cuts.tolist())):
                if first < last:
                    table = file.read_row_group(group, columns=_COLUMNS)
                    chosen = rows[first:last] - begins[group]
                    if len(chosen) < table.num_rows:
                        table = table.take(pa.array(chosen))
                    yield first, last, _entries(table)
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{path}: {error}; restore the file from a copy and promote again") from error


def _entries(table: pa.Table) -> list[bytes]:
    columns = (table.column(name).to_pylist() for name in _COLUMNS)
    return [
        message_head(exchange, key, content_header(properties, len(body))) + body
        for exchange, key, properties, body in zip(*columns, strict=True)
    ]


def queue_outcome(queue: str, order: QueueOrder) -> QueueOutcome:
    """What publishing all of a queue's messages comes to."""
    return QueueOutcome(
        queue=queue,
        messages=len(order),
        first_ms=int(order.timestamps.min()),
        last_ms=int(order.timestamps.max()),
    )
