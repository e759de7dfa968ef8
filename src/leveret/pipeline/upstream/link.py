"""A vhost's connection to the upstream, reused between calls and dialled again with back-off."""

from __future__ import annotations

import time
from typing import Final

from leveret.model.errors import LeveretError
from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.jobs.tls import client_context
from leveret.pipeline.upstream.stream_client import StreamClient, UpstreamUnreachable, connect
from leveret.pipeline.upstream.stream_connection import ConnectionLost

BACKOFF_MIN_S: Final = 0.2
BACKOFF_MAX_S: Final = 3.0
NEEDS_OPERATOR: Final = "recover"
"""The state of a link that needs an operator, in the words of the guide."""


class UpstreamLink:
    """Connects to the first endpoint that answers, with back-off."""

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        self.endpoint = ""
        self._client: StreamClient | None = None
        self._not_before_s = 0.0
        self._backoff_s = BACKOFF_MIN_S
        self._error: LeveretError | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, which may have failed unnoticed."""
        return self._client is not None

    def client(self, job: TransferJob) -> StreamClient:
        """The open connection, or a new one.

        Raises:
            LeveretError: there is none; the same error is raised until the back-off has passed.
        """
        if self._client is not None and not self._client.connection.closed:
            return self._client
        if self._error is not None and time.monotonic() < self._not_before_s:
            raise self._error
        try:
            self._client = connect(
                job.endpoints,
                vhost=self.vhost,
                username=job.credentials.username,
                password=job.credentials.password,
                timeout_s=job.timeout_s,
                tls=client_context(job.tls) if job.tls is not None else None,
            )
        except LeveretError as error:
            self.failed(error)
            raise
        self.endpoint = self._client.connection.peer
        return self._client

    def worked(self) -> None:
        """Note that the connection was useful: the next failure counts as the first."""
        self._backoff_s = BACKOFF_MIN_S

    def failed(self, error: LeveretError) -> None:
        """Drop the connection; the next one waits longer."""
        self.close()
        self._error = error
        self._not_before_s = time.monotonic() + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)

    def close(self) -> None:
        """Drop the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


_links: dict[tuple[str, ...], UpstreamLink] = {}


def link_of(job: TransferJob, vhost: str) -> UpstreamLink:
    """This process's link of a vhost: Spark makes objects anew, but its Python processes persist."""
    key = (vhost, *job.endpoints, job.credentials.username)
    if key not in _links:
        _links[key] = UpstreamLink(vhost)
    return _links[key]


def state_of(error: LeveretError) -> str:
    """The state of a link after `error`; `connecting` needs no operator."""
    return "connecting" if isinstance(error, ConnectionLost | UpstreamUnreachable) else NEEDS_OPERATOR
