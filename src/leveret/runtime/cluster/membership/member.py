"""This process as a member of a cluster: it enters, applies the changes of others, and leaves.

**Entering.** First the node gets a lease and reads everything that etcd holds. Then it is announced without an
address: from then on no other node takes over its queues, and no other node waits for it yet. The first node of all
founds the cluster with its own definitions: it keeps the definitions lock until they, and the cluster's id, are
stored. Then a node is built from the state in etcd; its own definitions log is the state of its last stop. Then the
node is announced with its address: from then on a declare at any node waits until this node has applied it.

**Losing the lease.** A node without its lease keeps no promise (`GroupCommit.replication_barrier`), and `roles`
builds it anew from the start.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

import leveret
from leveret.config import Config
from leveret.core.replication.cluster import (
    Changed,
    ClusterKeys,
    ClusterState,
    DefinitionChanged,
    Event,
    MemberRecord,
    Presence,
    cluster_proof,
    encode,
)
from leveret.core.replication.election import Holds, PutKey, StoreTransaction
from leveret.core.replication.placement import ClusterView
from leveret.core.schema.decisions import SchemaDecided
from leveret.model.errors import LeveretError, PreconditionFailed, StorageError
from leveret.runtime.cluster.membership.definitions_lock import DefinitionsLockHolder
from leveret.runtime.cluster.membership.links import MemberLinks
from leveret.runtime.cluster.membership.membership_file import RUNS_NAME, MembershipFile
from leveret.runtime.cluster.membership.store import ClusterStore
from leveret.runtime.coordination.etcd_outages import EtcdOutages
from leveret.runtime.process.clock import clock_ms
from leveret.session.link_handshake import ProvenFollower
from leveret.storage.secret_file import SECRET_FILE, Secret

logger = logging.getLogger(__name__)

_ID_BYTES: Final = 12
_RUN_ID_BYTES: Final = 9
_ASK_AGAIN_S: Final = 0.05
_REMEMBER_S: Final = 10.0
"""The interval at which a node stores which revision of etcd it has seen."""

Answer = Callable[[str, str, Any], Awaitable[Any]]
"""(requesting node, name of the request, its arguments) -> the answer."""


class ClusterMember:
    """See the module.

    Attributes:
        state: the contents of etcd, as far as this node has applied them.
        store: the client of etcd.
        definitions_lock: acquires the definitions lock.
        is_founder: whether this node founds the cluster.
        run_id: the id of this run.
        node_id: the id of this node's data.
        http_uri: the address of this node's management API.
        found_with: the decisions on schema replication with which this node would found a cluster.
    """

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        node_id: str,
        secret: Secret,
        on_lost: Callable[[str], None],
        *,
        former_leases: set[int] | None = None,
        outages: EtcdOutages | None = None,
        copied_cluster: str = "",
    ) -> None:
        """Enter nothing yet; `on_lost` gets the reason why this node must begin anew. For the rest see ClusterStore.

        `copied_cluster`: the data are a copy of a node of that cluster; empty if the data are this node's own.
        """
        self.state = ClusterState(ClusterKeys.under(config.etcd.prefix))
        self.is_founder = False
        self.found_with = SchemaDecided()
        self.run_id = secrets.token_urlsafe(_RUN_ID_BYTES)
        self.http_uri = f"http://{config.management.ip}:{config.management.port}"
        self._config = config
        self._data_dir = data_dir
        self.node_id = node_id
        self._secret = secret
        self._copied_cluster = copied_cluster
        self._on_lost = on_lost
        self._file = MembershipFile(data_dir)
        self._started_at_ms = clock_ms()
        self._taker: Callable[[list[Changed]], None] | None = None
        self._pending: list[Changed] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._links: MemberLinks | None = None
        self._founding = ExitStack()
        self._changed = asyncio.Event()
        self._uri = ""
        self._leaving = asyncio.Event()
        self._remembering: asyncio.Task[None] | None = None
        self._draining = False
        self._streams: tuple[str, int] | None = None
        self._streams_tls: tuple[str, int] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.store = ClusterStore(config, self._take_events, self.lost, former=former_leases, outages=outages)
        self.definitions_lock = DefinitionsLockHolder(self.store, self.state, self.name)

    @property
    def name(self) -> str:
        """The name of this node."""
        return self._config.node_name

    # -- entering and leaving -----------------------------------------------------------------

    async def enter(self) -> None:
        """Enter the cluster, or found it; when this returns, other nodes know that this one runs.

        Raises:
            LeveretError: etcd does not answer, or this node cannot belong to that cluster; the text has the remedy.
        """
        self._file.begin()
        remembered = self._file.cluster_id
        await self.store.start()
        # Before the announcement: with each try it would raise the revision of an etcd that is older than this node's.
        self._check_age(remembered)
        self._check_runs()
        await self.store.announce(lambda: self._presence(""))
        self._spawn(self.definitions_lock.run())
        if not self.state.cluster_id:
            if remembered:
                raise PreconditionFailed(
                    f"this node belongs to cluster {remembered}, and etcd below {self.state.keys.prefix} has none: "
                    "see that cluster.etcd.endpoints and cluster.etcd.prefix are right; if etcd's data are lost, "
                    "make new records from the nodes' data (leveretctl describe_copy, rebuild_cluster)"
                )
            if self._copied_cluster:
                raise PreconditionFailed(
                    f"{self._data_dir} is a copy of a node of cluster {self._copied_cluster}, and etcd below "
                    f"{self.state.keys.prefix} has none: have all nodes' copies make one cluster first (leveretctl "
                    "describe_copy, rebuild_cluster), or promote this copy alone"
                )
            # The founder keeps the lock until its definitions are stored: then the others find a cluster to join.
            self._founding.enter_context(self.definitions_lock.pinned())
            await self.definitions_lock.fetched()
            self.is_founder = not self.state.cluster_id
            if not self.is_founder:
                self._founding.close()
        # Again: the announcement waits while another process with this name runs, perhaps on the data's origin.
        self._check_runs()
        self._check_identity(remembered)

    def _check_age(self, remembered: str) -> None:
        """Refuse to start with an etcd that was restored from an older copy.

        It names earlier leaders, and lacks the queues that were declared since: this node would delete their logs.
        """
        state, seen = self.state, self._file.revision
        if remembered and remembered == state.cluster_id and state.revision < seen:
            raise PreconditionFailed(
                f"etcd has revision {state.revision}, and this node has seen its revision {seen}: etcd was restored "
                "from an older copy, and only the nodes' data have what changed since; let etcd have its latest data "
                "again, or make new records from the nodes' data below another cluster.etcd.prefix (leveretctl "
                "describe_copy, rebuild_cluster)"
            )

    def _check_runs(self) -> None:
        """Refuse to start with an older copy of this node's data.

        Etcd's records count on what the node had in its later runs: it would lead queues without messages that it has
        acked as a mirror, and the leader's copy would be cut.
        """
        record, runs = self.state.members.get(self.name), self._file.runs
        if record is None or record.node_id != self.node_id or runs is None or runs >= record.runs:
            return
        raise PreconditionFailed(
            f"{self._data_dir} is of run {runs} of node '{self.name}', and the cluster has seen its run {record.runs}: "
            "the directory was restored from an older copy, or a copy of it ran elsewhere, and it lacks what was "
            "confirmed since; let the node have its latest data, or run leveretctl forget_cluster_node "
            f"{self.name} on a node of the cluster and start with an empty data directory; if these data are the best "
            f"that there are, remove {self._data_dir / RUNS_NAME}, and the node serves them"
        )

    def _check_identity(self, remembered: str) -> None:
        """Refuse to start with data, a name or a secret that do not belong to this cluster."""
        state, me = self.state, self.name
        record = state.members.get(me)
        is_rebuilt = record is not None and record.node_id == self.node_id
        if remembered and remembered != state.cluster_id and not is_rebuilt:
            raise PreconditionFailed(
                f"this node belongs to cluster {remembered}, and etcd below {state.keys.prefix} has cluster "
                f"{state.cluster_id}: see cluster.etcd.endpoints and cluster.etcd.prefix, or start with another data "
                "directory"
            )
        was = next((name for name, each in state.members.items() if each.node_id == self.node_id), me)
        if was != me:
            raise PreconditionFailed(
                f"this data directory is that of node '{was}' of cluster {state.cluster_id}, and nodename is now "
                f"'{me}': a node keeps its name; set nodename = {was} again, or start '{me}' with a data directory of "
                "its own"
            )
        if record is not None and record.node_id != self.node_id:
            raise PreconditionFailed(
                f"the cluster has another node '{me}': give this one another nodename, or, if it replaces that one, "
                f"run leveretctl forget_cluster_node {me} on a node of the cluster first"
            )
        if record is None and remembered:
            raise PreconditionFailed(
                f"node '{me}' was taken out of cluster {remembered}: to join it again start with an empty data "
                "directory"
            )
        if self._copied_cluster and record is None:
            raise PreconditionFailed(
                f"{self._data_dir} is a copy of a node of cluster {self._copied_cluster}: a follower is no member of "
                "the cluster that it follows; to join one, start with an empty data directory"
            )
        if not self.is_founder and record is None and self._file.had_data:
            raise PreconditionFailed(
                f"{self._data_dir} has definitions of its own, and cluster {state.cluster_id} has others: to join, "
                "start with an empty data directory"
            )
        # No node would accept its links, and all would wait for it as long as it runs.
        if state.proof and not hmac.compare_digest(state.proof, self._proof(state.cluster_id)):
            path = self._data_dir / SECRET_FILE
            raise PreconditionFailed(
                f"{path} is not the secret of cluster {state.cluster_id}: replace it with a copy of another node's"
            )

    def _proof(self, cluster_id: str) -> str:
        return cluster_proof(self._secret.octets, cluster_id)

    async def joined(self) -> None:
        """Record this node as a member: it has all definitions, or founds the cluster with its own.

        Raises:
            LeveretError: etcd does not answer.
        """
        keys, puts = self.state.keys, []
        cluster_id = self.state.cluster_id or secrets.token_hex(_ID_BYTES)
        if self.is_founder:
            puts.append(PutKey(keys.cluster, encode(cluster_id)))
            puts.append(PutKey(keys.proof, encode(self._proof(cluster_id))))
            if self.found_with != SchemaDecided():
                # Without this key, the first node to join could follow an upstream over which this node was promoted.
                puts.append(PutKey(keys.schema_sync, encode(self.found_with)))
        former = self.state.members.get(self.name)
        member = self._counted(former or MemberRecord(self.name, self.node_id, self._started_at_ms))
        conditions: tuple[Holds, ...] = ()
        if member != former:
            puts.append(PutKey(keys.member(self.name), encode(member)))
            # A node that is forgotten in this moment stays forgotten.
            conditions = () if former is None else (Holds(keys.member(self.name), encode(former)),)
        if puts:
            revision = await self.store.transact(StoreTransaction(conditions, tuple(puts)))
            if revision is None:
                raise PreconditionFailed(f"node '{self.name}' was taken out of the cluster while it entered")
            while self.is_founder and self.state.revision < revision:
                # The events of the founder's own records are on their way back: they are no changes of another node.
                self._changed.clear()
                await self._changed.wait()
        # Not before the write: etcd may decline, and a node that remembers a cluster without its record is refused. A
        # node that is killed in between finds its record among the members.
        self._file.entered(cluster_id)
        self._founding.close()
        self._remembering = asyncio.get_running_loop().create_task(self._remember())
        self._remembering.add_done_callback(self._ended)

    def _counted(self, record: MemberRecord) -> MemberRecord:
        """Return this node's record with one run more, which is in this node's data already: see `_check_runs`."""
        runs = max(self._file.runs or 0, record.runs) + 1
        try:
            self._file.count_run(runs)
        except StorageError as error:
            # A full disk keeps no node out. The count in etcd stays as it is, so it is never ahead of the data's.
            logger.warning("run_not_counted error=%s", error)
            return record
        return msgspec.structs.replace(record, runs=runs)

    async def _remember(self) -> None:
        """Store which revision of etcd this node has seen, for `_check_age`: at an interval, and when it leaves."""
        is_last = False
        while not is_last:
            is_last = self._leaving.is_set()
            try:
                await asyncio.to_thread(self._file.saw, self.store.revision)
            except StorageError as error:
                # The next time may succeed; until then an older copy of etcd is known by an earlier revision.
                logger.warning("revision_of_etcd_not_stored error=%s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(_REMEMBER_S):
                    await self._leaving.wait()

    async def serve(self, links: MemberLinks, uri: str) -> None:
        """Announce this node's address: other nodes wait for it from now on."""
        self._links, self._uri = links, uri
        await self._announce()

    async def set_draining(self, draining: bool) -> None:
        """Announce that this node is in maintenance, or no longer.

        Raises:
            LeveretError: etcd does not answer.
        """
        self._draining = draining
        await self._announce()

    async def set_streams(self, place: tuple[str, int] | None, tls_place: tuple[str, int] | None) -> None:
        """Announce the listeners for stream clients: host and port, without TLS and with it.

        Raises:
            LeveretError: etcd does not answer.
        """
        self._streams, self._streams_tls = place, tls_place
        await self._announce()

    async def _announce(self) -> None:
        await self.store.announce(lambda: self._presence(self._uri))

    async def leave(self) -> None:
        """Leave: no other node needs to wait for this one any more."""
        for task in self._tasks:
            task.cancel()
        self._leaving.set()
        if self._remembering is not None:
            # Not cancelled: its thread would go on writing the file, beside that of the next attempt to enter.
            await asyncio.gather(self._remembering, return_exceptions=True)
        for _, waits in self._waiting:
            waits.cancel()
        self._links = None
        await self.store.stop()

    def lost(self, reason: str) -> None:
        """Report that this node must begin anew."""
        logger.error("cluster_left reason=%s action=begin_anew", reason)
        self._on_lost(reason)

    def _presence(self, uri: str) -> Presence:
        return Presence(
            run_id=self.run_id,
            uri=uri,
            http_uri=self.http_uri,
            started_at_ms=self._started_at_ms,
            version=leveret.__version__,
            draining=self._draining,
            streams=self._streams,
            streams_tls=self._streams_tls,
            standby_mode=self._config.standby.operating_mode,
            standby_archive=self._config.standby.shared_place,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that lasts as long as the membership, which ends with its failure."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("cluster_failed action=begin_anew", exc_info=error)
            self.lost(f"the definitions lock cannot be moved any more: {error}")

    # -- events -------------------------------------------------------------------------------

    def _take_events(self, events: list[Event], revision: int) -> None:
        # While this node holds the definitions lock, no other node changes definitions: the broker has these changes,
        # and may have undone them by now.
        is_own = self.definitions_lock.is_here
        changes = self.state.apply(events, revision)
        self._pending += [each for each in changes if not (is_own and isinstance(each, DefinitionChanged))]
        self._changed.set()
        if self._taker is not None:
            self._hand_on(self._taker)
        self.definitions_lock.check()

    def take_with(self, taker: Callable[[list[Changed]], None]) -> None:
        """Pass changes to `taker` from now on, beginning with those since the last call of `pending`."""
        self._taker = taker
        self._hand_on(taker)

    def pending(self) -> list[Changed]:
        """Return the changes that no taker has received yet, once."""
        pending, self._pending = self._pending, []
        return pending

    def _hand_on(self, taker: Callable[[list[Changed]], None]) -> None:
        taker(self.pending())
        revision = self.state.revision
        due = [waits for at, waits in self._waiting if at <= revision]
        self._waiting = [(at, waits) for at, waits in self._waiting if at > revision]
        for waits in due:
            if not waits.done():
                waits.set_result(None)

    async def transact(self, transaction: StoreTransaction) -> bool:
        """Do the writes if the conditions hold, and wait until the taker has received them; return whether they hold.

        Raises:
            LeaseLost, EtcdRefused: see ClusterStore.transact.
        """
        revision = await self.store.transact(transaction)
        if revision is not None:
            await self.has_taken(revision)
        return revision is not None

    async def has_taken(self, revision: int) -> None:
        """Wait until the taker has received all changes up to a revision."""
        if self._taker is None or self.state.revision < revision:
            waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((revision, waits))
            await waits

    # -- the others ---------------------------------------------------------------------------

    def cluster_view(self) -> ClusterView:
        """Return the cluster as this node knows it now."""
        alive = self.state.alive
        if self.name not in alive:
            alive = alive | {self.name: self._presence("")}
        members = self.state.names
        if self.name not in members:
            members = [*members, self.name]
        return ClusterView(self.name, self.run_id, members, alive, _shuffled)

    def why_not(self, caller: ProvenFollower) -> str:
        """Return the reason why a node may not connect to this one; empty if it may.

        Only a node that runs, as far as this one knows, may connect; one that is not known yet tries again.
        """
        presence = self.state.alive.get(caller.name)
        if presence is None or presence.run_id != caller.run_id:
            return f"node {caller.name} is not known to run"
        return ""

    async def ask(self, node: str, what: str, about: Any) -> Any:
        """Return another node's answer.

        Raises:
            LeveretError: the node does not answer.
        """
        if self._links is None:
            raise LeveretError("this node is not in the cluster")
        return await self._links.ask(node, what, about)

    async def all_have(self, revision: int) -> None:
        """Wait until every other serving node has applied a revision; for a silent node, until its lease ends."""
        if self._taker is not None:
            # This node then recognises its own changes as its own, whichever node has the definitions lock next.
            await self.has_taken(revision)
        others = [name for name, presence in self.state.alive.items() if name != self.name and presence.uri]
        await asyncio.gather(*(self._has(name, revision) for name in others))

    async def _has(self, name: str, revision: int) -> None:
        while (presence := self.state.alive.get(name)) is not None and presence.uri:
            with suppress(LeveretError):
                await self.ask(name, "applied", {"revision": revision})
                return
            await asyncio.sleep(_ASK_AGAIN_S)


def _shuffled(nodes: Sequence[str]) -> list[str]:
    return random.sample(list(nodes), len(nodes))
