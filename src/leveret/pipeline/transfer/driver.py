"""The driver of the transfer: keeps one streaming query running, and restarts it after failures.

Each start of the query begins at the manifest's end, with an empty checkpoint, because Spark's own is written without
fsync and could contradict the manifest. A log whose next records cannot be read ends the query; so it is held back
for a while, longer each time, and the others go on.

On standard output: `started`, `link` (state of a log's upstream), `stored` (a file is durable), `cut` (records from
an offset on could not be stored), `manifest_is_older` (files of lost entries stay), `compacted`, `compaction_failed`,
`restarting`, `drained`. On standard input, after the job, commands: `{"command": "job", "job": {...}}` goes on with
another job on the same data directory;
`{"command": "vhosts", "vhosts": [...], "taking_over": [...], "origins": {...}}` follows other vhosts, and leaves the
transfer of the others alone: the query goes on, and its source is told until it answers;
`{"command": "drain", "timeout_ms": n}` ends the transfer once the upstream's remaining records have been stored.
Spark keeps running for the next command (`__main__`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from threading import Thread
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from leveret.model.errors import LeveretError
from leveret.pipeline.archive.manifest import Manifest, Superseded
from leveret.pipeline.archive.once_named import once_named, title_of_lost
from leveret.pipeline.archive.ownership import claim
from leveret.pipeline.archive.sweep import sweep
from leveret.pipeline.files.files import locked, make_directory
from leveret.pipeline.files.objects import StoreFailed
from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.jobs.parent_channel import ParentChannel
from leveret.pipeline.jobs.progress import DATAGRAM_BYTES_MAX, Event, Inbox, report
from leveret.pipeline.spark.errors import cause_of
from leveret.pipeline.spark.session import empty_scratch, start_session, warm_up
from leveret.pipeline.transfer.compaction import Compaction
from leveret.pipeline.transfer.sink import StoreSink
from leveret.pipeline.transfer.source import (
    DRAIN,
    VHOSTS,
    BackedOffLog,
    TransferOptions,
    UpstreamSource,
    source_address,
    spark_options,
    with_vhosts,
)
from leveret.wire.log_name import ABSENT, label_of, node_of

LOCK_TIMEOUT_S: Final = 30.0
BACKOFF_MIN_S: Final = 0.25
BACKOFF_MAX_S: Final = 5.0
HOLD_MIN_S: Final = 2.0
HOLD_MAX_S: Final = 60.0
"""The longest time for which a vhost is held back that ended the query at the same offset again."""
_POLL_S: Final = 0.1


def run_transfer(job: TransferJob, parent: ParentChannel) -> SparkSession:
    """Transfer until a command drains it; the session keeps running.

    Raises:
        StorageError: another transfer into this data directory runs.
        ConfigError: there is no Java.
    """
    make_directory(job.root)
    with locked(job.work / "transfer.lock", LOCK_TIMEOUT_S, "transferring"), Inbox() as inbox:
        parent.on_command = inbox.wake
        scratch = empty_scratch(job.work, "transfer")
        # Before Spark starts, which may take long or fail: the archived data are there in any case.
        say_archived(Manifest(job.root), job.vhosts, parent)
        spark = start_session("transfer", job.spark, scratch, store=job.root)
        spark.dataSource.register(UpstreamSource)
        spark.dataSource.register(StoreSink)
        is_local = (spark.sparkContext.master or "").startswith("local")
        parent.say("started", is_local=is_local)
        Transfer(job, spark, inbox, parent, warms_up=is_local).run()
        return spark


def say_archived(manifest: Manifest, vhosts: Iterable[str], parent: ParentChannel) -> None:
    """Report the archived data of these vhosts, log by log: their age is the lag until new data come."""
    for vhost in vhosts:
        for log in manifest.logs_of(vhost) or [vhost]:
            files = manifest.files_of_log(log)
            parent.say(
                "archived",
                vhost=vhost,
                node=node_of(label_of(log)),
                log=log,
                next=manifest.next_by_log.get(log, 0),
                newest_ms=files[-1].max_ms if files else None,
                bytes=sum(file.bytes for file in files),
            )


class UntransferredRecords(NamedTuple):
    """Records of a log that could not be transferred: their first offset, and the time for which it is held back."""

    offset: int
    hold_s: float
    held: BackedOffLog

    @classmethod
    def next(cls, before: UntransferredRecords | None, event: Event, now_s: float) -> UntransferredRecords:
        """The trouble after one more cut.

        The first one at an offset holds nothing back, because it may be transient.
        """
        is_again = before is not None and before.offset == event["offset"]
        hold_s = min(max(before.hold_s * 2, HOLD_MIN_S), HOLD_MAX_S) if before and is_again else 0.0
        return cls(event["offset"], hold_s, BackedOffLog(now_s + hold_s, event["error"]))


class Transfer:
    """One run of the driver."""

    def __init__(
        self,
        job: TransferJob,
        spark: SparkSession,
        inbox: Inbox,
        parent: ParentChannel,
        *,
        warms_up: bool = False,
    ) -> None:
        self._job = job
        self._spark = spark
        self._inbox = inbox
        self._parent = parent
        self._checkpoint = job.work / "spark" / "transfer" / "checkpoint"
        self._compaction = Compaction(spark)
        self._stored: dict[str, int] = {}
        self._links: dict[str, Event] = {}
        self._troubles: dict[str, UntransferredRecords] = {}
        self._next_job: TransferJob | None = None
        self._followed: Event = {"number": 0}
        """What the query's source is to be told of its vhosts, and the number of that."""
        self._taken = 0
        self._left: set[str] = set()
        """The vhosts that left the query."""
        self._warms_up = warms_up
        self._is_older = False
        self._drain_from_s: float | None = None
        self._drain_until_s = 0.0

    def run(self) -> None:
        """Keep the query running until drained."""
        backoff_s = BACKOFF_MIN_S
        while not self._is_drained():
            if self._next_job is not None:
                self._job, self._next_job = self._next_job, None
                self._troubles.clear()
            started_s = time.monotonic()
            error = self._run_query()
            if error is None:
                continue
            if time.monotonic() - started_s > BACKOFF_MAX_S:
                backoff_s = BACKOFF_MIN_S
            self._parent.say("restarting", error=cause_of(error), after_ms=int(backoff_s * 1000))
            self._pause(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
        self._compaction.stop()
        self._parent.say("drained", complete=self._has_all())

    def _run_query(self) -> Exception | None:
        """Start the query, and run it until there is another task; return its error if it failed."""
        # It may not know a log of the last one, such as that of an upstream that had not told its nodes yet.
        self._links.clear()
        try:
            query = self._start()
        except (StoreFailed, Superseded) as error:
            return error
        while query.isActive and not self._is_drained() and self._next_job is None:
            if self._taken != self._followed["number"]:
                # A report may be lost, and the source of a new query does not listen yet.
                report(source_address(self._inbox.address), VHOSTS, **self._followed)
            self._pass_on(self._inbox.wait(_POLL_S))
            self._compact()
        failed = query.exception()
        query.stop()
        self._pass_on(self._inbox.wait(0))
        return failed

    def _start(self) -> StreamingQuery:
        """Start the query from the manifest."""
        manifest = Manifest(self._job.root)
        manifest.check()
        if self._job.terms is not None:
            claim(manifest, self._job.terms)
        sweep(manifest, self._job.work, self._job.terms)
        self._say_lost(manifest)
        self._stored = dict(manifest.next_by_log)
        self._taken = self._followed["number"]
        self._left.clear()
        say_archived(manifest, self._job.vhosts, self._parent)
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        options = spark_options(
            TransferOptions(
                job=self._job,
                inbox=self._inbox.address,
                cores=self._spark.sparkContext.defaultParallelism,
                begun=manifest.number,
                held={log: trouble.held for log, trouble in self._troubles.items()},
            )
        )
        return (
            self._spark.readStream.format(UpstreamSource.name())
            .options(**options)
            .load()
            .writeStream.format(StoreSink.name())
            .options(**options)
            .option("checkpointLocation", self._checkpoint.as_uri())
            .queryName("transfer")
            .start()
        )

    def _say_lost(self, manifest: Manifest) -> None:
        """Report once that the manifest is an older copy: the upstream has the records of its lost entries, or not."""
        lost = once_named(manifest)
        if lost and not self._is_older:
            self._parent.say("manifest_is_older", error=title_of_lost(manifest, lost))
        self._is_older = bool(lost)

    def _compact(self) -> None:
        try:
            for row in self._compaction.turn(self._job):
                self._parent.say("compaction_failed" if "error" in row else "compacted", **row)
        except (LeveretError, OSError) as error:
            # Such as a full disk, on which the transfer may go on.
            self._parent.say("compaction_failed", error=str(error))

    def _pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not self._is_drained():
            self._pass_on(self._inbox.wait(_POLL_S))

    def _pass_on(self, events: list[Event]) -> None:
        for event in events:
            match event["event"]:
                case "stored":
                    self._stored[event["log"]] = event["next"]
                case "taken":
                    self._taken = event["number"]
                    continue
                case "link" if event["vhost"] not in self._job.vhosts:
                    continue  # It was in flight when its vhost left the job.
                case "link":
                    # The report of a stored file may have been lost; or the source has not seen that file yet.
                    stored = max(event["transferred"], self._stored.get(event["log"], 0))
                    self._stored[event["log"]] = event["transferred"] = stored
                    self._links[event["log"]] = event | {"seen_s": time.monotonic()}
                    self._warm_up_once(event["state"])
                case "cut":
                    before = self._troubles.get(event["log"])
                    self._troubles[event["log"]] = UntransferredRecords.next(before, event, time.monotonic())
            self._parent.pass_on(event)
        self._obey()

    def _warm_up_once(self, state: str) -> None:
        """Prepare Spark for a promotion, once a link works: not before, because the link would wait for it."""
        if self._warms_up and state == "connected":
            self._warms_up = False
            Thread(target=warm_up, args=[self._spark.sparkContext], name="warm up", daemon=True).start()

    def _obey(self) -> None:
        for command in self._parent.commands():
            match command.get("command"):
                case "drain":
                    self._drain_from_s = time.monotonic()
                    self._drain_until_s = self._drain_from_s + command.get("timeout_ms", 0) / 1000
                    # It would report what is unchanged a little later by itself.
                    report(source_address(self._inbox.address), DRAIN)
                    if self._troubles:
                        # The cause of unreadable records may be repaired by now, so they are requested once more.
                        self._next_job = self._job
                case "job":
                    self._next_job = msgspec.convert(command["job"], TransferJob)
                case "vhosts":
                    self._follow(with_vhosts(self._next_job or self._job, command))

    def _follow(self, job: TransferJob) -> None:
        """Go on with other vhosts: in the present query if it can take them."""
        followed: Event = {
            "number": self._followed["number"] + 1,
            "vhosts": job.vhosts,
            "taking_over": job.taking_over,
            "origins": job.origins,
        }
        # A query goes on with the offsets that it had of a vhost, which may be another one by now.
        is_back = not self._left.isdisjoint(job.vhosts)
        if (
            self._next_job is not None
            or is_back
            or len(msgspec.json.encode(followed)) > DATAGRAM_BYTES_MAX // 2
        ):
            self._next_job = job
            return
        before, self._job, self._followed = self._job, job, followed
        self._left |= {*before.vhosts} - {*job.vhosts}
        self._links = {log: link for log, link in self._links.items() if link["vhost"] in job.vhosts}
        try:
            say_archived(Manifest(job.root), sorted({*job.vhosts} - {*before.vhosts}), self._parent)
        except LeveretError:
            # The next query meets the same, and says so.
            self._next_job = job

    def _is_drained(self) -> bool:
        if self._drain_from_s is None:
            return False
        if time.monotonic() > self._drain_until_s or self._has_all():
            return True
        # What the present query says of unreadable records does not count: the next one requests them once more.
        return self._next_job is None and self._is_cut_off()

    def _has_all(self) -> bool:
        """Whether each log's node reported, after the drain began, that it has no more records, and all moves count.

        A node that does not run, and whose queues others lead, has none.
        """
        return self._all_reported() and all(
            link["state"] == ABSENT
            or (link["state"] == "connected" and self._is_here(link) and "moves_wait" not in link)
            for link in self._links.values()
        )

    def _is_cut_off(self) -> bool:
        """Whether each log's node either reported that, or has not answered since; then no move can count any more."""
        is_lost = any("error" in link for link in self._links.values())
        return self._all_reported() and all(
            "error" in link
            or link["state"] == ABSENT
            or (self._is_here(link) and (is_lost or "moves_wait" not in link))
            for link in self._links.values()
        )

    def _is_here(self, link: Event) -> bool:
        return bool(link["committed"] <= self._stored.get(link["log"], 0))

    def _all_reported(self) -> bool:
        """Whether each vhost has a log, and each log was reported on after the drain began."""
        since_s = self._drain_from_s or 0.0
        return {link["vhost"] for link in self._links.values()} >= set(self._job.vhosts) and all(
            link["seen_s"] > since_s for link in self._links.values()
        )
