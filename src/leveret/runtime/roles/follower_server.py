"""The server for followers of this node, whether it leads or follows, and a leader's promises to them.

A leader's promises wait for its followers as soon as the listener is made, which is before clients are admitted. A
follower sends its own followers the changes that it applies; it makes no promises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from leveret.config import Config
from leveret.config.kinds import Address
from leveret.config.sections.followers import Followers
from leveret.config.uris import NodeUri
from leveret.core.replication.in_sync import InSync
from leveret.model.errors import Corrupt, PreconditionFailed, StorageError
from leveret.runtime.link.listening import AcceptClient
from leveret.runtime.logs.log_store import log_name
from leveret.runtime.node.node import Node
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.replication.feed import Feed
from leveret.runtime.replication.identity import LinkEnd
from leveret.runtime.replication.listener import ReplicationListener
from leveret.runtime.replication.sent_node import LeaderState
from leveret.runtime.sockets.tls import ListenerTls
from leveret.session.link_handshake import ProvenFollower
from leveret.storage.open_segments import OutOfDescriptors

if TYPE_CHECKING:
    from leveret.runtime.coordination.elected_node import ElectedNode

TLS: Final = "replication.ssl_options"


class FollowerServer:
    """See the module.

    Attributes:
        feed: the changes for all followers.
        listener: the listener for their connections.
    """

    def __init__(
        self,
        node: Callable[[], Node],
        config: Config,
        *,
        leads: bool,
        own: LinkEnd,
        elected: ElectedNode | None,
        recorded: frozenset[str],
        met: Callable[[ProvenFollower], bool],
        answer: Callable[[str, dict[str, Any]], dict[str, Any]],
        accept_client: AcceptClient,
    ) -> None:
        """Make the node's promises wait from now on; accept no follower yet.

        Args:
            node: returns the followed node; another one of the same tree may replace it.
            config: the process's settings.
            leads: whether the node leads; otherwise it follows.
            own: the node's end of links, with the secret that followers have to prove.
            elected: the election in etcd, if there is one; it stores the in-sync record.
            recorded: the nodes in that record; promises wait for them too.
            met: called with every connecting node; returns whether it, or the node it follows, replaced this one.
            answer: answers the followers' questions.
            accept_client: see sent_node.LeaderState.
        """
        settings = config.followers
        self._node = node
        self._settings = settings
        self._leads = leads
        self._is_member = config.cluster.is_member
        self._identity = own.identity
        self._elected = elected
        self._met = met
        self._is_closed = False
        served = node()
        self.feed = served.commits.replication_barrier = self._begin_feed(served, recorded)
        leading = LeaderState(
            tree=served.tree,
            feed=self.feed,
            commits=served.commits,
            own=own,
            bandwidth_bytes_s=settings.bandwidth_bytes_s,
            clock_ms=clock_ms,
            met=met,
            noticed=self._noticed,
            damaged=self._damaged,
            unreadable=self._log_unreadable,
            hand_over=self._hand_over,
            answer=answer,
            accept_client=accept_client,
        )
        self.listener = ReplicationListener(leading)

    def _begin_feed(self, node: Node, recorded: frozenset[str]) -> Feed:
        settings = self._settings
        if self._leads:
            node.broker.may_deliver = self._may_promise
        waits = self._leads and settings.confirm == "in_sync"
        in_sync = InSync(
            ack_timeout_ms=settings.ack_timeout_ms,
            min_in_sync=settings.min_in_sync if waits else 0,
            records_shrink=waits and self._elected is not None,
            recorded=recorded,
        )
        return Feed(
            node.tree,
            in_sync,
            clock_ms,
            waits=waits,
            compress=settings.compression == "zstd",
            may_promise=self._may_promise if self._leads else lambda: True,
        )

    async def open(self, ip: str) -> None:
        """Accept followers.

        Raises:
            LeveretError: the address, or a certificate, cannot be used.
        """
        settings = self._settings
        tls = ListenerTls(settings.tls, TLS) if settings.tls.certfile else None
        await self.listener.start(ip, settings.port, tls)

    async def close(self) -> None:
        """Disconnect all followers; later acks of them do not count."""
        self._is_closed = True
        await self.listener.stop()

    # -- what a leader promises ---------------------------------------------------------------

    def _may_promise(self) -> bool:
        """Whether no other node has replaced this one, as far as it can know at this moment.

        A node of a cluster is replaced by nobody; whether it holds its lease is asked elsewhere.
        """
        if self._is_member:
            return True
        is_elected = self._elected is None or self._elected.may_promise()
        return is_elected and not self._identity.identity.is_fenced

    def _noticed(self) -> None:
        """Block publishers, or refuse their publishes, while too few followers are in sync."""
        if not self._leads or self._is_closed:
            return
        node, in_sync = self._node(), self.feed.in_sync
        if self._elected is not None:
            self._elected.record(in_sync, node.commits.keep)
        blocks = self._settings.below_min_in_sync == "block"
        node.alarms.set_replicas_short(in_sync.is_short and blocks)
        node.broker.refuses_durable = in_sync.is_short and not blocks
        if node.broker.refuses_durable:
            node.commits.give_up()

    def _hand_over(self, follower: ProvenFollower, epoch: int) -> None:
        """See sent_node.LeaderState: append everything received, so that the follower gets it with the next cut."""
        if not self._leads or self._is_member:
            raise PreconditionFailed(
                "this node hands nothing over: it does not lead, or belongs to a cluster"
            )
        self._node().engine.flush()
        self._met(replace(follower, epoch=epoch, leader_id=follower.node_id))

    # -- what it cannot send ------------------------------------------------------------------

    def _damaged(self) -> set[str]:
        """See sent_node.LeaderState."""
        node = self._node()
        damaged = {log_name(queue) for queue in node.broker.queues.values() if queue.damage is not None}
        return node.tree.unreadable | damaged

    def _log_unreadable(self, name: str, error: StorageError) -> None:
        """See sent_node.LeaderState: take an unreadable queue or stream down.

        A mirror's copy is fetched again. Without any other log a follower is no copy. If only the system's descriptors
        have run out, the follower joins again.
        """
        if isinstance(error, OutOfDescriptors):
            raise error
        node = self._node()
        log = node.tree.logs.get(name)
        if self._is_member and log is not None and isinstance(error, Corrupt) and node.copy_gone(log, error):
            return
        for queue in node.broker.queues.values():
            if log_name(queue) == name:
                if queue.damage is None:
                    node.engine.take_down(queue, error)
                return
        raise error


def uri_of(settings: Followers, address: Address | None) -> str:
    """The URI of this node for other nodes; empty without a listener, or if its host is not configured."""
    if settings.advertised_uri is not None:
        return str(settings.advertised_uri)
    if address is None or ip_address(address.ip).is_unspecified:
        return ""
    return str(NodeUri("tls" if settings.tls.certfile else "tcp", *address))
