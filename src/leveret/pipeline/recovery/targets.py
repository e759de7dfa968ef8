"""The target of a recovery: the node whose standby this is, or another broker (`--to`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from leveret.model.errors import PreconditionFailed, Refusal, StorageError
from leveret.pipeline.archive.recovery_plan import PlanDirectory, QueueOutcome, RecoveryPlan
from leveret.pipeline.jobs.job import RecoverJob
from leveret.pipeline.recovery.publish import IngestClient, PlanReader
from leveret.pipeline.recovery.segments import StagingClient
from leveret.pipeline.target_broker import publish as amqp_publish
from leveret.pipeline.target_broker.streams import MessageDeclined
from leveret.pipeline.upstream.stream_client import StreamClient, connect
from leveret.wire.record import RECOVERY_STREAM_PREFIX


def client_of(
    job: RecoverJob,
    vhost: str,
    directory: PlanDirectory,
    *,
    sends: bool = True,
    on_blocked: Callable[[str], None] = lambda reason: None,
) -> IngestClient:
    """A connection to a plan's target; another broker's, without `sends`, only looks at the present messages.

    `on_blocked` is called when another broker blocks its publishers, and when it takes messages again.
    """
    if job.to is None and not (job.staging and sends):
        return node_client(job, vhost)
    totals = directory.load().queues
    if job.to is None:
        return StagingClient(node_client(job, vhost), Path(job.staging), totals, job.timeout_s)
    return amqp_publish.AmqpClient(
        job.to, vhost, directory.progress, totals, job.timeout_s, sends=sends, on_blocked=on_blocked
    )


def node_client(job: RecoverJob, vhost: str) -> StreamClient:
    """A connection to the node whose standby this is."""
    return connect(
        [job.endpoint],
        vhost=job.place_of(vhost),
        username=job.credentials.username,
        password=job.credentials.password,
        timeout_s=job.timeout_s,
    )


def check_vhosts(job: RecoverJob, vhosts: Iterable[str]) -> None:
    """Fail in the broker's own words, while Java starts, if a vhost does not exist.

    Raises:
        LeveretError: one does not, or the broker cannot be reached.
    """
    for vhost in vhosts:
        if job.to is not None:
            amqp_publish.connect(job.to, vhost, job.timeout_s, waits=False).close()
        elif not job.dry_run:
            node_client(job, vhost).close()


def check_queues(job: RecoverJob, by_vhost: Mapping[str, Iterable[str]]) -> None:
    """Check that no queue of another broker gets the messages of two, which could not be told apart there.

    Raises:
        PreconditionFailed: one would; the error names the vhosts and the queue.
    """
    to = job.to
    if to is None:
        return
    vhosts: dict[tuple[str, str], list[str]] = {}
    for vhost, queues in by_vhost.items():
        for queue in queues:
            vhosts.setdefault((to.place_of(vhost), queue), []).append(vhost)
    for (place, queue), several in sorted(vhosts.items()):
        if len(several) > 1:
            names = ", ".join(f"'{vhost}'" for vhost in sorted(several))
            raise PreconditionFailed(
                f"each of the vhosts {names} has a queue '{queue}', and their messages would all go to the one in "
                f"vhost '{place}' of {to.host}:{to.port}: recover one of them at a time, leaving the others out "
                "with --exclude-virtual-hosts, or name no vhost with --to, so that each goes to the one of its name"
            )


def last_there(client: IngestClient, directory: PlanDirectory, plan: RecoveryPlan, queue: str) -> int:
    """The last of a queue's messages that is at the target."""
    if not isinstance(client, amqp_publish.AmqpClient):
        return client.declare_publisher(plan.reference, RECOVERY_STREAM_PREFIX + queue).last_sequence
    path = amqp_publish.progress_path(directory.progress, queue)
    if not path.exists():
        return 0  # The broker may refuse this message.
    try:
        publisher = client.declare_publisher(plan.reference, RECOVERY_STREAM_PREFIX + queue)
    except (Refusal, MessageDeclined):
        return amqp_publish.give_up(path, plan.queues[queue])
    if publisher.is_behind:
        reader = PlanReader(directory)
        with suppress(amqp_publish.NotAtTarget, StorageError, MessageDeclined):
            reader.pass_on(reader.orders([queue]), [publisher])
    return publisher.give_up()


def in_doubt_counted(
    job: RecoverJob, directory: PlanDirectory, queues: list[QueueOutcome]
) -> list[QueueOutcome]:
    """The outcomes with the numbers of possible duplicates; 0 at a node of our own."""
    if job.to is None:
        return queues
    counted = []
    for each in queues:
        path = amqp_publish.progress_path(directory.progress, each.queue)
        in_doubt = amqp_publish.read_progress(path).in_doubt if path.exists() else 0
        counted.append(msgspec.structs.replace(each, in_doubt=in_doubt))
    return counted
