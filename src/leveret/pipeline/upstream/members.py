"""The nodes of an upstream cluster, as one of them tells: each serves the outgoing logs of the queues that it leads."""

from __future__ import annotations

from typing import NamedTuple

from leveret.model.errors import LeveretError, PreconditionFailed
from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.upstream.link import UpstreamLink, cluster_of
from leveret.pipeline.upstream.stream_client import StreamClient
from leveret.wire.log_name import label_of_partition
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.stream.codec import Code


class UpstreamMember(NamedTuple):
    """A node of a cluster.

    Attributes:
        label: see wire.log_name.
        endpoint: `host:port` of its stream listener; empty while it does not run.
        is_missed: whether it leads queues that are collected, although it does not run.
    """

    label: str
    endpoint: str
    is_missed: bool


def members_at(client: StreamClient) -> list[UpstreamMember]:
    """The nodes that belong to the cluster of this one, itself among them.

    Raises:
        LeveretError: it does not answer.
    """
    places = client.places(client.partitions(OUTGOING_STREAM))
    return [
        UpstreamMember(
            label_of_partition(stream), place.endpoint, place.code == Code.OK and not place.endpoint
        )
        for stream, place in sorted(places.items())
    ]


def check_one_site(job: TransferJob, vhost: str) -> None:
    """Check that all endpoints that answer now are of one site.

    Raises:
        PreconditionFailed: they are not, or not all of them are of a cluster.
    """
    sites: dict[str, list[str]] = {}
    for endpoint in job.endpoints:
        link = UpstreamLink(vhost, [endpoint])
        try:
            sites.setdefault(cluster_of(link.client(job)), []).append(endpoint)
        except LeveretError:
            continue
        finally:
            link.close()
    if len(sites) > 1:
        found = ", ".join(
            f"{', '.join(endpoints)} of {f'cluster {cluster}' if cluster else 'a single node'}"
            for cluster, endpoints in sorted(sites.items())
        )
        raise PreconditionFailed(
            f"the upstream's endpoints are of several sites: {found}. Nothing is transferred: name the endpoints of "
            "one site with set_standby_replication_upstream_endpoints"
        )
