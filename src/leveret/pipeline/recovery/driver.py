"""The driver of a recovery: finds the unsettled messages, freezes the plan, publishes it.

A promotion takes over the Spark of the transfer that it ends. Otherwise the settlements are merged while Java
starts; if no message can be unsettled, Spark is not started at all. Unfinished plans of an earlier attempt are
finished first. On standard output: `started`, `planned` (a vhost's plan is frozen, or continued, with the number of
messages of each queue), `left_out` (the messages that a partial promotion leaves to a later one), `published`
(number of further messages), `blocked` and `unblocked` (another broker, and its reason), `done` with the summary.

Spark runs up to two jobs over a few descriptors each: tasks that scan groups of files, if these are large, and
tasks that own shares of files, or whole queues, and bring their messages. A failed task is run again, and an
interrupted plan is continued; the broker drops messages that it has.

A rehearsal makes plans in a directory of its own, publishes their messages to scratch vhosts, compares the messages
there with the archive (`compare`), and deletes the plans. A dry run counts by the manifest's statistics (`dry_run`); if
these do not suffice, it makes plans as a rehearsal does.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from leveret.model.errors import PreconditionFailed
from leveret.model.moment import moment_text
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.once_named import once_named, title_of_lost
from leveret.pipeline.archive.ownership import claim
from leveret.pipeline.archive.recovery_plan import (
    PlanDirectory,
    PlanOutcome,
    QueueOutcome,
    RecoveryPlan,
    clear_scratch,
    covered_number,
    delete_forgotten,
    delete_unfrozen,
    read_order,
    spans_in_order,
    unfinished,
)
from leveret.pipeline.archive.settled_offsets import Masks
from leveret.pipeline.archive.stored_positions import StoredPositions, stored_positions_at
from leveret.pipeline.archive.sweep import RECOVERY_LOCK
from leveret.pipeline.files.files import delete_tree, locked, make_directory
from leveret.pipeline.jobs.job import RecoverJob
from leveret.pipeline.jobs.parent_channel import ParentChannel
from leveret.pipeline.jobs.progress import Inbox, report
from leveret.pipeline.recovery.counting import FoundRange, with_unsettled
from leveret.pipeline.recovery.dry_run import ReadTask, estimates, is_counted
from leveret.pipeline.recovery.file_shares import FileShare, queue_begins, shares_of, write_share
from leveret.pipeline.recovery.left_out_messages import (
    LeftOutFiles,
    count_left_out,
    count_left_out_files,
    leaves_out,
    left_out_files,
)
from leveret.pipeline.recovery.outcomes import outcome_of, summarise
from leveret.pipeline.recovery.publish import (
    PUBLISHERS_PER_CLIENT,
    IngestClient,
    PlanPublisher,
    complete_outcome,
    queue_outcome,
)
from leveret.pipeline.recovery.segment_intake import SegmentIntake
from leveret.pipeline.recovery.segments import WrittenSegment
from leveret.pipeline.recovery.spark_tasks import SparkTasks
from leveret.pipeline.recovery.targets import (
    check_queues,
    check_vhosts,
    client_of,
    in_doubt_counted,
    last_there,
    node_client,
)
from leveret.pipeline.recovery.tasks import (
    CountTask,
    PublishTask,
    ScanTask,
    TaskResult,
    balanced,
    grouped,
)
from leveret.pipeline.recovery.unsettled import (
    NumberedFile,
    UnsettledMessages,
    not_to_recover,
    write_run,
)
from leveret.pipeline.target_broker.compare import ComparisonClient

LOCK_TIMEOUT_S: Final = 60.0
RECORDS_SCANNED_HERE_MAX: Final = 2_000_000
"""To read the keys of so many records takes this process less time than the begin and the end of Spark's tasks."""
_SCAN_THREADS: Final = 4
_WRITTEN: Final = "segment_written"
_BLOCKED: Final = "publishers_blocked"


