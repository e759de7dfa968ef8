"""etcd for a node of a cluster: a lease, all keys, their changes in order, and transactions.

    store = ClusterStore(config, on_events=take, on_lost=begin_anew)
    await store.start()                                      # `take` has all keys
    await store.announce(presence)                           # from now on `take` gets changes
    revision = await store.transact(Transaction(conditions, writes))
    if store.holds_lease_now(): ...                          # before a promise is kept, each time
    await store.stop()

**Changes** are reported once, revision by revision, in order and without gaps. A watch that is cut continues at its
revision; if etcd no longer has that revision, all keys are read again and the differences are reported as one
revision.

**A transaction** is done at most once, in the order of the calls, and never after the end of the lease. Each one
also writes the turn key of this node, which is bound to the lease, on condition that the key is as the last
transaction left it. So an attempt whose answer was lost may be repeated, and a late attempt fails because its turn
is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from leveret.config import Config
from leveret.core.replication.cluster import ClusterKeys, Event, Presence, differences, encode
from leveret.core.replication.election import PutKey, StoreTransaction, Unchanged
from leveret.model.errors import LeveretError
from leveret.runtime.coordination.absence import EtcdAbsence
from leveret.runtime.coordination.etcd import (
    Etcd,
    EtcdAway,
    EtcdCompacted,
    EtcdError,
    EtcdRefused,
    etcd_context,
)
from leveret.runtime.coordination.lease import RETRY_S, KeptLease, attempt_timeout_s, boot_clock_s

logger = logging.getLogger(__name__)

ANNOUNCE_LEASES: Final = 3
"""How many lease times we wait for our previous incarnation to expire."""
LOOK_S: Final = 0.25
"""How often we check that the watch is on the endpoint that answers and is not behind."""
STUCK_ATTEMPTS: Final = 2
"""A watch that stays behind a known revision for the time of this many attempts is replaced."""
_NO_LEASE: Final = 5


class LeaseLost(EtcdAway):
    """This node's lease is over, or was never granted: it is to begin anew."""


class NameTaken(LeveretError):
    """Another node with this node's name runs."""


