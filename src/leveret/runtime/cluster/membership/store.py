"""etcd for a node of a cluster: a lease, all keys, their changes in order, and transactions.

    store = ClusterStore(config, on_events=take, on_lost=begin_anew)
    await store.start()                                      # `take` has all keys
    await store.announce(presence)                           # from now on `take` gets changes
    revision = await store.transact(Transaction(conditions, writes))
    if store.holds_lease_now(): ...                          # before a promise is kept, each time
    await store.stop()

**Changes** are reported once, revision by revision, in order and without gaps. A watch that is cut continues at its
revision; if etcd no longer has that revision, all keys are read again and the differences are reported as one
revision. If etcd does not have that revision yet, it was restored from an older copy: the lease ends.

**A transaction** is done at most once, in the order of the calls, and never after the end of the lease. Each one
also writes the turn key of this node, which is bound to the lease, on condition that the key is as the last
transaction left it. So an attempt whose answer was lost may be repeated, and a late attempt fails because its turn
is over.

**The history** of etcd is forgotten once it is ten minutes old. By default etcd keeps it for ever, and refuses all
writes when its file has 2 GB: then no queue can be declared, and none gets another leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from leveret.config import Config
from leveret.core.replication.cluster import ClusterKeys, Event, Presence, differences, encode
from leveret.core.replication.election import PutKey, StoreTransaction, Unchanged
from leveret.model.errors import LeveretError
from leveret.runtime.coordination.etcd import (
    Etcd,
    EtcdCompacted,
    EtcdError,
    EtcdRefused,
    EtcdUnreachable,
    etcd_context,
)
from leveret.runtime.coordination.etcd_outages import EtcdOutages
from leveret.runtime.coordination.lease import RETRY_S, KeptLease, attempt_timeout_s, boot_clock_s

logger = logging.getLogger(__name__)

ANNOUNCE_LEASES: Final = 3
"""The wait, in lease times, for the lease of this node's previous run to expire."""
LOOK_S: Final = 0.25
"""The interval of checks that the watch is at the endpoint that answers, and not behind."""
STUCK_ATTEMPTS: Final = 2
"""A watch that stays behind a known revision for the time of this many attempts is replaced."""
COMPACT_S: Final = 600.0
"""The age of the revisions that etcd may forget; a node that is so far behind reads all keys again."""
COMPACT_REVISIONS: Final = 1_000
"""So many old revisions are worth a compaction."""
PROBE_S: Final = 5.0
"""The interval of attempts to write while etcd has no room: the queue of a client that waits may be the only write."""
_NO_LEASE: Final = 5
_FULL: Final = "space exceeded"
T = TypeVar("T")


class LeaseLost(EtcdUnreachable):
    """This node's lease is over, or was never granted: the node must begin anew."""


class NameTaken(LeveretError):
    """Another running node has this node's name."""