def run_recovery(job: RecoverJob, parent: ParentChannel, spark: SparkSession | None = None) -> None:
    """Recover and report `done`, with this session or with one that is started if there are messages.

    Raises:
        LeveretError: the recovery failed; the next attempt goes on from there.
    """
    make_directory(job.root)
    with locked(job.work / RECOVERY_LOCK, LOCK_TIMEOUT_S, "recovering"), Inbox() as inbox:
        RecoveryRun(job, parent, inbox, spark).run()


class RecoveryRun:
    """One run of the driver."""

    def __init__(
        self, job: RecoverJob, parent: ParentChannel, inbox: Inbox, spark: SparkSession | None = None
    ) -> None:
        self._job = job
        self._parent = parent
        self._inbox = inbox
        self._manifest = Manifest(job.root)
        # Python's collector would visit the parts of a large archive, all in use to the end, again and again.
        gc.freeze()
        self._intakes: dict[str, SegmentIntake] = {}
        self._blocked: set[str] = set()
        """The tasks whose publishers another broker blocks."""
        self._spark = SparkTasks(job, lambda: parent.say("started"), self._pass_on, inbox.wake, spark)

    def run(self) -> None:
        """Finish earlier plans, then recover the new messages."""
        job = self._job
        clear_scratch(job.root, job.owned)
        if job.terms is not None and not job.scratch:
            # Before the archive is read: a previous owner of a vhost records nothing after this.
            claim(self._manifest, job.terms)
        self._check_manifest()
        begun_s = time.monotonic()
        try:
            left = self._left()
            vhosts = self._vhosts()
            counts = is_counted(job)
            if left or (not counts and any(self._has_new_messages(vhost) for vhost in vhosts)):
                self._spark.begin()
            outcomes = self._resume(left)
            from_scratch = {
                each.vhost for each in outcomes if each.selection.start_from_scratch and not each.is_cut_short
            }
            if job.start_from_scratch:
                vhosts = [vhost for vhost in vhosts if vhost not in from_scratch]
            plans = [] if counts else self._plan(vhosts)
            if counts:
                outcomes = self._counts(vhosts)
            elif job.dry_run:
                outcomes = [self._estimate(directory, plan) for directory, plan in plans]
            else:
                outcomes += self._publish(plans)
            took_s = time.monotonic() - begun_s
            compared = self._compare(plans, outcomes) if job.compare is not None else None
            identities = UpstreamIdentities(job.root)
            self._parent.say(
                "done",
                summary=summarise(outcomes, vhosts),
                queues=[row for outcome in outcomes for row in outcome.rows()],
                recovered_s=round(took_s, 3),
                compared_s=round(time.monotonic() - begun_s - took_s, 3),
                compared=compared,
                transferred=self._transferred(identities),
                missing={vhost: identities.missing_of(vhost) for vhost in self._manifest.vhosts},
                unfollowed=[vhost for vhost in self._manifest.vhosts if job.is_unfollowed(vhost)],
                marks={log: self._manifest.last_chunk(log).mark for log in self._manifest.next_by_log},
            )
        finally:
            clear_scratch(job.root, job.owned)

    def _check_manifest(self) -> None:
        """Check that the manifest is no older copy: messages would be missing, and settled ones would come back.

        Raises:
            PreconditionFailed: it is, and not all that is available was asked for.
        """
        lost = [] if self._job.all_available else once_named(self._manifest, self._wanted)
        if lost:
            raise PreconditionFailed(
                f"{title_of_lost(self._manifest, lost)}, or add --all-available to recover what it names"
            )

    def _transferred(self, identities: UpstreamIdentities) -> dict[str, tuple[int, int]]:
        """By outgoing log, its id at the upstream, and the offset up to which it was transferred."""
        return {
            log: (identities.of(log).log_id, next_offset)
            for log, next_offset in self._manifest.next_by_log.items()
            if log in identities.by_log
        }

    def _left(self) -> list[PlanDirectory]:
        """The unfinished plans, which are finished first."""
        job = self._job
        left: list[PlanDirectory] = []
        # Before `unfinished`: their files are gone, or belong to another upstream of the same name.
        delete_forgotten(self._manifest)
        for plans in sorted({job.plans_of(vhost) for vhost in self._manifest.vhosts}):
            delete_unfrozen(job.root, plans, job.terms)
            for each in unfinished(job.root, plans, job.owned):
                # Some of the vhosts with plans may have another target in this job.
                vhost = each.load().vhost
                if not self._manifest.counts(vhost, each.path.name):
                    # A previous owner froze it after this one's claim, or an attempt was killed before it named it.
                    # Nobody carries it out, and it would pin its files for ever.
                    if not job.scratch and each.term <= (job.terms or {}).get(vhost, -1):
                        delete_tree(each.path)
                elif self._wanted(vhost) and job.plans_of(vhost) == plans:
                    left.append(each)
        if left and job.scratch:
            raise PreconditionFailed(
                "a recovery was interrupted, and the next one continues it: the messages that it would recover are "
                "not known before its end"
            )
        return left

    def _resume(self, left: list[PlanDirectory]) -> list[PlanOutcome]:
        resumed = [directory.load() for directory in left]
        check_vhosts(self._job, [plan.vhost for plan in resumed])
        check_queues(self._job, {plan.vhost: plan.queues for plan in resumed})
        plans = list(zip(left, resumed, strict=True))
        ending = [each for each in plans if self._ends(*each)]
        going_on = [each for each in plans if each not in ending]
        outcomes = [self._cut_short(directory, plan) for directory, plan in ending]
        for _, plan in going_on:
            self._say_planned(plan)
        return outcomes + self._publish(going_on)

    def _ends(self, directory: PlanDirectory, plan: RecoveryPlan) -> bool:
        """Whether an interrupted plan ends, so that a new one includes the requested part of its rest.

        A plan from scratch is carried out whole if possible, because no new plan has its settled messages.

        Raises:
            PreconditionFailed: it is of another moment, and some of its messages are there.
        """
        if self._is_of_another_moment(directory, plan) or self._job.all_available:
            return True
        return not plan.selection.start_from_scratch and not all(map(self._job.selection.wants, plan.queues))

    def _is_of_another_moment(self, directory: PlanDirectory, plan: RecoveryPlan) -> bool:
        """Whether an interrupted promotion is of another moment than the requested one.

        Raises:
            PreconditionFailed: some of its messages are there. With the others of the requested moment behind them, a
                queue would be as it never was.
        """
        job, before_ms = self._job, plan.selection.as_of_ms
        if job.to is not None or plan.selection.start_from_scratch or before_ms == job.as_of_ms:
            return False
        queues, _ = self._there(directory, plan)
        if messages := sum(queue.messages for queue in queues):
            way = "without --as-of" if before_ms is None else f"with --as-of {moment_text(before_ms)}"
            raise PreconditionFailed(
                f"vhost '{plan.vhost}': an interrupted promotion has recovered {messages} messages as of another "
                f"moment: finish it first, by the command {way}; a later one with --as-of brings back what was settled "
                "since"
            )
        return True

    def _cut_short(self, directory: PlanDirectory, plan: RecoveryPlan) -> PlanOutcome:
        """End a plan at its present position, because its next message may be unreadable."""
        published, left = self._there(directory, plan)
        published = in_doubt_counted(self._job, directory, published)
        return self._finish(directory, plan, published, is_cut_short=left > 0)

    def _there(self, directory: PlanDirectory, plan: RecoveryPlan) -> tuple[list[QueueOutcome], int]:
        """The outcomes of the plan's queues so far, and the number of messages left.

        No process publishes for it any more: its publishers ended with the attempt that held the lock before.
        """
        published: list[QueueOutcome] = []
        client: IngestClient | None = None
        left, parts = 0, plan.parts_by_queue()
        try:
            for index, queue in enumerate(plan.queues):
                if index % PUBLISHERS_PER_CLIENT == 0:
                    if client is not None:
                        client.close()
                    client = client_of(self._job, plan.vhost, directory, sends=False)
                assert client is not None
                order = read_order(directory.runs, parts.get(queue, []))
                last = last_there(client, directory, plan, queue)
                left += len(order) - last
                published.append(queue_outcome(queue, order, last))
        finally:
            if client is not None:
                client.close()
        return published, left

    def _vhosts(self) -> list[str]:
        return [vhost for vhost in self._manifest.vhosts if self._wanted(vhost)]

    def _wanted(self, vhost: str) -> bool:
        return self._job.wants(vhost)

    def _has_new_messages(self, vhost: str) -> bool:
        """Whether there probably are messages to recover; a guess, to start Spark early."""
        if self._job.start_from_scratch or self._job.as_of_ms is not None:
            return True
        covered = max(
            covered_number(self._manifest, vhost, self._job.plans_of(vhost)),
            self._manifest.forgotten_by_vhost.get(vhost, 0),
        )
        added = self._manifest.added_since(covered)
        if added is None:
            return True
        left: Counter[tuple[str, int]] = Counter()
        for part in (part for file in added if file.vhost == vhost for part in file.queues):
            left[part.queue, part.epoch] += part.messages - part.settled
        return any(count > 0 for count in left.values())

    def _plan(self, vhosts: list[str]) -> list[tuple[PlanDirectory, RecoveryPlan]]:
        """Find the unsettled messages of each vhost and freeze its plan; an empty plan is finished at once."""
        drafts: dict[str, tuple[PlanDirectory, list[StoredFile], Masks]] = {}
        selection = self._job.selection
        for vhost in vhosts:
            masks = not_to_recover(self._manifest, vhost, selection, self._job.plans_of(vhost))
            files = with_unsettled(self._manifest.files_of(vhost), masks, selection)
            if files:
                directory = PlanDirectory.new(
                    self._job.root,
                    vhost,
                    self._job.new_plans_of(vhost),
                    (self._job.terms or {}).get(vhost, 0),
                )
                drafts[vhost] = directory, files, masks
        check_vhosts(self._job, drafts)
        found = self._scan(drafts)
        check_queues(self._job, {vhost: {part.queue for part in each.parts} for vhost, each in found.items()})
        counted = self._counted({vhost: (drafts[vhost][0], each) for vhost, each in found.items()})
        plans = []
        for vhost, (directory, files, _) in drafts.items():
            parts = found[vhost].parts
            plan = RecoveryPlan(
                plan_id=directory.path.name,
                vhost=vhost,
                number=self._manifest.number,
                selection=selection,
                files=[file.path for file in files],
                parts=sorted(parts, key=lambda part: (part.run, part.batch)),
                unreadable=found[vhost].unreadable,
                messages=counted[vhost],
                stored_positions=self._stored_positions(vhost, {part.queue for part in parts}),
            )
            directory.freeze(plan)
            plans.append((directory, plan))
        if self._job.terms is not None and not self._job.scratch:
            # All at once: the manifest is read on with that, and each plan is of the entry above.
            self._manifest.name_plans({plan.plan_id: plan.vhost for _, plan in plans}, self._job.terms)
        for _, plan in plans:
            self._say_planned(plan)
        if leaves_out(self._job):
            self._parent.say("left_out", vhosts=self._left_out())
        return plans

    def _say_planned(self, plan: RecoveryPlan) -> None:
        self._parent.say("planned", vhost=plan.vhost, plan_id=plan.plan_id, queues=plan.queues)

    def _counted(
        self, found: dict[str, tuple[PlanDirectory, UnsettledMessages]]
    ) -> dict[str, dict[str, int]]:
        """By vhost, the number of each queue's messages; one task counts again those that several may have found."""
        counts: dict[str, dict[str, int]] = {}
        tasks: list[CountTask] = []
        for vhost, (directory, unsettled) in found.items():
            counts[vhost], doubtful = unsettled.counted()
            for queue in sorted(doubtful):
                parts = [part for part in unsettled.parts if part.queue == queue]
                tasks.append(CountTask(vhost, queue, directory.runs, parts))

        def count(task: CountTask) -> tuple[str, str, int]:
            return task.vhost, task.queue, len(read_order(task.runs, task.parts))

        for vhost, queue, messages in self._spark.run(tasks, count, tuple[str, str, int]):
            counts[vhost][queue] = messages
        return counts

    def _left_out(self) -> list[dict[str, Any]]:
        """A row a vhost of the messages that this promotion leaves to a later one (`count_left_out_files`)."""
        found = left_out_files(self._manifest, self._job)
        if not found:
            return []
        root = self._job.root
        groups = self._spark.groups

        def split(rest: LeftOutFiles) -> Iterator[LeftOutFiles]:
            for group in grouped(list(enumerate(rest.files)), groups):
                yield rest._replace(files=[file for _, file in group])

        def count(part: LeftOutFiles) -> tuple[str, UnsettledMessages]:
            return part.vhost, count_left_out(root, part)

        return count_left_out_files(
            found, split, lambda parts: self._spark.run(parts, count, tuple[str, UnsettledMessages])
        )

    def _stored_positions(self, vhost: str, queues: set[str]) -> list[StoredPositions]:
        """The stored positions for these queues; only a node of our own takes them."""
        if self._job.to is not None:
            return []
        found = stored_positions_at(self._manifest, vhost, self._job.as_of_ms)
        return [each for each in found.values() if each.queue in queues]

    def _scan(
        self, drafts: dict[str, tuple[PlanDirectory, list[StoredFile], Masks]]
    ) -> dict[str, UnsettledMessages]:
        """Search for unsettled messages, here if the files are small, else by tasks; return what is found by vhost."""
        found = {vhost: UnsettledMessages([], {}) for vhost in drafts}
        if not drafts:
            return found
        selection = self._job.selection
        records = sum(file.records for _, files, _ in drafts.values() for file in files)
        is_small = records <= RECORDS_SCANNED_HERE_MAX and not selection.all_available
        groups = _SCAN_THREADS if is_small else self._spark.groups
        all_masks: Masks = {}
        tasks: list[ScanTask] = []
        for vhost, (directory, files, masks) in drafts.items():
            all_masks |= masks
            for number, group in enumerate(grouped(list(enumerate(files)), groups)):
                named = [NumberedFile(index, file.path, file.records) for index, file in group]
                tasks.append(ScanTask(vhost, directory.runs / f"{number:06}.arrow", named))
        root = self._job.root

        def scan(task: ScanTask) -> tuple[str, UnsettledMessages]:
            return task.vhost, write_run(root, task.vhost, task.files, all_masks, task.run, selection)

        if is_small:
            with ThreadPoolExecutor(_SCAN_THREADS, "scan") as threads:
                results = list(threads.map(scan, tasks))
        else:
            results = list(self._spark.run(tasks, scan, tuple[str, UnsettledMessages]))
        for vhost, some in results:
            found[vhost].add(some)
        if any(each.parts for each in found.values()):
            # It may have started meanwhile: that is reported before a plan.
            self._spark.wait_started()
        return found

    def _publish(self, plans: list[tuple[PlanDirectory, RecoveryPlan]]) -> list[PlanOutcome]:
        """Publish plans and mark them as finished.

        Large queues come by shares of files first, beside the others; then a task of its own completes each that lacks
        messages.
        """
        there: dict[str, dict[str, int]] = {}
        work = _work_of(self._job, self._inbox.address, there)
        found: dict[str, list[QueueOutcome]] = {}
        large: dict[str, set[str]] = {}
        try:
            shares = [share for directory, plan in plans for share in self._shares(directory, plan)]
            large = {share.plan_id: set(share.begins) for share in shares}
            others = self._tasks(plans, lambda plan, queue: queue not in large.get(plan.plan_id, ()))
            firsts = [share for share in shares if not share.first]
            for brought in self._spark.run(
                [*firsts, *others, *(share for share in shares if share.first)], work, TaskResult
            ):
                found.setdefault(brought.plan_id, []).extend(brought.queues)
                for segment in brought.segments:
                    self._intakes[brought.plan_id].offer(segment)
        finally:
            for plan_id, intake in self._intakes.items():
                intake.finish()
                there[plan_id] = intake.last_by_queue
            self._intakes.clear()
        complete = {plan.plan_id: _complete(plan, there.get(plan.plan_id, {})) for _, plan in plans}
        for plan_id, outcomes in complete.items():
            found.setdefault(plan_id, []).extend(outcomes.values())
        rest = self._tasks(
            plans,
            lambda plan, queue: queue in large.get(plan.plan_id, ()) and queue not in complete[plan.plan_id],
        )
        for brought in self._spark.run(rest, work, TaskResult):
            found.setdefault(brought.plan_id, []).extend(brought.queues)
        return [self._finish(directory, plan, found.get(plan.plan_id, [])) for directory, plan in plans]

    def _shares(self, directory: PlanDirectory, plan: RecoveryPlan) -> list[FileShare]:
        """The shares of a plan's files, whose segments an intake of its own announces; none if nothing is large."""
        job, inbox = self._job, self._inbox.address
        if job.to is not None or not job.staging:
            return []
        client = node_client(job, plan.vhost)
        begins = queue_begins(client, plan, Path(job.staging))
        if not begins:
            client.close()
            return []

        def taken(messages: int) -> None:
            report(inbox, "published", vhost=plan.vhost, messages=messages)

        self._intakes[plan.plan_id] = SegmentIntake(
            client, Path(job.staging), plan.reference, begins, taken, job.timeout_s
        )
        cores = self._spark.cores
        return [
            FileShare(directory, plan.vhost, plan.plan_id, first, end, begins)
            for first, end in shares_of(plan, len(begins), cores)
        ]

    def _tasks(
        self,
        plans: list[tuple[PlanDirectory, RecoveryPlan]],
        wanted: Callable[[RecoveryPlan, str], bool] = lambda plan, queue: True,
    ) -> list[PublishTask]:
        """About as many tasks a plan as there are cores, each with whole queues, of those that are wanted."""
        if not plans:
            return []
        cores = self._spark.cores
        return [
            PublishTask(directory, plan.vhost, plan.plan_id, queues)
            for directory, plan in plans
            for queues in balanced(
                {queue: count for queue, count in plan.queues.items() if wanted(plan, queue)}, cores
            )
        ]

    def _finish(
        self,
        directory: PlanDirectory,
        plan: RecoveryPlan,
        queues: list[QueueOutcome],
        *,
        is_cut_short: bool = False,
    ) -> PlanOutcome:
        outcome = outcome_of(plan, queues, is_cut_short=is_cut_short)
        if not self._job.scratch:
            directory.finish(outcome)
        return outcome

    def _counts(self, vhosts: list[str]) -> list[PlanOutcome]:
        """The outcomes of a dry run, by the manifest's statistics."""

        def run(
            tasks: list[ReadTask], work: Callable[[ReadTask], list[FoundRange]]
        ) -> Iterator[list[FoundRange]]:
            return self._spark.run(tasks, work, list[FoundRange])

        found = list(estimates(self._manifest, self._job, vhosts, run, self._stored_positions))
        check_vhosts(self._job, [plan.vhost for plan, _ in found])
        check_queues(self._job, {plan.vhost: plan.queues for plan, _ in found})
        for plan, _ in found:
            self._say_planned(plan)
        return [outcome for _, outcome in found]

    def _estimate(self, directory: PlanDirectory, plan: RecoveryPlan) -> PlanOutcome:
        """The outcome that publishing a plan would have."""
        parts = plan.parts_by_queue()
        queues = [queue_outcome(name, read_order(directory.runs, mine)) for name, mine in parts.items()]
        return outcome_of(plan, queues)

    def _compare(
        self, plans: list[tuple[PlanDirectory, RecoveryPlan]], outcomes: list[PlanOutcome]
    ) -> dict[str, int]:
        """Consume the recovered messages again, and compare them with the plans."""
        job, inbox = self._job, self._inbox.address
        totals = {each.plan_id: each.totals for each in outcomes}
        self._parent.say("comparing")

        def compare(task: PublishTask) -> int:
            def progress(count: int) -> None:
                report(inbox, "compared", vhost=task.vhost, messages=count)

            assert job.compare is not None
            place = job.place_of(task.vhost)
            client = partial(ComparisonClient, job.compare, place, totals[task.plan_id], job.timeout_s)
            queues = PlanPublisher(task.directory, client, progress).publish(task.queues)
            return sum(queue.messages for queue in queues)

        return {"messages": sum(self._spark.run(self._tasks(plans), compare, int))}

    def _pass_on(self, timeout_s: float) -> None:
        for event in self._inbox.wait(timeout_s):
            if event["event"] == _BLOCKED:
                self._note_blocked(event["task"], event["reason"])
            elif event["event"] != _WRITTEN:
                self._parent.pass_on(event)
            elif intake := self._intakes.get(event["plan_id"]):
                intake.offer(msgspec.convert(event["segment"], WrittenSegment))

    def _note_blocked(self, task: str, reason: str) -> None:
        """Report that the target blocks its publishers, or that it takes messages again: once for all tasks."""
        before = bool(self._blocked)
        (self._blocked.add if reason else self._blocked.discard)(task)
        if self._job.to is not None and bool(self._blocked) != before:
            at = f"{self._job.to.host}:{self._job.to.port}"
            self._parent.say("blocked" if reason else "unblocked", target=at, reason=reason)


