"""The transfer's stream source: Spark moves descriptors, (log, first, next), not messages.

An offset of the query is {log: offset in it} (`wire.log_name`: a vhost, and in a cluster a node). It starts at the
end of the manifest, never at a checkpoint, or else at the begin of the upstream's log. That start is a micro-batch
without data, which also starts the workers, so that the first batch with data does not wait for them. An upstream
that is down, refuses, or no longer has the needed records stops its log only, and is reported; the query continues.
It also continues without a *held* log, whose next records cannot be read. `transfer.upstream_logs` knows the nodes of
an upstream cluster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise
from threading import Event, Lock, Thread
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from leveret.model.errors import LeveretError, PreconditionFailed
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.jobs.progress import Inbox, report
from leveret.pipeline.spark.worker import freeze_modules
from leveret.pipeline.transfer.order import SiteOrder
from leveret.pipeline.transfer.upstream_logs import UpstreamLog, UpstreamLogs
from leveret.pipeline.upstream.link import NEEDS_OPERATOR, state_of
from leveret.pipeline.upstream.stream_client import GapError, StreamClient
from leveret.wire.log_name import ABSENT, label_of, node_of, title_of, vhost_of
from leveret.wire.record import BEGINNING_PREFIX, EPOCH_PREFIX, FINGERPRINT_PREFIX, OUTGOING_STREAM

WAIT_S: Final = 1.0
POLL_MIN_S: Final = 0.02
POLL_MAX_S: Final = 0.2
FLOOD_BYTES_MIN: Final = 16_000_000
FLOOD_BYTES_S_MIN: Final = 50_000_000
FLOOD_SHARE: Final = 0.75
FLOOD_WAIT_S: Final = 1.0
FLOOD_POLL_S: Final = 0.1
"""During a flood, batches grow: to a share of the largest, or for a longest wait after the last began."""
LARGE_BATCH_BYTES: Final = 2_000_000
LARGE_BATCH_SHARE: Final = 0.5
"""The part of the interval after a batch of so many octets: Spark's work for it is less than that for its records."""
REPORT_INTERVAL_S: Final = 0.25
ACKNOWLEDGE_INTERVAL_S: Final = 10.0
RECORDED: Final = "recorded"
DRAIN: Final = "drain"
VHOSTS: Final = "vhosts"
"""What a source is told (`source_address`)."""
SLICE_BYTES_MIN: Final = 8_000_000
RECORD_BYTES: Final = 1_000
"""The assumed size of a record, until the upstream has reported its own."""
_STATISTICS: Final = frozenset({"first_chunk_id", "committed_offset", "committed_timestamp_ms", "bytes"})
"""What every upstream says of its outgoing log; other brokers have streams, too, and may have one of its name."""
_UNCOLLECTED: Final = (
    "vhost '{}': the upstream could not add {} records of its queues to its outgoing log, for example on a full disk: "
    "see collection_stopped in its log"
)
_MISSED: Final = (
    "{}: the node does not run, and leads queues that are collected: their last records cannot be transferred before "
    "it is back"
)

_DESCRIPTORS: Final = pa.schema(
    [
        ("log", pa.string()),
        ("first", pa.int64()),
        ("next", pa.int64()),
        ("most", pa.int64()),
        ("log_id", pa.int64()),
        ("writer", pa.int64()),
        ("endpoint", pa.string()),
        ("label", pa.string()),
    ]
)
_SQL_TYPES: Final = {pa.string(): "string", pa.int64(): "bigint"}
DESCRIPTOR: Final = ", ".join(f"{field.name} {_SQL_TYPES[field.type]}" for field in _DESCRIPTORS)

Offsets = dict[str, int]


class Slice(NamedTuple):
    """A range of a log that one task transfers.

    Attributes:
        first, next: the offset of its first record, and the one behind its last.
        most: the offset up to which later records come as well, if the upstream has them by then.
        log_id, writer: the log's id at the upstream, and its writer.
        endpoint, label: those of its node; empty for a single node.
    """

    log: str
    first: int
    next: int
    most: int
    log_id: int
    writer: int
    endpoint: str
    label: str


class BackedOffLog(msgspec.Struct, frozen=True):
    """A log that is not asked for until a moment (of `time.monotonic`, equal in all processes), with the reason."""

    until_s: float
    error: str


