"""Asks a promoted node for its positions in the outgoing logs of this node, for a rejoin.

The question goes over the stream protocol, as the offset stored under a reference that names the log.
"""

from __future__ import annotations

from leveret.pipeline.jobs.job import PositionsJob
from leveret.pipeline.jobs.tls import client_context
from leveret.pipeline.upstream.stream_client import connect
from leveret.wire.record import OUTGOING_STREAM, TRANSFERRED_FINGERPRINT_PREFIX, TRANSFERRED_PREFIX


def ask_positions(job: PositionsJob) -> dict[str, dict[str, int | None]]:
    """Ask for two answers by vhost.

    positions   the offset up to which the log was transferred; None: that log never was
    marks       the fingerprint (`wire.chunk.fingerprint_of`) of the last of these chunks; None: unknown

    Raises:
        LeveretError: no endpoint answers, or the node there refuses.
    """
    positions: dict[str, int | None] = {}
    marks: dict[str, int | None] = {}
    for vhost, log_id in job.logs.items():
        with connect(
            job.endpoints,
            vhost=vhost,
            username=job.credentials.username,
            password=job.credentials.password,
            timeout_s=job.timeout_s,
            tls=client_context(job.tls) if job.tls is not None else None,
        ) as client:
            positions[vhost] = client.query_offset(f"{TRANSFERRED_PREFIX}{log_id}", OUTGOING_STREAM)
            marks[vhost] = client.query_offset(f"{TRANSFERRED_FINGERPRINT_PREFIX}{log_id}", OUTGOING_STREAM)
    return {"positions": positions, "marks": marks}
