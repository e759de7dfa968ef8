"""Links to the upstream: one for each vhost and node, kept open between requests and reopened after failures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from leveret.model.errors import LeveretError
from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.jobs.tls import client_context
from leveret.pipeline.upstream.stream_client import StreamClient, UpstreamUnreachable, connect
from leveret.pipeline.upstream.stream_connection import ConnectionLost
from leveret.wire.log_name import CLUSTER_PROPERTY, LABEL_PROPERTY, node_of, title_of, vhost_of

BACKOFF_MIN_S: Final = 0.2
BACKOFF_MAX_S: Final = 3.0
MEMBER_TIMEOUT_S: Final = 2.0
"""The longest wait for a node of a cluster: the others have work meanwhile, and soon know that it is lost."""
NEEDS_OPERATOR: Final = "recover"
"""The state of a link that needs an operator, in the words of the guide."""


class UpstreamLink:
    """Connects to the first endpoint that answers, with back-off.

    Attributes:
        log: the outgoing log, or the vhost if it is not known yet which node answers.
        endpoints: `host:port` of its node; none for all that the job names.
        label: the node that has to answer; empty for any.
        endpoint: the one that answered last.
        others: endpoints of the same site that its nodes have told, tried when none of `endpoints` answers.
    """

    def __init__(self, log: str, endpoints: Sequence[str] = (), label: str = "") -> None:
        self.log = log
        self.endpoints = list(endpoints)
        self.label = label
        self.endpoint = ""
        self.others: list[str] = []
        self._client: StreamClient | None = None
        self._not_before_s = 0.0
        self._backoff_s = BACKOFF_MIN_S
        self._error: LeveretError | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, which may have failed unnoticed."""
        return self._client is not None

    @property
    def connected(self) -> StreamClient | None:
        """The connection, unless it is known to have failed."""
        client = self._client
        return None if client is None or client.connection.closed else client

    def client(self, job: TransferJob) -> StreamClient:
        """The open connection, or a new one.

        Raises:
            LeveretError: there is none; the same error is raised until the back-off has passed.
        """
        if (connected := self.connected) is not None:
            return connected
        if self._error is not None and time.monotonic() < self._not_before_s:
            raise self._error
        try:
            self._client = self._connected(job)
        except LeveretError as error:
            self.failed(error)
            raise
        self.endpoint = self._client.connection.peer
        return self._client

    def _connected(self, job: TransferJob) -> StreamClient:
        client = connect(
            [*(self.endpoints or job.endpoints), *self.others],
            vhost=vhost_of(self.log),
            username=job.credentials.username,
            password=job.credentials.password,
            timeout_s=min(job.timeout_s, MEMBER_TIMEOUT_S) if self.label else job.timeout_s,
            tls=client_context(job.tls) if job.tls is not None else None,
        )
        answers = client.connection.server_properties.get(LABEL_PROPERTY, "")
        if self.label and answers != self.label:
            client.close()
            raise UpstreamUnreachable(
                f"{title_of(self.log)}: the upstream gives {client.connection.peer} as the address of node "
                f"'{node_of(self.label)}', but node '{node_of(answers)}' answers: see stream.advertised_host and "
                "stream.advertised_port there"
            )
        if answers:
            client.connection.set_timeout(min(job.timeout_s, MEMBER_TIMEOUT_S))
        return client

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


def link_of(job: TransferJob, log: str, endpoint: str = "", label: str = "") -> UpstreamLink:
    """This process's link: Spark makes objects anew, but its Python processes persist.

    Without `endpoint`, to the first one of the job's that answers.
    """
    named = (endpoint,) if endpoint else tuple(job.endpoints)
    key = (log, label, *named, job.credentials.username)
    if key not in _links:
        _links[key] = UpstreamLink(log, [endpoint] if endpoint else [], label)
    return _links[key]


def state_of(error: LeveretError) -> str:
    """The state of a link after `error`; `connecting` needs no operator."""
    return "connecting" if isinstance(error, ConnectionLost | UpstreamUnreachable) else NEEDS_OPERATOR


def cluster_of(client: StreamClient) -> str:
    """The id of the cluster that a node belongs to; empty for a single node."""
    return client.connection.server_properties.get(CLUSTER_PROPERTY, "")


def label_at(client: StreamClient) -> str:
    """The label of a cluster's node; empty for a single node."""
    return client.connection.server_properties.get(LABEL_PROPERTY, "")