class FollowedVhosts(msgspec.Struct, frozen=True):
    """The fields of TransferJob that may change while a query runs."""

    vhosts: list[str]
    taking_over: list[str] = []
    origins: dict[str, int] = {}


class TransferOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of source and sink, passed through Spark: job, address for reports, number of cores.

    Attributes:
        begun: the number of the manifest's last entry at the start of the query.
        held: the logs whose next records failed repeatedly, and would end the query once more.
    """

    job: TransferJob
    inbox: str
    cores: int
    begun: int = 0
    held: dict[str, BackedOffLog] = {}


class BeginAgain(Exception):
    """The query's begin is out of date: the query ends, and the next one determines its begin."""


class UpstreamSource(DataSource):
    """Outgoing logs of an upstream."""

    @classmethod
    def name(cls) -> str:
        """For `readStream.format`."""
        return "leveret_upstream"

    def schema(self) -> str:
        """Descriptors."""
        return DESCRIPTOR

    def streamReader(self, schema: object) -> UpstreamReader:
        """The reader."""
        return UpstreamReader(read_options(self.options))


@dataclass
class Slices(InputPartition):
    """The ranges that one task transfers."""

    slices: list[Slice]

    def __init__(self, slices: list[Slice]) -> None:
        super().__init__(None)
        self.slices = slices


