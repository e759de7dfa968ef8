"""A cluster as the upstream of a standby: each node serves the outgoing logs of the queues that it leads."""

from __future__ import annotations

from collections.abc import Callable

from leveret.core.broker.broker import Broker
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.model.errors import LedElsewhere, NotFound
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.wire.log_name import node_label


class ClusterAsUpstream:
    """session.stream.types.UpstreamSite."""

    def __init__(
        self,
        member: ClusterMember,
        broker: Broker,
        find_streams: Callable[[str, bool], tuple[str, int] | None],
    ) -> None:
        """Use `find_streams` to find the stream listeners of other nodes."""
        self._member = member
        self._broker = broker
        self._find_streams = find_streams
        self._label = node_label(member.name, member.node_id)

    @property
    def label(self) -> str:
        """See UpstreamSite."""
        return self._label

    @property
    def cluster_id(self) -> str:
        """See UpstreamSite; empty until the first node has founded the cluster."""
        return self._member.state.cluster_id

    def _nodes(self) -> dict[str, str]:
        """The names of all nodes, by label."""
        members = self._member.state.members.values()
        return {self.label: self._member.name} | {
            node_label(each.name, each.node_id): each.name for each in members
        }

    def labels(self) -> list[str]:
        """See UpstreamSite."""
        return sorted(self._nodes())

    def place(self, vhost: str, label: str, *, tls: bool) -> tuple[str, int] | None:
        """See UpstreamSite."""
        if label == self.label:
            return None
        node = self._nodes().get(label)
        if node is None:
            raise NotFound(f"no node of this cluster has the label '{label}'")
        found = self._find_streams(node, tls)
        if found is not None:
            return found
        if any(
            queue.replicated and isinstance(queue, RemoteQueue) and queue.leader == node
            for queue in self._broker.vhost_queues(vhost)
        ):
            raise LedElsewhere(f"node '{node}' does not run, and leads queues of vhost '{vhost}'")
        raise NotFound(f"node '{node}' does not run, and leads no queue of vhost '{vhost}'")