class ClusterStore:
    """See the module. All calls come from one event loop.

    Attributes:
        keys: the names of all keys.
        revision: the revision of etcd up to which events were reported; 0 before the start.
        is_full: whether etcd refuses all writes, because its database has no room left.
    """

    def __init__(
        self,
        config: Config,
        on_events: Callable[[list[Event], int], None],
        on_lost: Callable[[str], None],
        *,
        former: set[int] | None = None,
        outages: EtcdOutages | None = None,
        clock_s: Callable[[], float] = boot_clock_s,
    ) -> None:
        """Connect to nothing yet.

        Args:
            config: its `etcd` and `node_name` are used.
            on_events: receives the events of one revision, possibly none, and the revision. If it raises, this node no
                longer knows the state of the cluster, and gives up its lease.
            on_lost: receives the reason, once, when the lease is over for any other reason than `stop`. Nothing may be
                promised from then on. The event loop calls it in its next turn; `holds_lease_now` is false before that.
            former: leases of this process that it gave up and etcd has not ended yet, of this store and earlier ones:
                `start` ends them, so that this node does not wait for itself.
            outages: the log's state of an absent etcd, of this store and earlier ones.
            clock_s: a clock in seconds that goes on while the machine sleeps.

        Raises:
            ConfigError: the authorities for etcd's certificates cannot be read.
        """
        options = config.etcd
        self.keys = ClusterKeys.under(options.prefix)
        self.revision = 0
        self.is_full = False
        self._options = options
        self._name = config.node_name
        self._ttl_s = options.lease_ttl_ms / 1000
        self._stuck_s = STUCK_ATTEMPTS * attempt_timeout_s(self._ttl_s)
        self._etcd = Etcd(options.endpoints, attempt_timeout_s(self._ttl_s), etcd_context(options))
        self._on_events = on_events
        self._on_lost = on_lost
        self._clock_s = clock_s
        self._lease: KeptLease | None = None
        self._last_error = ""
        self._outages = outages or EtcdOutages(logger, clock_s)
        self._known: dict[str, int] = {}
        self._following: asyncio.Task[None] | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._revoking: asyncio.Task[None] | None = None
        self._former = set() if former is None else former
        self._expected = 0
        self._moved_at_s = 0.0
        self._writing = asyncio.Lock()
        self._turn = ""
        self._turn_modified = 0
        self._turn_number = 0

    # Begin and end.

    async def start(self) -> None:
        """Get a lease, and report all keys as the first events; later events wait for `announce`.

        Raises:
            EtcdError: etcd does not answer, or refuses; the call may be repeated.
            UnreadableState: raised by `on_events`.
        """
        for lease_id in list(self._former):
            await self._etcd.revoke(lease_id)
            self._former.discard(lease_id)
        lease = await KeptLease.granted(
            self._etcd,
            self._ttl_s,
            on_error=self._note,
            on_renewed=self._renewed,
            clock_s=self._clock_s,
            options=self._options,
        )
        lease.keep(self._lost)
        self._lease, self._turn, self._turn_modified = lease, self.keys.turn(lease.id), 0
        try:
            await self._look()
        except (Exception, asyncio.CancelledError):
            self._lease = None
            lease.end()
            await self._revoke(lease)
            raise
        logger.info("cluster_lease ttl_s=%g endpoint=%s", self._ttl_s, self._etcd.endpoint)

    async def announce(self, presence: Callable[[], Presence]) -> None:
        """Add this node to the living ones, or change its presence; then report events.

        `presence` is called before each write, so of two changes under way neither undoes the other. Waits for the end
        of the lease of another run, which may have been killed.

        Raises:
            NameTaken: that run goes on: it is another node with this name.
            LeaseLost: this took too long.
            EtcdRefused: etcd refuses.
        """
        key = self.keys.alive(self._name)
        give_up_s = self._clock_s() + ANNOUNCE_LEASES * self._ttl_s
        while True:
            lease = self._own_lease()
            entry = (await self._answered(lambda _: self._etcd.read(key))).entries.get(key)
            if entry is None or entry.lease == lease.id:
                seen = Unchanged(key, entry.modified if entry else 0)
                put = PutKey(key, encode(presence()), leased=True)
                if await self.transact(StoreTransaction((seen,), (put,))) is not None:
                    break
            elif self._clock_s() > give_up_s:
                raise NameTaken(
                    f"another node '{self._name}' runs in the cluster below {self.keys.prefix}: give each node a "
                    "nodename of its own"
                )
            else:
                await asyncio.sleep(RETRY_S)
        if self._following is None:
            # Until the announcement, others could take over this node's queues: older state does not count.
            await self._answered(lambda _: self._look())
            loop = asyncio.get_running_loop()
            self._following = loop.create_task(self._follow())
            self._compacting = loop.create_task(self._compact_history())

    async def stop(self) -> None:
        """End the lease, the keys bound to it, and all connections; without etcd the lease ends by itself."""
        lease, self._lease = self._lease, None
        following, self._following = self._following, None
        compacting, self._compacting = self._compacting, None
        probing, self._probing = self._probing, None
        for task in (following, compacting, probing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if lease is not None:
            lease.end()
            await self._revoke(lease)
        if self._revoking is not None:
            await self._revoking
        await self._etcd.close()

    # The lease.

    def holds_lease_now(self) -> bool:
        """Whether no other node can have taken over yet, by the clock. Cheap: call it before each promise."""
        return self._lease is not None and self._lease.is_held_now()

    def lease_left_s(self) -> float:
        """Return the remaining time of the lease without another keepalive, in seconds; 0 without a lease."""
        return max(0.0, self._lease.left_s) if self._lease is not None else 0.0

    def _own_lease(self) -> KeptLease:
        if self._lease is None or not self._lease.is_held_now():
            raise LeaseLost(f"this node's lease in etcd is over; last error: {self._last_error or 'none'}")
        return self._lease

    async def _answered(self, request: Callable[[KeptLease], Awaitable[T]]) -> T:
        """Make a request until etcd answers, for as long as this node has its lease. Raises LeaseLost, EtcdRefused."""
        while True:
            lease = self._own_lease()
            try:
                return await request(lease)
            except EtcdUnreachable as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)

    def _lost(self, reason: str) -> None:
        lease, self._lease = self._lease, None
        logger.warning("cluster_lease_lost reason=%s", reason)
        loop = asyncio.get_running_loop()
        if self._following is not None and self._following is not asyncio.current_task():
            self._following.cancel()
        loop.call_soon(self._on_lost, reason)
        if lease is not None:
            # This node promises nothing any more, so the others need not wait for the lease's end.
            self._revoking = loop.create_task(self._revoke(lease))

    async def _revoke(self, lease: KeptLease) -> None:
        """Revoke a lease on which this node relies no more, now or at the next start."""
        self._former.add(lease.id)
        if await lease.revoke():
            self._former.discard(lease.id)

    def _note(self, error: str) -> None:
        self._outages.failed("etcd_unreachable", error)
        self._last_error = error

    def _renewed(self) -> None:
        # The latest error would be shown for ever otherwise: a quiet cluster has no other request.
        self._last_error = ""

    def status(self) -> dict[str, Any]:
        """Return the state of the connection to etcd.

        endpoints (without passwords), endpoint (that gets the next request first), holds_lease, lease_ttl_ms,
        lease_left_ms or null, revision, last_error (null once the lease was renewed after it), is_full (it refuses all
        writes)
        """
        holds = self.holds_lease_now()
        return {
            "endpoints": [str(endpoint) for endpoint in self._options.endpoints],
            "endpoint": str(self._etcd.endpoint),
            "holds_lease": holds,
            "lease_ttl_ms": self._options.lease_ttl_ms,
            "lease_left_ms": round(self.lease_left_s() * 1000) if holds else None,
            "revision": self.revision,
            "last_error": self._last_error or None,
            "is_full": self.is_full,
        }

    # Writing.

    async def transact(self, transaction: StoreTransaction) -> int | None:
        """Do the writes if the conditions hold; return their revision, or None if a condition did not hold.

        The call tries for as long as this node has its lease, so it lasts while etcd is away.

        Raises:
            LeaseLost: whether the writes were done is unknown; from now on they will not be.
            EtcdRefused: the writes were not done, for instance because etcd's disk is full or they are too many.
        """
        async with self._writing:
            self._turn_number += 1
            done, missed = f"{self._turn_number}".encode(), f"{self._turn_number} not done".encode()
            while True:
                revision = await self._take_turn(transaction, done)
                if revision is None and await self._take_turn(StoreTransaction((), ()), missed) is not None:
                    # The turn is taken without the writes: a late attempt at them fails.
                    return None
                if revision is None:
                    stands = await self._read_turn()
                    if stands == missed:
                        # So it is if the answer to that attempt was lost.
                        return None
                    revision = self._turn_modified if stands == done else None
                if revision is not None:
                    self.expect(revision)
                    return revision

    async def _take_turn(self, transaction: StoreTransaction, value: bytes) -> int | None:
        """Attempt until etcd answers; None: the turn was taken already, or a condition did not hold."""
        conditions = (*transaction.conditions, Unchanged(self._turn, self._turn_modified))
        guarded = StoreTransaction(conditions, (*transaction.writes, PutKey(self._turn, value, leased=True)))
        try:
            revision = await self._answered(lambda lease: self._etcd.transact(guarded, lease.id))
        except EtcdRefused as error:
            if error.code == _NO_LEASE:
                self._own_lease().lose("etcd has ended the lease")
                self._own_lease()
            self._refused(error)
            # An attempt whose answer was lost, perhaps at another endpoint, may have been done before.
            if await self._read_turn() != value:
                raise
            revision = self._turn_modified
        else:
            self._has_room(is_written=revision is not None)
        if revision is not None:
            self._turn_modified = revision
        return revision

    def _refused(self, error: EtcdRefused) -> None:
        """Note that etcd has no room, if that is the reason, and look until it has."""
        if _FULL not in str(error) or self.is_full:
            return
        self.is_full = True
        logger.error(
            "etcd_full endpoint=%s error=%s effect=declares_wait,no_queue_gets_another_leader "
            "remedy=etcdctl_compact,etcdctl_defrag,etcdctl_alarm_disarm",
            self._etcd.endpoint,
            error,
        )
        self._probing = asyncio.get_running_loop().create_task(self._look_for_room())

    def _has_room(self, *, is_written: bool) -> None:
        if self.is_full and is_written:
            self.is_full = False
            logger.info("etcd_has_room endpoint=%s", self._etcd.endpoint)

    async def _look_for_room(self) -> None:
        """Write nothing but this node's turn, again and again, until etcd takes it."""
        while self.is_full and self._lease is not None:
            await asyncio.sleep(PROBE_S)
            with suppress(EtcdError):
                await self.transact(StoreTransaction((), ()))

    async def _read_turn(self) -> bytes:
        """Return the value of the last turn that was taken, and note its revision."""
        turn = (await self._answered(lambda _: self._etcd.read(self._turn))).entries.get(self._turn)
        self._turn_modified = turn.modified if turn is not None else 0
        return turn.value if turn is not None else b""

    # Following.

    def expect(self, revision: int) -> None:
        """Note that this revision exists: if its events do not arrive soon, another watch replaces this one."""
        if revision > max(self._expected, self.revision):
            if self._expected <= self.revision:
                self._moved_at_s = self._clock_s()
            self._expected = revision

    async def _look(self) -> None:
        """Read all keys, and report the changes that are not known yet."""
        snapshot = await self._etcd.read(self.keys.prefix)
        self._end_if_older(snapshot.revision, self.revision)
        self._take(differences(self._known, snapshot.entries, snapshot.revision), snapshot.revision)

    async def _compare(self) -> None:
        """Give up the lease if etcd lacks what this node has seen: a watch would wait for that revision in silence."""
        seen = max(self.revision, self._turn_modified)
        self._end_if_older((await self._etcd.read(self._turn)).revision, seen)

    def _end_if_older(self, revision: int, seen: int) -> None:
        """Give up the lease if etcd's revision is earlier than one that this node has seen, so that it enters anew."""
        if revision < seen:
            reason = f"etcd has revision {revision}, and had {seen}: it was restored from an older copy, or replaced"
            if self._lease is not None:
                self._lease.lose(reason)
            raise LeaseLost(reason)

    def _take(self, events: list[Event], revision: int) -> None:
        turns = f"{self.keys.prefix}turns/"
        relevant = [event for event in events if not event.key.startswith(turns)]
        for event in events:
            if event.value is None:
                self._known.pop(event.key, None)
            else:
                self._known[event.key] = event.modified
        self.revision = revision
        self._moved_at_s = self._clock_s()
        self._outages.reached(self._etcd.endpoint)
        self._on_events(relevant, revision)

    async def _follow(self) -> None:
        """Report events for as long as there is a lease."""
        is_first = True
        while self._lease is not None:
            endpoint = self._etcd.endpoint
            self._moved_at_s = self._clock_s()
            watching = asyncio.get_running_loop().create_task(self._watch(is_first))
            is_first = False
            try:
                while not (
                    (await asyncio.wait((watching,), timeout=LOOK_S))[0]
                    or self._etcd.endpoint is not endpoint
                    or self._is_stuck()
                ):
                    pass
                if watching.done():
                    await watching
            except EtcdError as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                is_bug = not isinstance(error, LeveretError)
                logger.error("cluster_not_followed error=%s", error, exc_info=is_bug)
                if self._lease is not None:
                    self._lease.lose(f"changes of the cluster cannot be followed: {error}")
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _compact_history(self) -> None:
        """Have etcd forget old revisions, for as long as there is a lease; each node does so, and one is enough."""
        forgotten = old = self.revision
        while self._lease is not None:
            await asyncio.sleep(COMPACT_S)
            if old - forgotten >= COMPACT_REVISIONS:
                forgotten = old
                try:
                    await self._etcd.compact(old)
                except EtcdError as error:
                    logger.warning("etcd_not_compacted error=%s", error)
            old = self.revision

    def _is_stuck(self) -> bool:
        return self._expected > self.revision and self._clock_s() - self._moved_at_s > self._stuck_s

    async def _watch(self, is_first: bool) -> None:
        if not is_first:
            # The watch before this one may have ended with that etcd. A copy of an etcd may have this node's lease.
            await self._compare()
        try:
            async with aclosing(self._etcd.watch(self.keys.prefix, self.revision)) as batches:
                async for revision, events in batches:
                    self._take(events, revision)
        except EtcdCompacted as error:
            logger.warning("cluster_read_again reason=%s", error)
            await self._look()
