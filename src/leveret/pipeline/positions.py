"""Asking a promoted node how far it has another node's outgoing logs: of that node's own, which comes back.

The question goes over the stream protocol, as the offset stored under a reference that names the log.
"""

from __future__ import annotations

from leveret.pipeline.job import PositionsJob
from leveret.pipeline.stream_client import connect
from leveret.pipeline.tls import client_context
from leveret.wire.record import OUTGOING_STREAM, TRANSFERRED_PREFIX


def ask_positions(job: PositionsJob) -> dict[str, int | None]:
    """By vhost, up to which offset the log was transferred; None: nothing of that log ever was.

    Raises:
        LeveretError: no endpoint answers, or the node there declines.
    """
    found: dict[str, int | None] = {}
    for vhost, log_id in job.logs.items():
        with connect(
            job.endpoints,
            vhost=vhost,
            username=job.credentials.username,
            password=job.credentials.password,
            timeout_s=job.timeout_s,
            tls=client_context(job.tls) if job.tls is not None else None,
        ) as client:
            found[vhost] = client.query_offset(f"{TRANSFERRED_PREFIX}{log_id}", OUTGOING_STREAM)
    return found