class ClusterStore:
    """See the module. All of it in one event loop.

    Attributes:
        keys: where everything is.
        revision: etcd's, up to which has been told what happened; 0 before the start.
    """

    def __init__(
        self,
        config: Config,
        on_events: Callable[[list[Event], int], None],
        on_lost: Callable[[str], None],
        *,
        former: set[int] | None = None,
        absence: EtcdAbsence | None = None,
        clock_s: Callable[[], float] = boot_clock_s,
    ) -> None:
        """Ask nobody yet.

        Args:
            config: whose `etcd` and `node_name` matter.
            on_events: told what happened to keys, and the revision of that; none of it may have been of interest.
                If it raises, this node knows no more what the others do: its lease is given up.
            on_lost: told why, in words, once, when the lease is over, but for `stop`. Nothing may be promised from
                then on. It is called from the event loop as soon as that has its turn; `holds_lease_now` says so
                earlier.
            former: leases that this process has given up and etcd has not ended yet, of this store and those before it:
                `start` has them ended, so that this node does not wait for itself.
            absence: what was logged of an etcd that is away, by this store and those before it.
            clock_s: seconds that go on while the machine sleeps.

        Raises:
            ConfigError: the authorities for etcd's certificates cannot be read.
        """
        options = config.etcd
        self.keys = ClusterKeys.under(options.prefix)
        self.revision = 0
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
        self._absence = absence or EtcdAbsence(logger, clock_s)
        self._known: dict[str, int] = {}
        self._following: asyncio.Task[None] | None = None
        self._revoking: asyncio.Task[None] | None = None
        self._former = set() if former is None else former
        self._expected = 0
        self._moved_at_s = 0.0
        self._writing = asyncio.Lock()
        self._turn = ""
        self._turn_modified = 0
        self._turn_number = 0

    # Life.

    async def start(self) -> None:
        """Get a lease, and tell all there is as the first thing that happens; what comes later waits for `announce`.

        Raises:
            EtcdError: etcd does not answer, or refuses; it may be tried again.
            UnreadableState: as `on_events` says.
        """
        for lease_id in list(self._former):
            await self._etcd.revoke(lease_id)
            self._former.discard(lease_id)
        lease = await KeptLease.granted(
            self._etcd, self._ttl_s, on_error=self._note, clock_s=self._clock_s, options=self._options
        )
        lease.keep(self._lost)
        self._lease, self._turn, self._turn_modified = lease, self.keys.turn(lease.id), 0
        try:
            await self._look()
        except BaseException:
            self._lease = None
            lease.end()
            await self._give_back(lease)
            raise
        logger.info("cluster_lease ttl_s=%g endpoint=%s", self._ttl_s, self._etcd.endpoint)

    async def announce(self, presence: Presence) -> None:
        """Have this node be among those that live, or be so with another presence; then follow what happens.

        Waits for the end of the lease of another incarnation, which was killed perhaps.

        Raises:
            NameTaken: that goes on living: it is another node with this name.
            LeaseLost: it took too long.
            EtcdRefused: etcd refuses.
        """
        key = self.keys.alive(self._name)
        give_up_s = self._clock_s() + ANNOUNCE_LEASES * self._ttl_s
        while True:
            lease = self._own_lease()
            try:
                entry = (await self._etcd.read(key)).entries.get(key)
            except EtcdAway as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            if entry is None or entry.lease == lease.id:
                seen = Unchanged(key, entry.modified if entry else 0)
                put = PutKey(key, encode(presence), leased=True)
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
            # Before it was announced others could take over what this node leads: what it knew then does not count.
            await self._look_surely()
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """End the lease, and with it what is bound to it, and all connections; without etcd it ends by itself."""
        lease, self._lease = self._lease, None
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if lease is not None:
            lease.end()
            await self._give_back(lease)
        if self._revoking is not None:
            await self._revoking
        await self._etcd.close()

    # The lease.

    def holds_lease_now(self) -> bool:
        """Whether no other node can have taken over yet, by the clock: cheap, to be asked before each promise."""
        return self._lease is not None and self._lease.is_held_now()

    def lease_left_s(self) -> float:
        """How long it will be so, if no keepalive comes; 0 without a lease."""
        return max(0.0, self._lease.left_s) if self._lease is not None else 0.0

    def _own_lease(self) -> KeptLease:
        if self._lease is None or not self._lease.is_held_now():
            raise LeaseLost(f"this node's lease in etcd is over; last error: {self._last_error or 'none'}")
        return self._lease

    def _lost(self, reason: str) -> None:
        lease, self._lease = self._lease, None
        logger.warning("cluster_lease_lost reason=%s", reason)
        loop = asyncio.get_running_loop()
        if self._following is not None and self._following is not asyncio.current_task():
            self._following.cancel()
        loop.call_soon(self._on_lost, reason)
        if lease is not None:
            # Nothing is promised any more, so the others need not wait for the lease's end.
            self._revoking = loop.create_task(self._give_back(lease))

    async def _give_back(self, lease: KeptLease) -> None:
        """Have etcd end a lease that this node relies on no more, now or at the next start."""
        self._former.add(lease.id)
        if await lease.revoke():
            self._former.discard(lease.id)

    def _note(self, error: str) -> None:
        self._absence.away("etcd_away", error)
        self._last_error = error

    def status(self) -> dict[str, Any]:
        """How it is with etcd.

        endpoints (without passwords), endpoint (that is asked first), holds_lease, lease_ttl_ms, lease_left_ms or
        null, revision, last_error or null
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
        }

    # Writing.

    async def transact(self, transaction: StoreTransaction) -> int | None:
        """Do the writes if the conditions hold: the revision they made, or None when one did not hold.

        It tries for as long as this node has its lease, so it lasts while etcd is away.

        Raises:
            LeaseLost: whether they were done is not known; from now on they will not be.
            EtcdRefused: they were not done, as when etcd's disk is full or there are too many of them.
        """
        async with self._writing:
            self._turn_number += 1
            done, missed = f"{self._turn_number}".encode(), f"{self._turn_number} not done".encode()
            while True:
                revision = await self._take_turn(transaction, done)
                if revision is None and await self._take_turn(StoreTransaction((), ()), missed) is not None:
                    # The turn is taken without the writes: no attempt at them is still to come.
                    return None
                if revision is None:
                    revision = await self._find_turn(done)
                if revision is not None:
                    self.expect(revision)
                    return revision

    async def _take_turn(self, transaction: StoreTransaction, value: bytes) -> int | None:
        """One attempt, repeated until there is an answer; None: the turn was another's, or a condition did not hold."""
        conditions = (*transaction.conditions, Unchanged(self._turn, self._turn_modified))
        guarded = StoreTransaction(conditions, (*transaction.writes, PutKey(self._turn, value, leased=True)))
        while True:
            lease = self._own_lease()
            try:
                revision = await self._etcd.transact(guarded, lease.id)
            except EtcdAway as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            except EtcdRefused as error:
                if error.code == _NO_LEASE:
                    lease.lose("etcd has ended the lease")
                    self._own_lease()
                raise
            if revision is not None:
                self._turn_modified = revision
            return revision

    async def _find_turn(self, done: bytes) -> int | None:
        """The revision in which this turn was taken after all; None if it was an earlier one that came late."""
        while True:
            self._own_lease()
            try:
                turn = (await self._etcd.read(self._turn)).entries.get(self._turn)
            except EtcdAway as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            self._turn_modified = turn.modified if turn is not None else 0
            return self._turn_modified if turn is not None and turn.value == done else None

    # Following.

    def expect(self, revision: int) -> None:
        """This revision exists: if it is not told soon, the watch is given up for another one."""
        if revision > max(self._expected, self.revision):
            if self._expected <= self.revision:
                self._moved_at_s = self._clock_s()
            self._expected = revision

    async def _look_surely(self) -> None:
        while True:
            self._own_lease()
            try:
                await self._look()
            except EtcdAway as error:
                self._note(str(error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _look(self) -> None:
        """Read everything, and tell what is not known yet."""
        snapshot = await self._etcd.read(self.keys.prefix)
        self._take(differences(self._known, snapshot.entries, snapshot.revision), snapshot.revision)

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
        self._absence.reached(self._etcd.endpoint)
        self._on_events(relevant, revision)

    async def _follow(self) -> None:
        """Tell what happens, for as long as there is a lease."""
        while self._lease is not None:
            endpoint = self._etcd.endpoint
            self._moved_at_s = self._clock_s()
            watching = asyncio.get_running_loop().create_task(self._watch())
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
                    self._lease.lose(f"what happens in the cluster cannot be followed: {error}")
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    def _is_stuck(self) -> bool:
        return self._expected > self.revision and self._clock_s() - self._moved_at_s > self._stuck_s

    async def _watch(self) -> None:
        try:
            async with aclosing(self._etcd.watch(self.keys.prefix, self.revision)) as batches:
                async for revision, events in batches:
                    self._take(events, revision)
        except EtcdCompacted as error:
            logger.warning("cluster_read_again reason=%s", error)
            await self._look()
