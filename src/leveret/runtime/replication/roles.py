"""What this process is - leader, follower, fenced - and how it changes.

A leader serves clients, and followers if it listens for them. A follower holds a node that serves nobody: it
shows what was followed so far. **Promotion** is a restart on the follower's directory without the process's
end: the link ends, the epoch is raised on disk, a node is built from the logs and its doors open. So what was
tested by every restart is what promotes, and any state that a crash in between leaves is one of a restart.

**Fencing.** The order of a promotion is: no more changes are taken from the old leader; the higher epoch is
durable; only then is anybody served. The node then tells its former leader of it until that follows. A leader
that meets a higher epoch writes that down, promises nothing from that instant on (`Feed.may_promise`, asked at
each promise), and only then closes its doors. It stays fenced over restarts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from leveret.config import Config
from leveret.config.uris import NodeUri
from leveret.core.in_sync import InSync
from leveret.model.errors import Corrupt, LeveretError, PreconditionFailed, StorageError
from leveret.runtime.commit import GroupCommit
from leveret.runtime.node import Node, clock_ms
from leveret.runtime.replication.applier import Applier
from leveret.runtime.replication.delaying import ALL_MS, Delaying, hands_of, refuse_to_lead
from leveret.runtime.replication.feed import Feed
from leveret.runtime.replication.fencer import Fencer
from leveret.runtime.replication.identity import IdentityFile
from leveret.runtime.replication.inbound import Inbound
from leveret.runtime.replication.inspection import Inspection
from leveret.runtime.replication.listener import ReplicationListener
from leveret.runtime.replication.outbound import Leading
from leveret.runtime.replication.promotion import undecided, why_not
from leveret.runtime.replication.sides import sides_of
from leveret.runtime.replication.standing import follower_status, held_back, leader_status, would_lose
from leveret.runtime.replication.succession import Succession
from leveret.runtime.stores import log_name
from leveret.runtime.tls import client_context, server_context
from leveret.session.link_handshake import Follower, Leader
from leveret.storage.divergent import SetAside
from leveret.storage.secret_file import SECRET_FILE, Secret, SecretError, make_or_read, read
from leveret.storage.tree import Tree

if TYPE_CHECKING:
    from leveret.runtime.cluster.clustered import Clustered
    from leveret.runtime.cluster.coordinator import Coordinator
    from leveret.runtime.replication.elected import Elected

logger = logging.getLogger(__name__)

_TLS: Final = "replication.ssl_options"
_PROMOTE_SETTLE_S: Final = 5.0


class Roles:
    """See the module; what the management API asks of a node's replication.

    Attributes:
        node: what is served or shown now.
        role: leader, follower or fenced.
        on_node: called with the node whenever it is another one.
        failed: set when the process must end.
        failure: why, if that is the operator's to put right.
    """

    def __init__(self, config: Config, data_dir: Path) -> None:
        """Read who this node is; serve nobody yet.

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
        self.listener: ReplicationListener | None = None
        self.inbound: Inbound | None = None
        self.feed: Feed | None = None
        self._identity = IdentityFile(data_dir)
        self._settings = config.followers
        self._succession = Succession(self._identity, self._fencer, self._replaced)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._unreadable: set[str] = set()
        self._applier: Applier | None = None
        self._delaying: Delaying | None = None
        self._elected: Elected | None = None
        if config.is_elected:
            # An HTTP client is a tenth of a second to import, which a start without etcd need not take.
            from leveret.runtime.replication.elected import Elected

            self._elected = Elected(config.etcd, self)
        self._clustered: Clustered | None = None
        if config.cluster.is_member:
            from leveret.runtime.cluster.clustered import Clustered

            node_id = self._identity.identity.node_id
            self._clustered = Clustered(config, data_dir, node_id, make_or_read(data_dir), self)
        self.inspection = Inspection(
            data_dir,
            name=config.node_name,
            node_id=self._identity.identity.node_id,
            tree=lambda: self.node.tree,
            state=lambda: self.state,
            queue_of=lambda name: self.node.queue_of(name),
            is_down=self._is_down,
            sides=lambda: sides_of(self.inbound, self.listener),
            clock_ms=clock_ms,
            interval_ms=config.followers.scrub_interval_ms,
        )

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Become what the configuration and the past say.

        Raises:
            LeveretError: a log is damaged, an address cannot be had, the secret is missing.
        """
        identity = self._identity.identity
        if self._clustered is not None:
            await self._clustered.start()
        elif self._elected is not None:
            await self._show("follower")
            self._spawn(self._elected.run())
        elif self._settings.follow is not None and not await self._succession.leads_on(self._settings.follow):
            await self._follow(self._settings.follow)
        elif identity.role == "leader" and identity.is_fenced:
            logger.error(
                "fenced epoch=%d seen_epoch=%d leader=%s action=serve_nobody hint=restart with --follow, or run "
                "leveretctl promote_follower --force",
                identity.epoch,
                identity.seen_epoch,
                identity.replaced_by or "unknown",
            )
            await self._show("fenced")
        else:
            # The seed's way to promote: the follower is started again, with the leader's flags.
            if identity.rewriting:
                raise PreconditionFailed(
                    f"{self.data_dir}: this node was being brought in line with its leader and does not have all "
                    "data; start it with --follow again, or start it so and run leveretctl promote_follower --force"
                )
            refuse_to_lead(self.data_dir)
            await self._lead(raises_epoch=identity.role == "follower")
        self._spawn(self.inspection.run())

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End in order: what was received is durable, and with the followers that are in sync."""
        self.inspection.stop()
        for task in list(self._tasks):
            task.cancel()
        self._succession.stop()
        async with self._changing:
            await self._close(in_order=True)
        if self._elected is not None:
            # Only now: what was received is with the followers, and one of them may lead.
            await self._elected.stop()
        if self._clustered is not None:
            await self._clustered.stop()

    async def _close(self, *, in_order: bool) -> None:
        """Whatever this node is, it is no more."""
        self._succession.stop()
        if self.inbound is not None:
            self.inbound.stop()
            self.inbound = None
        if self._delaying is not None:
            await self._delaying.stop()
            self._delaying = None
        if not hasattr(self, "node"):
            return
        if self.role != "leader":
            if in_order:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.node.commits.settle(), _PROMOTE_SETTLE_S)
            self.node.close()
        elif in_order:
            if self._clustered is not None:
                await self._clustered.hand_over()
            await self.node.stop()
        else:
            await self.node.abandon()
        if self._clustered is not None:
            await self._clustered.detach()
        if self.listener is not None:
            await self.listener.stop()
            self.listener = None
        self.feed = None
        self.node.tree.close()

    # -- to lead ------------------------------------------------------------------------------

    async def _lead(
        self, *, raises_epoch: bool, epoch: int = 0, recorded: frozenset[str] = frozenset()
    ) -> None:
        """Serve; in the epoch that was won, if one was, and then promises wait for those that are recorded."""
        self._succession.take_lead(raises_epoch=raises_epoch, epoch=epoch)
        tree = Tree(self.data_dir, epoch=self._identity.identity.stamp)
        node = self._take(Node(self.config, self.data_dir, tree), "leader")
        await node.recover()
        if self._settings.bind is not None:
            unreadable = tree.open_all()
            self._unreadable = set(unreadable)
            for name, error in unreadable.items():
                logger.error("log_not_replicated log=%s error=%s", name, error)
            await self._listen(node, waits=self._settings.confirm == "in_sync", recorded=recorded)
        await node.open()
        if self._elected is None:
            self._succession.tell_former_leaders(self.own_uri())

    async def serve_with(self, attach: Callable[[Node], Coordinator]) -> None:
        """See runtime.cluster.clustered.Host."""
        async with self._changing:
            await self._close(in_order=False)
            self._succession.take_lead(raises_epoch=False, epoch=0)
            tree = Tree(self.data_dir, epoch=self._identity.identity.stamp)
            node = self._take(Node(self.config, self.data_dir, tree), "leader")
            node.coordinator = attach(node)
            # Now it has a cluster, whose other nodes are to be answered.
            self.on_node(node)
            await node.recover()
            await node.coordinator.begin()
            await node.open()

    async def _lead_or_end(
        self, *, raises_epoch: bool, epoch: int = 0, recorded: frozenset[str] = frozenset()
    ) -> None:
        """As `_lead`, of a node that is no follower any more: if it cannot lead it is nothing, and ends.

        So its service manager starts it again; until then it does not look like a leader, nor holds a lease.
        """
        try:
            await self._lead(raises_epoch=raises_epoch, epoch=epoch, recorded=recorded)
        except Exception as error:
            logger.critical("cannot_lead epoch=%d error=%s action=stop", self.epoch, error)
            self.failed.set()
            raise

    def _take(self, node: Node, role: str) -> Node:
        self.node, self.role = node, role
        node.replication = self
        node.failed = self.failed
        self.on_node(node)
        return node

    async def _listen(self, node: Node, *, waits: bool, recorded: frozenset[str] = frozenset()) -> None:
        """Let followers in; from here on promises wait for those that are in sync."""
        settings = self._settings
        in_sync = InSync(
            ack_timeout_ms=settings.ack_timeout_ms,
            min_in_sync=settings.min_in_sync if waits else 0,
            records_shrink=waits and self._elected is not None,
            recorded=recorded,
        )
        self.feed = Feed(
            node.tree,
            in_sync,
            clock_ms,
            waits=waits,
            compress=settings.compression == "zstd",
            may_promise=self._may_promise if self.role == "leader" else lambda: True,
        )
        node.commits.fence = self.feed
        leading = Leading(
            tree=node.tree,
            feed=self.feed,
            commits=node.commits,
            secret=self._secret(role=self.role),
            identity=self._identity,
            name=self.config.node_name,
            bandwidth_bytes_s=settings.bandwidth_bytes_s,
            clock_ms=clock_ms,
            uri=self.own_uri,
            met=self._met,
            noticed=self._ticked,
            damaged=self._damaged,
            unreadable=self._log_unreadable,
            hand_over=self._hand_over,
            answer=self.inspection.answer,
        )
        self.listener = ReplicationListener(leading)
        tls = server_context(settings.tls, _TLS) if settings.tls.certfile else None
        assert settings.bind is not None
        await self.listener.start(settings.bind, settings.port, tls)

    def _may_promise(self) -> bool:
        """Whether nobody has taken this node's place, as far as can be known at this moment."""
        is_elected = self._elected is None or self._elected.may_promise()
        return is_elected and not self._identity.identity.is_fenced

    def _ticked(self) -> None:
        """Publishers are blocked, or their publishes refused, while too few followers are in sync."""
        if self._elected is not None and self.feed is not None and self.role == "leader":
            self._elected.record(self.feed.in_sync, self.node.commits.keep)
        is_short = self.feed is not None and self.role == "leader" and self.feed.in_sync.is_short
        blocks = self._settings.below_min_in_sync == "block"
        self.node.alarms.set_replicas_short(is_short and blocks)
        self.node.broker.refuses_durable = is_short and not blocks
        if self.node.broker.refuses_durable:
            self.node.commits.give_up()

    def _secret(self, *, role: str) -> Secret:
        """A leader makes one if there is none. With etcd nobody knows beforehand who leads first."""
        makes = role == "leader" or self._elected is not None
        return make_or_read(self.data_dir) if makes else read(self.data_dir)

    def own_uri(self) -> str:
        """Where other nodes find this one's replication listener; empty if it has none, or nobody says where."""
        if self._settings.advertised_uri is not None:
            return str(self._settings.advertised_uri)
        address = self.listener.address if self.listener is not None else None
        if address is None or ip_address(address.ip).is_unspecified:
            return ""
        return str(NodeUri("tls" if self._settings.tls.certfile else "tcp", *address))

    # -- to follow ----------------------------------------------------------------------------

    async def _follow(self, uri: NodeUri) -> None:
        secret = self._secret(role="follower")
        identity = self._identity.identity
        identity.role = "follower"
        self._identity.save()
        await self._show("follower")
        node = self.node
        self._applier = Applier(
            node.tree, node.commits, self._replayed, self._rewriting, self._joining, self._joined
        )
        hands = await hands_of(
            self.data_dir,
            self._applier,
            node.commits,
            apply_delay_ms=self._settings.apply_delay_ms,
            has_joined=identity.followed_epoch > 0 and identity.is_clean and not identity.rewriting,
            clock_ms=clock_ms,
        )
        self._delaying = hands if isinstance(hands, Delaying) else None
        self.inbound = Inbound(
            uri,
            secret=secret,
            identity=self._identity,
            name=self.config.node_name,
            own_uri=self.own_uri,
            hands=hands,
            commits=node.commits,
            followed=self,
            clock_ms=clock_ms,
            tls=lambda: client_context(self._settings.tls, _TLS),
            answer=self.inspection.answer,
            on_hopeless=self._give_up,
        )
        self._spawn(self.inbound.run())
        logger.info("following leader=%s node_id=%s epoch=%d", uri, identity.node_id, identity.epoch)

    def _give_up(self, error: LeveretError) -> None:
        """No further attempt can mend it."""
        self.failure = SecretError(f"{self.data_dir / SECRET_FILE}: {error}")
        self.failed.set()

    async def _show(self, role: str) -> None:
        """Hold everything, serve nobody."""
        tree = Tree(self.data_dir, epoch=self._identity.identity.stamp)
        commits = GroupCommit(
            fsync=self.config.storage.durability == "fsync", on_failure=lambda error: self._disk_failed(error)
        )
        try:
            node = Node(self.config, self.data_dir, tree, commits)
        except Corrupt as error:
            self._put_away(tree, "definitions", error)
            node = Node(self.config, self.data_dir, tree, commits)
        self._take(node, role)
        node.show()
        for name, damage in tree.open_all().items():
            self._put_away(tree, name, damage)
        if role == "follower" and self._settings.bind is not None:
            await self._listen(node, waits=False)

    def _disk_failed(self, error: BaseException) -> None:
        logger.critical("fdatasync_failed error=%s action=stop", error)
        self.failed.set()

    def _put_away(self, tree: Tree, name: str, error: StorageError) -> None:
        """A follower gets a damaged log anew; what is left of the old one is kept."""
        place = self.data_dir / "divergent" / f"damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        logger.error("damaged_log_put_away log=%s to=%s error=%s", name, place, error)
        tree.put_away(name, place)

    def _rewriting(self) -> None:
        """Durable before a log is touched: until the join ends this node is no copy of anything that was promised."""
        self._identity.identity.rewriting = True
        self._identity.save()
        if self.listener is not None:
            self.listener.send_away_all("it is being brought in line with its leader")

    def _replayed(self, name: str, log: Any, chunk: Any) -> None:
        self.node.replayed(name, log, chunk)

    def files(self) -> list[str]:
        """See inbound.Followed."""
        return [name for name, _ in self.node.tree.files()]

    def leader_epoch(self, leader: Leader) -> None:
        """See inbound.Followed: from here on its chunks may come."""
        assert self.inbound is not None
        self._succession.followed(leader, self.inbound.uri)

    def _set_aside(self, leader: Leader, logs_dir: Path | None = None) -> SetAside:
        """Keeps what this node has, and the leader has not."""
        identity = self._identity.identity
        return SetAside(
            self.data_dir,
            at_ms=clock_ms(),
            from_epoch=identity.epoch,
            to_epoch=leader.epoch,
            node_id=identity.node_id,
            leader_id=leader.node_id,
            leader_uri=leader.uri or str(self.inbound.uri if self.inbound else ""),
            name_of=self.node.queue_of,
            logs_dir=logs_dir,
        )

    def _joining(self, leader: Leader) -> None:
        """What this leader makes superfluous is kept."""
        if self._applier is not None:
            self._applier.aside = self._set_aside(leader)

    def _joined(self, leader: Leader) -> None:
        """All that this node has is the leader's."""
        identity = self._identity.identity
        applier = self._applier
        if applier is not None and isinstance(applier.aside, SetAside):
            report = applier.aside.finish()
            if report is not None:
                logger.warning(
                    "divergent_messages_set_aside report=%s see=list_divergent_messages", report.id
                )
            applier.aside = None
        is_same_reign = identity.reign == leader.reign
        identity.epoch = identity.followed_epoch = leader.epoch
        identity.leader_id, identity.led, identity.rewriting = leader.leader_id, False, False
        self._identity.save()
        if self.listener is not None and not is_same_reign:
            self.listener.send_away_all("its leader is another one now")
        if applier is not None and applier.has_rewritten:
            self._show_anew(applier)

    def _show_anew(self, applier: Applier) -> None:
        """What was shown may be of chunks that are gone."""
        applier.has_rewritten = False
        old = self.node
        node = self._take(Node(self.config, self.data_dir, old.tree, old.commits), self.role)
        node.show()

    # -- to be replaced, and to replace -------------------------------------------------------

    def _met(self, other: Follower) -> bool:
        """A node came to the listener; tell whether it, or whom it knows, has replaced this one."""
        if not self._succession.met(other):
            return False
        self._replaced(other)
        return self.role == "leader"

    def _replaced(self, other: Follower | Leader) -> None:
        """See Succession: what it tells of is on disk."""
        if self.role == "leader":
            logger.error(
                "replaced epoch=%d by_epoch=%d by=%s uri=%s action=stop_serving",
                self.epoch,
                other.epoch,
                other.name,
                other.uri or "unknown",
            )
            self._spawn(self.fence())

    def _hand_over(self, follower: Follower, epoch: int) -> None:
        """See outbound.Leading: what was received is appended, and goes to the follower with the next cut."""
        if self.role != "leader":
            raise PreconditionFailed("this node does not lead")
        self.node.engine.flush()
        self._met(replace(follower, epoch=epoch, leader_id=follower.node_id))

    def _is_down(self, vhost: str, name: str) -> bool:
        queue = self.node.broker.queues.get((vhost, name))
        return queue is not None and queue.damage is not None

    def _damaged(self) -> set[str]:
        """See outbound.Leading."""
        down = {log_name(queue) for queue in self.node.broker.queues.values() if queue.damage is not None}
        return down | self._unreadable

    def _log_unreadable(self, name: str, error: StorageError) -> None:
        """See outbound.Leading: a queue or stream is taken down; without any other log a follower is no copy."""
        for queue in self.node.broker.queues.values():
            if log_name(queue) == name:
                if queue.damage is None:
                    self.node.engine.take_down(queue, error)
                return
        raise error

    async def fence(self) -> None:
        """Stop serving; another node leads."""
        async with self._changing:
            if self.role == "leader":
                await self._close(in_order=False)
                await self._show(self._role_without_lease())

    def _role_without_lease(self) -> str:
        if self._clustered is not None:
            return "suspended"
        return "follower" if self._elected is not None else "fenced"

    # -- what etcd decides: elected.Candidate -------------------------------------------------

    @property
    def is_torn(self) -> bool:
        """See elected.Candidate."""
        return self._identity.identity.rewriting

    def standing_for(self) -> tuple[str, str, int]:
        """See elected.Candidate."""
        identity = self._identity.identity
        return identity.node_id, self.own_uri(), max(identity.epoch, identity.seen_epoch)

    async def lead_in(self, epoch: int, recorded: frozenset[str]) -> None:
        """See elected.Candidate."""
        async with self._changing:
            if self.role != "leader":
                await self._close(in_order=True)
                await self._lead_or_end(raises_epoch=False, epoch=epoch, recorded=recorded)

    async def follow_leader(self, uri: NodeUri) -> None:
        """See elected.Candidate."""
        async with self._changing:
            if self.inbound is not None and self.inbound.uri == uri:
                return
            await self._close(in_order=True)
            await self._follow(uri)

    def _fencer(self, uri: NodeUri) -> Fencer:
        return Fencer(
            uri,
            secret=self._secret(role="leader"),
            identity=self._identity,
            name=self.config.node_name,
            own_uri=self.own_uri,
            tls=lambda: client_context(self._settings.tls, _TLS),
        )

    async def promote(
        self, *, dry_run: bool, force: bool, apply_until_ms: int | None = None
    ) -> dict[str, Any]:
        """See management.node.ReplicationOperations."""
        if self.role == "leader":
            raise PreconditionFailed("this node leads already")
        outcome: dict[str, Any] = {
            "would_lose": would_lose(self.inbound, clock_ms()),
            "state": self.state,
            "epoch": self.epoch,
            "promoted": False,
            "took_ms": None,
            "held_back": None,
            "set_aside": None,
        }
        identity = self._identity.identity
        choice = undecided(self._delaying, apply_until_ms)
        reason = choice or why_not(self.role, identity, self.inbound, self._delaying, apply_until_ms)
        if self._delaying is not None:
            outcome["held_back"] = held_back(await self._delaying.left_after(apply_until_ms))
        if dry_run or choice or (reason and not force):
            return outcome | {"reason": reason or None}
        began_s = time.perf_counter()
        if self._elected is not None:
            declined = await self._elected.campaign(force=force)
            if declined:
                return outcome | {"reason": declined}
            return outcome | self._promoted(began_s)
        async with self._changing:
            if self.role == "leader":
                raise PreconditionFailed("this node leads already")
            until_ms = ALL_MS if apply_until_ms is None else apply_until_ms
            if self._delaying is not None:
                # The leader serves as long as this takes.
                await self._delaying.apply_only_until(until_ms)
            if self.inbound is not None:
                await self.inbound.take_over(max(identity.epoch, identity.seen_epoch) + 1)
            if self._delaying is not None:
                outcome["set_aside"] = await self._end_delay(self._delaying, until_ms)
            former = str(self.inbound.uri) if self.inbound is not None else identity.replaced_by
            await self._close(in_order=True)
            self._succession.took_over_from(former)
            await self._lead_or_end(raises_epoch=True)
        return outcome | self._promoted(began_s)

    async def _end_delay(self, delaying: Delaying, until_ms: int) -> str | None:
        """Apply what was cut until a time, and keep the rest elsewhere; the id of its report, None without any."""
        identity, inbound = self._identity.identity, self.inbound
        own = Leader(
            node_id=identity.node_id,
            name=self.config.node_name,
            epoch=max(identity.epoch, identity.seen_epoch) + 1,
            uri=self.own_uri(),
        )
        assert inbound is not None
        inbound.stop()
        try:
            report = await delaying.finish(until_ms, lambda logs_dir: self._set_aside(own, logs_dir))
        except LeveretError:
            await self._close(in_order=True)
            await self._follow(inbound.uri)
            raise
        return report.id if report is not None else None

    def _promoted(self, began_s: float) -> dict[str, Any]:
        took_ms = round((time.perf_counter() - began_s) * 1000)
        logger.warning("promoted epoch=%d took_ms=%d", self.epoch, took_ms)
        return {
            "promoted": True,
            "epoch": self.epoch,
            "state": self.state,
            "took_ms": took_ms,
            "reason": None,
        }

    # -- how it is ----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Of the data."""
        return self._identity.identity.epoch

    @property
    def state(self) -> str:
        """What a follower is at; else the role."""
        return self.inbound.state if self.inbound is not None else self.role

    def status(self) -> dict[str, Any]:
        """See management.node.ReplicationOperations."""
        identity, settings = self._identity.identity, self._settings
        address = self.listener.address if self.listener else None
        return {
            "role": self.role,
            "epoch": identity.epoch,
            "node_id": identity.node_id,
            "node": self.config.node_name,
            "state": self.state,
            "error": self.inbound.error if self.inbound else "",
            "listener": str(address) if address else None,
            "confirm": settings.confirm,
            "min_in_sync": settings.min_in_sync,
            "below_min_in_sync": settings.below_min_in_sync,
            **leader_status(self.feed, self.listener),
            "leader": follower_status(self.inbound, identity, settings.apply_delay_ms, clock_ms()),
            "etcd": self._elected.status() if self._elected is not None else None,
            "scrub": self.inspection.scrub_status(),
        }

    async def verify(self, follower: str | None, deep: bool) -> list[dict[str, Any]]:
        """See management.node.ReplicationOperations."""
        return await self.inspection.verify(follower, deep)

    async def scrub(self) -> dict[str, Any]:
        """See management.node.ReplicationOperations."""
        return await self.inspection.scrub()

    def divergent(self) -> list[dict[str, Any]]:
        """See management.node.ReplicationOperations."""
        return self.inspection.divergent()

    def divergent_messages(self, report_id: str | None) -> Iterator[dict[str, Any]]:
        """See management.node.ReplicationOperations."""
        return self.inspection.divergent_messages(report_id)
