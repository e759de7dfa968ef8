"""The role of this process - leader, follower, fenced - and its changes.

    leader      serves clients, and followers if it listens for them
    follower    serves no client: it shows the data followed so far, see following
    fenced      was a leader and was replaced: shows its data
    suspended   a node of a cluster that has lost its lease: shows its data

    follower, fenced -> leader      promoted by an operator, or elected
    leader -> fenced                it has received a higher epoch
    leader -> follower              etcd has another node lead now
    leader -> suspended -> leader   the lease of a node of a cluster was lost, and it has another one

Each change ends the present node and builds another one of the same directory; one change at a time.

**Promotion** is a restart on the follower's directory without the process's end: the link ends, the epoch is raised
on disk, a node is built from the logs and its listeners open. So a promotion uses the code that every restart tests,
and every state after a crash in between is a state of a restart.

**Fencing.** The order of a promotion is: no more changes are taken from the old leader; the higher epoch is durable;
only then is a client served. The node then tells its previous leader of the epoch until that follows. A leader that
receives a higher epoch writes it down, promises nothing from that instant on (`Feed.may_promise`, asked at each
promise), and only then closes its listeners. It stays fenced across restarts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from leveret.config import Config
from leveret.config.uris import NodeUri, parse_node_uri
from leveret.core.replication.election import TORN
from leveret.model.errors import Corrupt, LeveretError, PreconditionFailed, StorageError
from leveret.runtime.cluster.membership.listener import TLS_PREFIX as CLUSTER_TLS
from leveret.runtime.cluster.membership.membership_file import MembershipFile
from leveret.runtime.integrity.inspection import Inspection
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.node.node import Node
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.needed_tasks import ends_process
from leveret.runtime.proxying.client_proxy import ClientProxy
from leveret.runtime.proxying.passed_on_clients import PassedOnClients
from leveret.runtime.replication.identity import IdentityFile, LinkEnd, NodeIdentity
from leveret.runtime.replication.inbound import Inbound
from leveret.runtime.replication.listener import ReplicationListener
from leveret.runtime.replication.point_in_time import refuse_to_lead
from leveret.runtime.roles import passive_node
from leveret.runtime.roles.fencer import Fencer
from leveret.runtime.roles.follower_server import TLS, FollowerServer, uri_of
from leveret.runtime.roles.following import FollowerRole
from leveret.runtime.roles.inspected_roles import InspectedRoles
from leveret.runtime.roles.leaderships import Leaderships
from leveret.runtime.roles.protocol_endpoints import HttpEndpoint, endpoint_of
from leveret.runtime.sockets.acceptor import Accepted, ProtocolEndpoint
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.runtime.sockets.tls import client_context
from leveret.session.link_handshake import ProvenFollower, ProvenLeader
from leveret.storage.disk import free_disk_bytes
from leveret.storage.reserve import Reserve
from leveret.storage.secret_file import SECRET_FILE, Secret, SecretError, make_or_read, read
from leveret.storage.tree import Tree

if TYPE_CHECKING:
    from leveret.runtime.cluster.coordinator import Coordinator
    from leveret.runtime.coordination.elected_node import ElectedNode
    from leveret.runtime.roles.clustered import Clustered

logger = logging.getLogger(__name__)

RESERVE_EVERY_S: Final = 1.0


class Roles:
    """See the module.

    Attributes:
        node: the node that is served or shown now.
        role: leader, follower, fenced or suspended.
        follower_server: the server for this node's followers; None without one.
        following: a follower's link and logs; None in other roles.
        elected: the election in etcd; None without one.
        inspection: the checks of its data.
        proxy: passes clients on to the leader while this node does not lead; None if it is not to.
        passed_on_clients: the clients that other nodes pass on to this one.
        http_endpoint: the way in to the HTTP listeners, with or without TLS; None without one.
        on_node: called with each new node, once it has all data; until then the one before it is shown.
        failed: set when the process must end.
        failure: the reason for that, if an operator can remove it.
    """

    def __init__(self, config: Config, data_dir: Path, commands: Callable[[Roles], object]) -> None:
        """Read the node's identity; serve no client yet.

        Args:
            config: the process's settings.
            data_dir: the data directory.
            commands: makes the operators' commands for these roles.

        Raises:
            StorageError: `replication.json` is damaged.
        """
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.config = config
        self.data_dir = data_dir
        self.role = "leader"
        self.failed = asyncio.Event()
        self.failure: LeveretError | None = None
        self.node: Node
        self.on_node: Callable[[Node], None] = lambda node: None
        self.follower_server: FollowerServer | None = None
        self.following: FollowerRole | None = None
        self._identity = IdentityFile(data_dir)
        self._settings = config.followers
        self._leaderships = Leaderships(self._identity, self._fencer, self._replaced)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._commands = commands(self)
        self.passed_on_clients = PassedOnClients(self._endpoint)
        self.http_endpoint: HttpEndpoint = lambda is_tls: None
        self.proxy: ClientProxy | None = None
        if config.followers.proxy:
            self.proxy = ClientProxy(config, self._proxy_end, self._leader_uris)
        self.elected: ElectedNode | None = None
        if config.is_elected:
            # Importing an HTTP client takes a tenth of a second, which a start without etcd saves.
            from leveret.runtime.coordination.elected_node import ElectedNode

            self.elected = ElectedNode(config.etcd, self)
        self._clustered: Clustered | None = None
        if config.cluster.is_member:
            from leveret.runtime.roles.clustered import Clustered

            self._clustered = Clustered(
                config,
                data_dir,
                self.identity.node_id,
                make_or_read(data_dir),
                self,
                copied_cluster=lambda: self.identity.cluster if self.identity.role == "follower" else "",
            )
        self.inspection = Inspection(
            data_dir,
            InspectedRoles(self),
            clock_ms=clock_ms,
            interval_ms=config.followers.scrub_interval_ms,
        )

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the role that the settings and the stored identity define.

        Raises:
            LeveretError: a log is damaged, an address cannot be used, the secret is missing.
        """
        identity = self.identity
        if self._clustered is None:
            MembershipFile(self.data_dir).give_up()
        if self._clustered is not None:
            await self._clustered.start()
        elif self.elected is not None:
            await self._show("follower")
            self._spawn(self.elected.run())
        elif self._settings.follow is not None and not await self._leaderships.leads_on(
            self._settings.follow
        ):
            await self._follow(self._settings.follow)
        elif identity.role == "leader" and await self._leaderships.is_replaced():
            logger.error(
                "fenced epoch=%d seen_epoch=%d leader=%s action=serve_nobody hint=restart with --follow, or run "
                "leveretctl promote_follower --force",
                identity.epoch,
                identity.seen_epoch,
                identity.replaced_by or "unknown",
            )
            await self._show("fenced")
        else:
            # A promotion as in LavinMQ: the follower is started again, with the leader's flags.
            if identity.role == "follower":
                self._look_for_lost_logs()
            if identity.rewriting:
                raise PreconditionFailed(
                    f"{self.data_dir}: {TORN}, and it does not have all data; start it with --follow again, or start "
                    "it so and run leveretctl promote_follower --force"
                )
            if identity.role == "follower" and not (identity.followed_epoch or identity.led):
                raise PreconditionFailed(
                    f"{self.data_dir}: this node has never finished joining a leader, so it does not have all data; "
                    "start it with --follow again, or start it so and run leveretctl promote_follower --force"
                )
            if identity.role == "follower" and identity.cluster:
                raise PreconditionFailed(
                    f"{self.data_dir} is a copy of a node of cluster {identity.cluster}, which may still be there: "
                    "start it with --follow and run leveretctl promote_follower to have a broker of its own; to bring "
                    "up a whole cluster from such copies see leveretctl help describe_copy"
                )
            refuse_to_lead(self.data_dir, clock_ms())
            await self._lead(raises_epoch=identity.role == "follower")
        self._spawn(self.inspection.run())
        self._spawn(self._hold_reserve())

    async def _hold_reserve(self) -> None:
        """Hold the disk's reserve while this node does not lead; a leader does so itself (node.alarms).

        Save what the disk refused to record, too: by whom this node was replaced.
        """
        while True:
            await asyncio.sleep(RESERVE_EVERY_S)
            if hasattr(self, "node") and not self.node.is_open:
                await self.node.alarms.hold_reserve()
                with suppress(StorageError):
                    self._identity.save_changes()

    def _make_room(self) -> None:
        """Give up the reserve of a full disk, because the promotion must be recorded before this node leads."""
        size_bytes = self.config.storage.reserve_bytes
        if Reserve(self.data_dir, size_bytes).give_up(free_disk_bytes(self.data_dir)):
            logger.warning("disk_reserve_given_up size_bytes=%d reason=promotion", size_bytes)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(ends_process(self.failed))

    async def stop(self) -> None:
        """Stop in order, once all received changes are durable here and at the followers in sync.

        A node that has failed stops at once. It keeps no promise any more and can hand nothing over, and until it is
        gone no other node leads: a wait for its clients, or for acks of what it cannot store, lengthens the outage.
        """
        self.inspection.stop()
        for task in list(self._tasks):
            task.cancel()
        self._leaderships.stop()
        async with self._changing:
            await self._close(in_order=not self.failed.is_set())
        if self.elected is not None:
            # Last: the followers have all changes by now, and one of them may lead.
            await self.elected.stop()
        if self._clustered is not None:
            await self._clustered.stop()

    async def _close(self, *, in_order: bool) -> None:
        """End the present role and its node."""
        self._leaderships.stop()
        self.passed_on_clients.stop()
        if self.proxy is not None:
            # This node's own listeners may need the addresses, and the leader may be another one from here on.
            self.proxy.close()
        following, self.following = self.following, None
        if following is not None:
            await following.stop()
        if not hasattr(self, "node"):
            return
        if self.role != "leader":
            if in_order:
                await passive_node.settle(self.node)
            # A join may have replaced the node.
            self.node.close()
        elif in_order and self.node.is_open:
            if self._clustered is not None:
                await self._clustered.hand_over()
            await self.node.stop()
        else:
            await self.node.abandon()
        if self._clustered is not None:
            await self._clustered.detach()
        if self.follower_server is not None:
            await self.follower_server.close()
            self.follower_server = None
        self.node.tree.close()

    # -- to lead ------------------------------------------------------------------------------

    async def _lead(
        self, *, raises_epoch: bool, epoch: int = 0, recorded: frozenset[str] = frozenset()
    ) -> None:
        """Lead, in the epoch won in an election if there is one; promises also wait for the recorded nodes."""
        self._make_room()
        self._leaderships.take_lead(raises_epoch=raises_epoch, epoch=epoch)
        node, self.role = self._build(), "leader"
        self.node = node
        await node.recover()
        # Not before: it has no users yet, and its queues no messages.
        self.on_node(node)
        # What is missing now is missing for all who follow: a later start does not call it lost.
        self.identity.note_whole(passive_node.stored_logs(node))
        self._identity.save()
        if self._settings.bind is not None:
            await node.open_all_logs()
            await self._listen(self._settings.bind, recorded=recorded)
        await node.open()
        if self.elected is None:
            self._leaderships.notify_former_leaders(self.own_uri())

    async def serve_with(self, attach: Callable[[Node], Coordinator]) -> None:
        """See runtime.roles.clustered.NodeHost."""
        async with self._changing:
            await self._close(in_order=False)
            # A member's data are its own, also where they began as a copy.
            self.identity.cluster = ""
            self._leaderships.take_lead(raises_epoch=False, epoch=0)
            node, self.role = self._build(), "leader"
            self.node = node
            if self._settings.bind is not None:
                # First: promises then wait for mirrors and for followers.
                self.follower_server = self._followers_of(node, recorded=frozenset())
            coordinator = attach(node)
            await node.recover()
            # Not before: it has no users yet, and its queues no messages. From `begin` on other nodes expect answers.
            self.on_node(node)
            if self.follower_server is not None:
                await node.open_all_logs()
            await coordinator.begin()
            if self.follower_server is not None:
                await self.follower_server.open(str(self._settings.bind))
            await node.open()

    async def _lead_or_end(
        self, *, raises_epoch: bool, epoch: int = 0, recorded: frozenset[str] = frozenset()
    ) -> None:
        """As `_lead`, after the end of following: if the node cannot lead, the process ends.

        Its service manager starts it again; until then it neither looks like a leader nor holds a lease.
        """
        try:
            await self._lead(raises_epoch=raises_epoch, epoch=epoch, recorded=recorded)
        except Exception as error:
            logger.critical("cannot_lead epoch=%d error=%s action=stop", self.identity.epoch, error)
            self.failure = error if isinstance(error, LeveretError) else None
            self.failed.set()
            raise

    def _build(self) -> Node:
        """Build a node that will serve."""
        tree = Tree(
            self.data_dir,
            epoch=self.identity.stamp,
            segments_open_max=process_sockets().budget.logs,
        )
        return Node(self.config, self.data_dir, tree, failed=self.failed, replication=self._commands)

    def _take(self, node: Node, role: str) -> None:
        self.node, self.role = node, role
        self.on_node(node)

    async def _listen(self, ip: str, *, recorded: frozenset[str]) -> None:
        """Accept followers."""
        self.follower_server = self._followers_of(self.node, recorded=recorded)
        await self.follower_server.open(ip)

    def _followers_of(self, node: Node, *, recorded: frozenset[str]) -> FollowerServer:
        """Have the node's promises wait for followers, none of which is accepted yet."""
        return FollowerServer(
            lambda: self.node,
            self.config,
            leads=self.role == "leader",
            own=self._link_end(role=self.role),
            elected=self.elected,
            recorded=recorded,
            met=self._met,
            answer=self.inspection.answer,
            accept_client=self.passed_on_clients.accept_client,
        )

    def _secret(self, *, role: str) -> Secret:
        """The secret; a leader makes a missing one. With etcd the first leader is unknown, so every node does."""
        makes = role == "leader" or self.elected is not None
        return make_or_read(self.data_dir) if makes else read(self.data_dir)

    def own_uri(self) -> str:
        """The URI at which other nodes follow this one; empty if they cannot, or if its host is not configured."""
        return uri_of(self._settings, self.listener.address if self.listener is not None else None)

    # -- to follow ----------------------------------------------------------------------------

    async def _follow(self, uri: NodeUri, *, is_fetching_again: bool = False) -> None:
        own = self._link_end(role="follower")
        self.identity.role = "follower"
        self._identity.save()
        was_torn = self.identity.rewriting
        await self._show("follower")
        following = FollowerRole(
            uri,
            self.node,
            self.config,
            own,
            leaderships=self._leaderships,
            took=self._took_anew,
            send_away=self._send_followers_away,
        )
        await following.start(
            self.inspection.answer,
            self.inspection.repaired,
            self._give_up,
            is_fetching_again=is_fetching_again or was_torn != self.identity.rewriting,
        )
        self.following = following
        self._spawn(following.inbound.run())

    def _took_anew(self, node: Node) -> None:
        self._take(node, self.role)

    def _send_followers_away(self, why: str) -> None:
        if self.listener is not None:
            self.listener.send_away_all(why)

    def _give_up(self, error: LeveretError) -> None:
        """End the process, because no further attempt can succeed."""
        self.failure = SecretError(f"{self.data_dir / SECRET_FILE}: {error}")
        self.failed.set()

    async def _show(self, role: str) -> None:
        """Hold the data without serving clients."""
        clustered = self._clustered
        node = passive_node.build(
            self.config,
            self.data_dir,
            stamp=self.identity.stamp,
            failed=self.failed,
            damaged=self._damaged_copy,
            note_incomplete=self._note_incomplete,
            replication=self._commands,
            cluster=clustered.suspended() if clustered is not None else None,
        )
        self._take(node, role)
        passive_node.show(node, self.identity, self._note_incomplete, is_ones_own=clustered is not None)
        self._note_lost_logs(node)
        if role == "follower" and self._settings.bind is not None:
            await self._listen(self._settings.bind, recorded=frozenset())
        if self.proxy is not None:
            await self.proxy.open()

    def _note_incomplete(self) -> None:
        """Have it on disk that this node lacks what it had: until it has joined a leader, a promotion needs force."""
        if self._clustered is None:
            self.identity.rewriting = True
            self._identity.save_changes()

    def _look_for_lost_logs(self) -> None:
        """As `_note_lost_logs`, before a follower leads by a start: its epoch is not raised yet."""
        node = self._build()
        try:
            self._note_lost_logs(node)
        finally:
            node.close()
            node.tree.close()

    def _note_lost_logs(self, node: Node) -> None:
        """Notice logs that were removed while this node was down, and have it on disk that it is incomplete.

        Another node may have them, so this one is elected only if no other one was in sync. A log that the leader
        lacked as well is not lost here: the record of the last join, or of the begin of this node's own leadership,
        names it.
        """
        stored = passive_node.stored_logs(node)
        lost, lost_definitions = self.identity.lost_logs(stored), self.identity.lost_definitions(stored)
        if self._clustered is not None or not (lost or lost_definitions):
            return
        self._note_incomplete()
        passive_node.report_lost_logs(node, lost, lost_definitions=lost_definitions)

    def _damaged_copy(self, commits: GroupCommit, error: Corrupt) -> None:
        """Fetch a log of this follower again that is damaged or gone; acks have ended."""
        logger.error("damaged_copy log=%s error=%s action=fetch_again", error.log, error)
        self._spawn(self._fetch_again(commits, error))

    async def _fetch_again(self, commits: GroupCommit, error: Corrupt) -> None:
        """Move the rest of a damaged log away, and follow as after a start: the leader sends the missing records.

        Until these have come this node is incomplete, and a promotion needs force. That is recorded on disk first, so
        it holds after a crash as well.
        """
        async with self._changing:
            if self.role != "follower" or self.node.commits is not commits:
                return
            try:
                self._note_incomplete()
                uri = self.following.uri if self.following is not None else None
                await self._close(in_order=False)
                directory = Path(error.log)
                if directory.is_relative_to(self.data_dir):
                    passive_node.put_away(self.data_dir, str(directory.relative_to(self.data_dir)), error)
                if uri is not None:
                    await self._follow(uri, is_fetching_again=True)
                else:
                    await self._show("follower")
            except Exception as failure:
                is_bug = not isinstance(failure, LeveretError)
                logger.critical("copy_not_fetched_again error=%s action=stop", failure, exc_info=is_bug)
                self.failed.set()

    # -- clients that are passed on -------------------------------------------------------------

    def _leader_uris(self) -> Sequence[NodeUri]:
        """Where the present leader is, or other nodes of the cluster are; empty if this node does not know."""
        if self._clustered is not None:
            return self._clustered.others()
        if self.following is not None:
            return (self.following.uri,)
        is_replaced = self.role == "fenced" and self.identity.replaced_by
        return (parse_node_uri(self.identity.replaced_by),) if is_replaced else ()

    def _proxy_end(self) -> LinkEnd:
        """This node's end of the links that pass clients on."""
        own = self._link_end(role=self.role)
        if self._clustered is None:
            return own
        return own._replace(tls=lambda: client_context(self.config.cluster.tls, CLUSTER_TLS))

    def proxied(self, endpoint: str, accepted: Accepted) -> asyncio.BaseProtocol | None:
        """The object that passes on a connection to the HTTP listener; None if this node answers itself."""
        if self.proxy is None or not self.proxy.is_open:
            return None
        return self.proxy.client(endpoint, accepted)

    def _endpoint(self, name: str, hops: int) -> ProtocolEndpoint:
        """See passed_on_clients.FindEndpoint."""
        if self.role != "leader":
            if self.proxy is not None and self.proxy.is_open:
                return self.proxy.endpoint(name, hops)
            raise PreconditionFailed(f"{self.config.node_name} does not lead: it is {self.state}")
        return endpoint_of(self.node, name, self.http_endpoint)

    # -- to be replaced, and to replace -------------------------------------------------------

    def _met(self, other: ProvenFollower) -> bool:
        """Take note of a connecting node; return whether it, or a node that it knows, has replaced this leader."""
        # Nobody replaces a node of a cluster but by the records in etcd.
        if self._clustered is not None:
            return False
        if not self._leaderships.met(other):
            return False
        self._replaced(other)
        return self.role == "leader"

    def _replaced(self, other: ProvenFollower | ProvenLeader) -> None:
        """See Leaderships: the later leadership is on disk."""
        if self.role == "leader":
            logger.error(
                "replaced epoch=%d by_epoch=%d by=%s uri=%s action=stop_serving",
                self.identity.epoch,
                other.epoch,
                other.name,
                other.uri or "unknown",
            )
            self._spawn(self.fence())

    async def fence(self) -> None:
        """Stop serving, because another node leads."""
        async with self._changing:
            if self.role == "leader":
                await self._close(in_order=False)
                await self._show(self._role_without_lease())

    def _role_without_lease(self) -> str:
        if self._clustered is not None:
            return "suspended"
        return "follower" if self.elected is not None else "fenced"

    # -- what etcd decides: elected_node.ElectionCandidate -------------------------------------------------

    @property
    def is_torn(self) -> bool:
        """See elected_node.ElectionCandidate."""
        return self.identity.rewriting

    def standing_for(self) -> tuple[str, str, int]:
        """See elected_node.ElectionCandidate."""
        identity = self.identity
        return identity.node_id, self.own_uri(), max(identity.epoch, identity.seen_epoch)

    async def lead_in(self, epoch: int, recorded: frozenset[str]) -> None:
        """See elected_node.ElectionCandidate."""
        async with self._changing:
            if self.role != "leader":
                await self._close(in_order=True)
                await self._lead_or_end(raises_epoch=False, epoch=epoch, recorded=recorded)

    async def follow_leader(self, uri: NodeUri) -> None:
        """See elected_node.ElectionCandidate."""
        async with self._changing:
            if self.following is not None and self.following.uri == uri:
                return
            await self._close(in_order=True)
            await self._follow(uri)

    def _fencer(self, uri: NodeUri) -> Fencer:
        return Fencer(uri, self._link_end(role="leader"))

    def _link_end(self, *, role: str) -> LinkEnd:
        """This node's end of links in that role: its proof, and its facts for peers."""
        return LinkEnd(
            secret=self._secret(role=role),
            identity=self._identity,
            name=self.config.node_name,
            own_uri=self.own_uri,
            tls=lambda: client_context(self._settings.tls, TLS),
            cluster=self._cluster_id,
        )

    def _cluster_id(self) -> str:
        """The cluster that this node belongs to, or whose node it follows; empty for none."""
        if self._clustered is not None:
            return MembershipFile(self.data_dir).cluster_id
        return self.identity.cluster if self.role != "leader" else ""

    # -- to be promoted by an operator, see operations ----------------------------------------

    def refuse_if_leading(self) -> None:
        """Raise PreconditionFailed if this node leads."""
        if self.role == "leader":
            raise PreconditionFailed("this node leads already")

    def occupied_address(self) -> str:
        """Why this node could not serve clients if it led: another process has an address. Empty if it could.

        To be asked before the leader hands over, or a lease is taken: then nobody would serve.
        """
        # Where it passes clients on, it listens there itself.
        listens_itself = self.proxy is not None and self.proxy.is_open
        return "" if listens_itself else self.node.occupied_address()

    async def take_over(self, until_ms: int) -> str | None:
        """Lead in an epoch of its own; a delayed follower with the changes that the leader had made by a time.

        Returns:
            The id of the report of the quarantined rest; None if there is none.

        Raises:
            LeveretError: the node leads already; or it cannot go back to that time, and it follows as before; or it
                cannot lead, and the process ends.
        """
        async with self._changing:
            self.refuse_if_leading()
            self._make_room()
            following, former, report = self.following, self.identity.replaced_by, None
            if following is not None:
                former, report = str(following.uri), await self._end_following(following, until_ms)
            epoch = self.node.tree.epoch_above() if self.identity.cluster else 0
            await self._close(in_order=True)
            if not self.identity.cluster:
                self._leaderships.took_over_from(former)
            await self._lead_or_end(raises_epoch=True, epoch=epoch)
        return report

    async def _end_following(self, following: FollowerRole, until_ms: int) -> str | None:
        """Receive all changes of the leader, unless it is in a cluster, then have the logs as of a time."""
        if following.delaying is not None:
            # First: a leader that has handed over confirms nothing any more, whatever becomes of this node.
            await following.delaying.hold(until_ms)
        if not self.identity.cluster:
            await following.inbound.take_over(self._next_epoch())
        try:
            return await following.end_delay(until_ms, self._next_epoch())
        except LeveretError:
            await self._close(in_order=True)
            await self._follow(following.uri)
            raise

    def _next_epoch(self) -> int:
        identity = self.identity
        return max(identity.epoch, identity.seen_epoch) + 1

    # -- how it is ----------------------------------------------------------------------------

    @property
    def listener(self) -> ReplicationListener | None:
        """The listener for followers, None for none."""
        return self.follower_server.listener if self.follower_server is not None else None

    @property
    def inbound(self) -> Inbound | None:
        """A follower's link to its leader, None in other roles."""
        return self.following.inbound if self.following is not None else None

    @property
    def identity(self) -> NodeIdentity:
        """The identity and the history of this node."""
        return self._identity.identity

    @property
    def state(self) -> str:
        """A follower's state; in other roles the role."""
        return self.inbound.state if self.inbound is not None else self.role