class UpstreamReader(DataSourceStreamReader):
    """Asks the upstream for the ends of its logs; runs in a process of its own beside the driver."""

    def __init__(self, options: TransferOptions) -> None:
        self._options = options
        self._job = options.job
        self._manifest: Manifest | None = None
        self._acknowledged: dict[str, tuple[StreamClient, int, float]] = {}
        self._record_bytes: dict[str, int] = {}
        self._logs: dict[str, tuple[int, int]] = {}
        self._identities = UpstreamIdentities(self._job.root, is_shared=self._job.terms is not None)
        self._upstream = UpstreamLogs(self._job, self._identities)
        self._order = SiteOrder(self._job, self._upstream, self._logs)
        # A clock of a machine that booted lately is below the interval, and the first batch has none to wait for.
        self._began_s = -math.inf
        self._batch_bytes = 0
        self._has_waiting = False
        self._followed: Mapping[str, object] | None = None
        """The vhosts to follow from the next look on."""
        self._checked: dict[str, StreamClient] = {}
        """By log the connection over which it was last found to go on with what is here."""
        self._using_links: AbstractContextManager[object] = nullcontext()
        """Links are not for two threads at once; without a second thread, this may be sent to executors."""
        self._drains: Event | None = None
        """Set while a drain waits for the next look; None without a second thread."""
        self._reported: dict[str, tuple[dict[str, object], float]] = {}

    def initialOffset(self) -> Offsets:
        """Empty: a first micro-batch without data finds each vhost's begin."""
        self._using_links, self._drains = Lock(), Event()
        Thread(target=self._listen, args=[self._drains], name="listen", daemon=True).start()
        return {}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The next end of the transfer; waits up to a second for new records, so that an idle query costs little.

        While publishers wait for confirms of this site, batches follow each other at once, and none grows. A batch of
        much data is followed sooner than others.
        """
        freeze_modules()
        with self._using_links:
            self._follow()
            self._acknowledge()
            if self._manifest is not None and self._manifest.waiting:
                self._order.turn(self._manifest)
            self._pause(max(0.0, self._began_s + self._interval_s() - time.monotonic()))
            # The last batch may have brought more than its end says.
            begin = self._begin_of(start)
            ends = self._next_ends(begin)
        return start if ends == begin else ends

    def _follow(self) -> None:
        """Follow other vhosts, if the driver said so, and leave the links of the others as they are."""
        followed, self._followed = self._followed, None
        if followed is None:
            return
        before, job = self._job, with_vhosts(self._job, followed)
        for vhost in before.vhosts:
            # The upstream takes a connection for one of the downstream by the name that it reports under.
            if vhost not in job.vhosts or job.reference_of(vhost) != before.reference_of(vhost):
                self._upstream.forget(vhost)
        for log in [*self._logs]:
            if vhost_of(log) not in job.vhosts or job.origins.get(log) != before.origins.get(log):
                del self._logs[log]
        for log in [*self._reported]:
            if vhost_of(log) not in job.vhosts:
                del self._reported[log]
        self._job = self._upstream.job = self._order.job = job
        report(self._options.inbox, "taken", number=followed["number"])

    def _interval_s(self) -> float:
        """The least time between the begins of the last batch and the next one."""
        if self._has_waiting:
            return 0.0
        is_large = self._batch_bytes >= LARGE_BATCH_BYTES
        return self._job.batch_interval_ms / 1000 * (LARGE_BATCH_SHARE if is_large else 1.0)

    def _next_ends(self, start: Offsets) -> Offsets:
        deadline_s = time.monotonic() + WAIT_S
        pause_s = POLL_MIN_S
        seen = start
        while True:
            if self._drains is not None and self._drains.is_set():
                self._drains.clear()
                # The drain counts what is reported from now on, also if it is unchanged.
                self._reported = {log: (last, -math.inf) for log, (last, _) in self._reported.items()}
            self._has_waiting = False
            found = {log: end for vhost in self._job.vhosts for log, end in self._look(vhost, start)}
            ends = self._limited(start, {log: end for log, end in found.items() if end >= 0})
            is_flood = ends != seen and self._is_flood(start, ends, time.monotonic() - self._began_s)
            if (ends != start and not is_flood) or time.monotonic() + pause_s > deadline_s:
                self._began_s, self._batch_bytes = time.monotonic(), self._new_bytes(start, ends)
                return ends
            seen = ends
            pause_s = FLOOD_POLL_S if is_flood else min(pause_s * 1.5, POLL_MAX_S)
            self._pause(pause_s)

    def _pause(self, seconds: float) -> None:
        """Sleep, but not while a drain waits for the next look."""
        if self._drains is None:
            time.sleep(seconds)
        else:
            self._drains.wait(seconds)

    def _new_bytes(self, start: Offsets, ends: Offsets) -> int:
        """The octets of the records between these offsets, estimated."""
        return sum((end - start.get(log, end)) * self._bytes_of(log) for log, end in ends.items())

    def _is_flood(self, start: Offsets, ends: Offsets, since_s: float) -> bool:
        """Whether so much came since the last batch that waiting pays, because Spark's own work is constant.

        It never pays while confirms wait. Records at a usual rate, which are many because the last batch took long,
        do not wait.
        """
        new_bytes = self._new_bytes(start, ends)
        is_much = new_bytes > max(FLOOD_BYTES_MIN, FLOOD_BYTES_S_MIN * since_s)
        return (
            is_much
            and not self._has_waiting
            and since_s < FLOOD_WAIT_S
            and new_bytes < self._job.batch_bytes_max * FLOOD_SHARE
        )

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The tasks: at most as many as cores, none of them small unless all are.

        In each, logs with few records come first, so that none waits for the backlog, or the trouble, of a larger one.
        """
        begin = self._begin_of(start)
        share = self._share(begin, end)
        dealt = [self._sliced(log, first, end.get(log, first), share) for log, first in begin.items()]
        slices = [piece for pieces in sorted(dealt, key=self._size_of) for piece in pieces]
        wanted = self._options.cores if end.keys() - start.keys() else len(slices)
        tasks: list[list[Slice]] = [[] for _ in range(min(self._options.cores, wanted))]
        for index, piece in enumerate(slices):
            tasks[index % len(tasks)].append(piece)
        return [Slices(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The descriptors of a task."""
        freeze_modules()
        assert isinstance(partition, Slices)
        rows = [piece._asdict() for piece in partition.slices]
        yield pa.RecordBatch.from_pylist(rows, schema=_DESCRIPTORS)

    def _look(self, vhost: str, start: Offsets) -> Iterator[tuple[str, int]]:
        """The end of each log of a vhost or, before it has a start, its begin; reports trouble."""
        known = {*self._logs_of(vhost), *(log for log in start if vhost_of(log) == vhost)}
        try:
            found = self._upstream.of(vhost)
        except LeveretError as error:
            for log in known or {vhost}:
                self._report_trouble(log, state_of(error), str(error))
                yield log, start.get(log, self._stored(log))
            return
        for each in found:
            yield each.log, self._look_at(each, start.get(each.log, -1))
        reported = {log for log in self._reported if vhost_of(log) == vhost}
        for log in (known | reported).difference(each.log for each in found):
            self._report_absent(log)
            yield log, start.get(log, self._stored(log))

    def _look_at(self, source: UpstreamLog, start: int) -> int:
        """The end of a log or, before it has a `start`, its begin; reports trouble."""
        log, link = source.log, source.link
        is_new = start < 0
        begun = self._stored(log) if is_new else start
        # A batch may end inside a chunk, which is then here as a whole, and which the upstream may have dropped.
        start = self._not_stored(log, start)
        held = self._options.held.get(log)
        if held is not None and time.monotonic() < held.until_s:
            self._report_trouble(log, NEEDS_OPERATOR, held.error)
            return begun
        try:
            stats = self._asked(source, start)
        except LeveretError as error:
            if link.is_open:
                link.failed(error)
            self._report_trouble(log, state_of(error), str(error))
            return begun
        link.worked()
        first, end = stats["first_chunk_id"], stats["committed_offset"]
        self._has_waiting |= bool(stats.get("confirms_waiting"))
        # Messages that it could not collect are missing here as much as untransferred ones.
        uncollected = stats.get("uncollected", 0)
        trouble = {"error": _UNCOLLECTED.format(vhost_of(log), uncollected)} if uncollected else {}
        if end > first:
            self._record_bytes[log] = max(1, stats["bytes"] // (end - first))
        self._report(
            log,
            # Connected means able to transfer, and the workers must still start.
            state="connecting" if is_new else "connected",
            endpoint=link.endpoint,
            committed=end + uncollected + stats.get("catching_up", 0),
            committed_ms=stats["committed_timestamp_ms"],
            missing_messages=self._identities.of(log).missing_messages,
            **trouble,
            **({"moves_wait": True} if self._do_moves_wait(vhost_of(log)) else {}),
        )
        if is_new:
            return start if start >= 0 else first
        return end

    def _asked(self, source: UpstreamLog, start: int) -> Mapping[str, int]:
        """The upstream's account of a log that goes on here at `start`.

        Raises:
            LeveretError: it does not answer, or its log does not continue what is here.
        """
        log, link = source.log, source.link
        client = source.client(self._job)
        if start < 0:
            # It may collect dropped messages anew, and so change the answer to the next request.
            client.query_offset(BEGINNING_PREFIX + self._job.reference_of(vhost_of(log)), OUTGOING_STREAM)
        stats = client.stats(OUTGOING_STREAM)
        if not stats.keys() >= _STATISTICS:
            raise PreconditionFailed(
                f"{title_of(log)}: the node at {link.endpoint} serves a stream of the name {OUTGOING_STREAM} that is "
                "no outgoing log of Leveret: set the endpoints to those of an upstream"
            )
        first, end = stats["first_chunk_id"], stats["committed_offset"]
        if stats.get("is_downstream"):
            raise PreconditionFailed(
                f"{title_of(log)}: the node at {link.endpoint} is no upstream now, but a downstream "
                "itself; the transferred records stay here and can be promoted. To follow again, set "
                "the endpoints to the node that took its place"
            )
        self._check(client, source, start, stats)
        self._checked[log] = client
        if start < 0:
            missing = stats.get("missing_messages", 0)
            self._identities.note_missing_messages(log, missing)
            is_whole = first == 0 and not missing
            # Moments are by the upstream's clock, and this one may be slow.
            now_ms = max(time.time_ns() // 1_000_000, stats["committed_timestamp_ms"])
            self._identities.note_begin(log, now_ms, is_whole=is_whole)
            # From now on the upstream keeps further records for this downstream, too.
            self._acknowledge_at(log, client, first)
        elif self._stored(log) >= end:
            # The log's records are here: no more can be missing than the log lacks.
            known = self._identities.of(log).missing_messages
            self._identities.note_missing_messages(log, min(known, stats.get("missing_messages", 0)))
        if start >= end and stats.get("has_stopped"):
            raise PreconditionFailed(
                f"{title_of(log)}: the upstream serves no later records, because it could not sync its "
                "outgoing logs: see outgoing_fdatasync_failed in its log, and restart it"
            )
        return stats

    def _check(self, client: StreamClient, source: UpstreamLog, start: int, stats: Mapping[str, int]) -> None:
        log = source.log
        first, end = stats["first_chunk_id"], stats["committed_offset"]
        found = stats.get("log_id", 0), stats.get("writer", 0)
        has_data = self._stored(log) >= 0
        if found != self._logs.get(log):
            self._identities.check(
                log,
                found[0],
                has_data=has_data,
                lost_after=self._lost_after(client, log),
                site=source.site,
                beside=self._logs_of(vhost_of(log)),
                expected=self._job.origins.get(log, 0),
            )
            if self._logs.get(log, found)[0] != found[0] and not has_data:
                raise BeginAgain(
                    f"{title_of(log)}: the upstream's outgoing log is another one, and no record came yet"
                )
            # A log that ends before what is here cannot tell whether it goes on with that, until it has grown.
            if end >= self._stored(log):
                self._logs[log] = found
        if not has_data:
            self._identities.check_begin(log)
        self._identities.note_missing(log, max(0, first - start) if start >= 0 else 0)
        if 0 <= start < first:
            raise GapError(f"{OUTGOING_STREAM} of {title_of(log)}", start, first)
        if start > end:
            raise PreconditionFailed(
                f"{title_of(log)}: {start} records were transferred but the upstream has only {end}: it is "
                "another one or has lost data; promote this standby, or delete its data and connect again"
            )

    def _lost_after(self, client: StreamClient, log: str) -> int | None:
        """The offset up to which the log is here, if the upstream has another chunk than ours before it."""
        stored = self._stored(log)
        mark, epoch = self._here.last_chunk(log)
        # The epoch identifies a chunk that is no longer retained; not alone, because two nodes may choose the same.
        for prefix, ours in ((FINGERPRINT_PREFIX, mark), (EPOCH_PREFIX, epoch)):
            theirs = client.query_offset(f"{prefix}{stored}", OUTGOING_STREAM) if ours else None
            if theirs is not None:
                return stored if theirs != ours else None
        return None

    def _limited(self, start: Offsets, ends: Offsets) -> Offsets:
        """The ends limited to one batch, shared evenly by the logs with new records."""
        share, limited = self._share(start, ends), start | ends
        for log, begin in start.items():
            if limited[log] > begin:
                limited[log] = min(limited[log], begin + max(1, share // self._bytes_of(log)))
        return limited

    def _share(self, start: Offsets, ends: Offsets) -> int:
        """The octets of a batch for each log with new records."""
        with_new = sum(end > start.get(log, end) for log, end in ends.items())
        return self._job.batch_bytes_max // max(1, with_new)

    def _sliced(self, log: str, first: int, end: int, share: int) -> list[Slice]:
        if first >= end:
            return []
        pieces = min(self._options.cores, (end - first) * self._bytes_of(log) // SLICE_BYTES_MIN)
        step = -(-(end - first) // max(1, pieces))
        bounds = [*range(first, end, step), end]
        log_id, writer = self._identities.of(log).log_id, self._logs.get(log, (0, 0))[1]
        where = self._upstream.where(log)
        # What comes until the task begins need not wait for the next batch.
        most = max(end, first + share // self._bytes_of(log))
        return [
            Slice(log, lower, upper, most if upper == end else upper, log_id, writer, *where)
            for lower, upper in pairwise(bounds)
        ]

    def _size_of(self, slices: Sequence[Slice]) -> int:
        """The octets of slices, estimated."""
        return sum((each.next - each.first) * self._bytes_of(each.log) for each in slices)

    def _begin_of(self, start: Offsets) -> Offsets:
        """The query's offsets, or those up to which the logs are here, if these are higher."""
        return {log: self._not_stored(log, offset) for log, offset in start.items()}

    def _not_stored(self, log: str, offset: int) -> int:
        """`offset`, or the one up to which a log is here, if that is higher."""
        return max(offset, self._stored(log))

    def _bytes_of(self, log: str) -> int:
        return self._record_bytes.get(log, RECORD_BYTES)

    def _stored(self, log: str) -> int:
        return self._here.next_by_log.get(log, -1)

    def _do_moves_wait(self, vhost: str) -> bool:
        """Whether moves of a vhost do not count yet; the next turn may change that."""
        return any(file.vhost == vhost for file in self._here.waiting.values())

    def _logs_of(self, vhost: str) -> list[str]:
        """The logs of a vhost with data here."""
        return self._here.logs_of(vhost)

    @property
    def _here(self) -> Manifest:
        if self._manifest is None:
            self._manifest = Manifest(self._job.root)
        return self._manifest

    def _listen(self, drains: Event) -> None:
        """Acknowledge as soon as a batch is recorded, look at once for a drain, take vhosts; in a thread of its own.

        Spark ends that batch meanwhile. Trouble is left to the next look, which meets it too.
        """
        with Inbox(source_address(self._options.inbox)) as inbox:
            while True:
                events = {event["event"]: event for event in inbox.wait(WAIT_S)}
                if VHOSTS in events:
                    self._followed = events[VHOSTS]
                if DRAIN in events:
                    drains.set()
                if RECORDED in events:
                    with self._using_links, suppress(LeveretError, OSError):
                        self._acknowledge()

    def _acknowledge(self) -> None:
        """Report the durable positions to the upstream, which may drop its records.

        Only over connections at which the log was found: where a link is opened anew, another node of the cluster may
        answer, or another upstream, and take the position for one in its own log.
        """
        if self._manifest is not None:
            self._manifest.refresh()
        for log, link in self._upstream.links():
            client, stored = link.connected, self._stored(log)
            if client is not None and client is self._checked.get(log) and stored >= 0:
                try:
                    self._acknowledge_at(log, client, stored)
                except LeveretError as error:
                    link.failed(error)

    def _acknowledge_at(self, log: str, client: StreamClient, offset: int) -> None:
        """Report new positions; also repeated ones now and then, for a restarted upstream and as a sign of life."""
        reported = self._acknowledged.get(log)
        now_s = time.monotonic()
        if (
            reported is None
            or reported[:2] != (client, offset)
            or now_s - reported[2] > ACKNOWLEDGE_INTERVAL_S
        ):
            client.store_offset(self._job.reference_of(vhost_of(log)), OUTGOING_STREAM, offset)
            self._acknowledged[log] = client, offset, now_s

    def _report_absent(self, log: str) -> None:
        """Report a log whose node does not run, or does not belong to the cluster any more."""
        if self._upstream.is_missed(log):
            self._report_trouble(log, "connecting", _MISSED.format(title_of(log)))
        else:
            self._report(log, state=ABSENT)

    def _report_trouble(self, log: str, state: str, error: str) -> None:
        self._report(
            log,
            state=state,
            error=error,
            missing=self._identities.of(log).missing,
            missing_messages=self._identities.of(log).missing_messages,
        )

    def _report(self, log: str, **details: object) -> None:
        """Report changes, and unchanged states now and then."""
        details["transferred"] = max(0, self._stored(log))
        details["log_id"] = self._identities.of(log).log_id
        before, reported_s = self._reported.get(log, ({}, 0.0))
        if details == before and time.monotonic() - reported_s < REPORT_INTERVAL_S:
            return
        self._reported[log] = details, time.monotonic()
        now_ms = time.time_ns() // 1_000_000
        report(
            self._options.inbox,
            "link",
            vhost=vhost_of(log),
            node=node_of(label_of(log)),
            log=log,
            at_ms=now_ms,
            **details,
        )


def with_vhosts(job: TransferJob, followed: Mapping[str, object]) -> TransferJob:
    """The job with other vhosts, as VHOSTS has them."""
    found = msgspec.convert(followed, FollowedVhosts)
    return msgspec.structs.replace(
        job, vhosts=found.vhosts, taking_over=found.taking_over, origins=found.origins
    )


def source_address(inbox: str) -> str:
    """Where the source of the query with this inbox is told what it cannot see: RECORDED, DRAIN and VHOSTS."""
    return f"{inbox}-source"


def read_options(options: Mapping[str, str]) -> TransferOptions:
    """Decode the options from `spark_options`; Spark hides an option of this name in plans and logs."""
    return msgspec.json.decode(options["secret"], type=TransferOptions)


def spark_options(options: TransferOptions) -> dict[str, str]:
    """The options for `.options(...)` of source and sink."""
    return {"secret": msgspec.json.encode(options).decode()}