def _complete(plan: RecoveryPlan, there: dict[str, int]) -> dict[str, QueueOutcome]:
    """The outcomes of a plan's queues of which the last message is there; nothing is read for them."""
    parts = plan.parts_by_queue()
    outcomes: dict[str, QueueOutcome] = {}
    for queue, last in there.items():
        spans = spans_in_order(parts[queue])
        if spans is not None and last == plan.queues[queue]:
            outcomes[queue] = complete_outcome(queue, spans, last)
    return outcomes


def _say_blocked(inbox: str, task: PublishTask, reason: str) -> None:
    report(inbox, _BLOCKED, task=f"{task.plan_id} {task.queues[0]}", reason=reason)


def _work_of(
    job: RecoverJob, inbox: str, there: Mapping[str, Mapping[str, int]]
) -> Callable[[PublishTask | FileShare], TaskResult]:
    """Return the work on a task; `there` has, by plan, the last message of each queue that intakes of segments took."""
    # A rehearsal recovers entries of streams into queues, to compare them unchanged.
    numbers_streams = job.to is None and job.compare is None

    def work(task: PublishTask | FileShare) -> TaskResult:
        if isinstance(task, FileShare):
            segments = write_share(task, Path(job.staging), partial(_say, inbox, task))
            return TaskResult(task.plan_id, [], segments)

        def progress(count: int) -> None:
            report(inbox, "published", vhost=task.vhost, messages=count)

        client = partial(
            client_of, job, task.vhost, task.directory, on_blocked=partial(_say_blocked, inbox, task)
        )
        publisher = PlanPublisher(
            task.directory,
            client,
            progress,
            numbers_streams=numbers_streams,
            reported=there.get(task.plan_id),
        )
        queues = publisher.publish(task.queues)
        return TaskResult(task.plan_id, in_doubt_counted(job, task.directory, queues), [])

    return work


def _say(inbox: str, share: FileShare, segment: WrittenSegment) -> None:
    """Report a segment at once; the result of its task names it again."""
    report(inbox, _WRITTEN, plan_id=share.plan_id, segment=segment)
