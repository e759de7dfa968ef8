"""Automatic fail-over: the lease of a leader in etcd, and the choice of the next leader.

    election = Election(config.etcd, on_deposed=lambda why: roles.fence(why))
    election.start()
        async for leader in election.watch_leader():             # an `ElectedLeader`, or None while no node leads
        if leader is None:
            outcome = await election.campaign(node_id, "tcp://10.0.0.2:5679", own_epoch)
            if isinstance(outcome, ElectionWon):
                ...                                          # lead in outcome.epoch; see `ElectionWon`

    await election.record_in_sync(frozenset({"b", "c"}))     # the leader, each time its followers change
    if election.holds_lease_now(): ...                       # before a promise is kept, each time
    await election.resign()                                  # a graceful stop: the next one leads at once
    await election.close()

core.replication.election decides; this module sends requests to etcd (runtime.coordination.etcd) and keeps the lease
alive (runtime.coordination.lease), which reads its clock at the moment of a promise.

While etcd is away no node is elected, and the leader stops when its lease ends. After its return elections continue.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from leveret.config.sections.etcd import EtcdOptions
from leveret.config.uris import EtcdEndpoint
from leveret.core.replication import election as core
from leveret.core.replication.election import ElectedLeader, ElectionDeclined
from leveret.model.errors import LeveretError
from leveret.runtime.coordination.etcd import Etcd, EtcdError, EtcdRefused, EtcdUnreachable
from leveret.runtime.coordination.lease import RETRY_S, KeptLease, attempt_timeout_s, boot_clock_s

logger = logging.getLogger(__name__)

READ_EVERY_S_MAX: Final = 2.0
"""etcd's keys are read this often, or twice in a lease's time, even without an event of the watch."""
CANDIDACIES_MAX: Final = 5
"""The attempts of one campaign; after each failed one, other nodes have changed the keys meanwhile."""


class NotLeader(LeveretError):
    """This node does not lead, or no longer."""


class ElectionWon(NamedTuple):
    """This node leads.

    Attributes:
        epoch: higher than all earlier ones, and than the node's own; must be durable before the node serves.
        in_sync: the other nodes that the record names: one of them may win next, so nothing may be promised
            without them before `record_in_sync` has returned with fewer (`recorded` of core/replication/in_sync).
    """

    epoch: int
    in_sync: frozenset[str]


class _Term:
    """One leadership, from the win to the end of the lease."""

    def __init__(
        self, leader: ElectedLeader, lease: KeptLease, in_sync: frozenset[str], modified: int
    ) -> None:
        self.leader = leader
        self.lease = lease
        self.in_sync = in_sync
        self.modified = modified
        """The revision that last wrote the record of the nodes in sync, as far as this node knows."""


class Election:
    """This node's part in the election; see the module. All calls come from one event loop."""

    def __init__(
        self,
        settings: EtcdOptions,
        *,
        on_deposed: Callable[[str], None],
        tls: ssl.SSLContext | None = None,
        clock_s: Callable[[], float] = boot_clock_s,
    ) -> None:
        """Connect to nothing yet.

        Args:
            settings: the endpoints of etcd, at least one, the prefix of the keys and the lease's time.
            on_deposed: receives the reason, once for each loss of the lead; not after `resign`. Nothing may be promised
                from then on. The event loop calls it in its next turn; `holds_lease_now` is false before that.
            tls: for `https`: trusted authorities other than the system's, and the client certificate.
            clock_s: a clock in seconds that goes on while the machine sleeps.
        """
        self._settings = settings
        self._ttl_s = settings.lease_ttl_ms / 1000
        self._etcd = Etcd(settings.endpoints, attempt_timeout_s(self._ttl_s), tls)
        self._keys = core.ElectionKeys.under(settings.prefix)
        self._on_deposed = on_deposed
        self._clock_s = clock_s
        self._term: _Term | None = None
        self._writing = asyncio.Lock()
        self._memory = core.RememberedStore()
        self._reported: ElectedLeader | None = None
        self._reported_at_s = 0.0
        self._version = 0
        self._changed = asyncio.Event()
        self._revision = 0
        self._is_reachable = False
        self._is_closed = False
        self._last_error: str | None = None
        self._bell = asyncio.Event()
        self._ringer: asyncio.Task[None] | None = None
        self._ringing_endpoint: EtcdEndpoint | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # Begin and end.

    def start(self) -> None:
        """Begin to watch for the leader."""
        self._spawn(self._observe())

    async def close(self) -> None:
        """Resign if this node leads, and end all connections; `watch_leader` ends."""
        self._is_closed = True
        self._wake()
        await self.resign()
        async with self._writing:  # What was going on has found out.
            pass
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._etcd.close()

    # Leading.

    async def campaign(
        self, node_id: str, uri: str, epoch: int, *, is_torn: bool = False, force: bool = False
    ) -> ElectionWon | ElectionDeclined:
        """Try to lead, now; this takes a few requests to etcd.

        Args:
            node_id: this node.
            uri: its address for followers.
            epoch: the highest epoch in which it led or followed.
            is_torn: see Candidate.
            force: lead even if it was not in sync, so that confirmed messages may be lost; at an operator's request.

        Raises:
            EtcdError: etcd does not answer, or refuses; `watch_leader` yields again when another try is due.
            UnreadableState: the keys in etcd are not Leveret's.
        """
        async with self._writing:
            if self._term is not None and self.holds_lease_now():
                return ElectionWon(self._term.leader.epoch, self._term.in_sync - {node_id})
            return await self._campaign(core.Candidate(node_id, uri, epoch, is_torn), force=force)

    async def _campaign(self, candidate: core.Candidate, *, force: bool) -> ElectionWon | ElectionDeclined:
        lease: KeptLease | None = None
        term: _Term | None = None
        try:
            for _ in range(CANDIDACIES_MAX):
                decision = core.stand(self._keys, await self._read(), self._memory, candidate, force=force)
                if isinstance(decision, ElectionDeclined):
                    return decision
                if lease is None:
                    lease = await KeptLease.granted(
                        self._etcd,
                        self._ttl_s,
                        on_error=self._note,
                        clock_s=self._clock_s,
                        options=self._settings,
                    )
                term = await self._take(decision, lease)
                if term is not None:
                    self._begin(term)
                    return ElectionWon(term.leader.epoch, term.in_sync - {candidate.node_id})
                if self._is_closed or not lease.is_fresh:
                    return ElectionDeclined("etcd was too slow, not much is left of the lease")
            return ElectionDeclined("other nodes campaign at the same time")
        finally:
            if lease is not None and term is None:
                self._spawn(self._revoke(lease))

    async def _revoke(self, lease: KeptLease) -> None:
        """Revoke a lease that no node relies on, until etcd answers: a restart of etcd would renew it."""
        is_over = await lease.revoke()
        while not is_over:
            await asyncio.sleep(RETRY_S)
            is_over = await lease.revoke()

    async def _take(self, candidacy: core.Candidacy, lease: KeptLease) -> _Term | None:
        """Write the records that make this node the leader; None if they were not written."""
        with suppress(EtcdUnreachable):
            await self._etcd.transact(candidacy.transaction, lease.id)
        # The answer of a successful attempt may have been lost, so only the present keys count.
        # A later success would use a lease that is not kept alive.
        observed = await self._read()
        is_late = self._is_closed or not lease.is_held_now()
        if is_late or observed.leader_lease != lease.id:
            return None
        modified = observed.unchanged(self._keys.in_sync).modified
        return _Term(candidacy.leader, lease, candidacy.in_sync, modified)

    def holds_lease_now(self) -> bool:
        """Whether this node leads at this moment, by the clock. Cheap: call it before each promise."""
        return self._term is not None and self._term.lease.is_held_now()

    async def record_in_sync(self, followers: frozenset[str]) -> None:
        """Record in etcd that these nodes, and this one, may lead next; return once the record is written.

        Once the call has returned, no earlier call that was cut off can change the record any more. It tries for as
        long as this node leads, so it lasts while etcd is away, a lease's time at most.

        Raises:
            NotLeader: this node does not lead; the record is unchanged, or its new leader has written it.
            EtcdRefused: etcd declines, for instance because its disk is full or the user may not write.
        """
        async with self._writing:
            await self._record(lambda term: followers | {term.leader.node_id})

    async def _record(self, in_sync_of: Callable[[_Term], frozenset[str]]) -> None:
        while True:
            term = self._current()
            in_sync = in_sync_of(term)
            transaction = core.record(self._keys, term.leader, term.modified, in_sync)
            try:
                revision = await self._etcd.transact(transaction)
                if revision is None:
                    term.modified = (await self._read()).unchanged(self._keys.in_sync).modified
            except EtcdUnreachable as error:
                self._last_error = str(error)
                await asyncio.sleep(RETRY_S)
                continue
            if revision is not None and self._current() is term:
                term.in_sync, term.modified = in_sync, revision
                return

    async def _record_again(self) -> None:
        """Write the record of this term once more: etcd has an earlier one, from an older copy of its data.

        That one may name nodes without which promises were kept since, and one of them could win.
        """
        logger.warning("etcd_restored_from_older_copy action=record_in_sync_again")
        try:
            async with self._writing:
                await self._record(lambda term: term.in_sync)
        except (NotLeader, EtcdRefused) as error:
            logger.warning("in_sync_not_recorded_again error=%s", error)

    async def resign(self) -> None:
        """Let the next node lead at once: for a graceful stop, when this node promises nothing any more.

        If etcd does not answer, the lease ends by itself.
        """
        term, self._term = self._term, None
        if term is not None:
            term.lease.end()
            logger.info("leader_resigned epoch=%d", term.leader.epoch)
            await term.lease.revoke()

    # Events.

    async def watch_leader(self) -> AsyncIterator[ElectedLeader | None]:
        """Yield the leader, this node included, and again at each change; None while no node leads.

        A slow caller gets only the latest leader. While no node leads, None comes again once in a lease's time: a
        failed campaign can then be repeated. Nothing comes while etcd is away; after its return the leader is yielded
        again. After a quick restart, the lease of this node's previous run may last a little longer: until its end
        this node is yielded as the leader, though `holds_lease_now` is False. Ends with `close`.
        """
        seen = 0
        while True:
            while self._version == seen and not self._is_closed:
                await self._changed.wait()
            if self._is_closed:
                return
            seen = self._version
            yield self._reported

    def report_again(self) -> None:
        """Have `watch_leader` yield once more: what the caller did about the leader failed."""
        self._version += 1
        self._wake()

    def status(self) -> dict[str, Any]:
        """Return the state of the connection to etcd, for a node's status.

            endpoints (without passwords), reachable, leader {node_id, uri, epoch} or null, epoch (the highest),
            in_sync [node ids] or null, holds_lease, lease_ttl_ms, lease_left_ms or null, last_error or null

        All values but the lease's are of the last answer of etcd.
        """
        leader = self._reported
        holds = self.holds_lease_now()
        left_s = self._term.lease.left_s if self._term is not None else None
        return {
            "endpoints": [str(endpoint) for endpoint in self._settings.endpoints],
            "reachable": self._is_reachable,
            "leader": msgspec.to_builtins(leader),
            "epoch": self._memory.epoch,
            "in_sync": None if self._memory.in_sync is None else sorted(self._memory.in_sync),
            "holds_lease": holds,
            "lease_ttl_ms": self._settings.lease_ttl_ms,
            "lease_left_ms": None if left_s is None else max(0, round(left_s * 1000)),
            "last_error": self._last_error,
        }

    # The term.

    def _begin(self, term: _Term) -> None:
        logger.info("leader_elected node=%s epoch=%d", term.leader.node_id, term.leader.epoch)
        self._term = term
        term.lease.keep(lambda reason: self._deposed(term, reason))
        self._bell.set()

    def _current(self) -> _Term:
        if not self.holds_lease_now() or self._term is None:
            raise NotLeader(
                "this node does not lead: only the leader changes etcd's record of the followers in sync"
            )
        return self._term

    def _deposed(self, term: _Term, reason: str) -> None:
        """End the term: the lease is over against this node's will."""
        if self._term is term:
            self._term = None
        logger.warning("leader_deposed epoch=%d reason=%s", term.leader.epoch, reason)
        asyncio.get_running_loop().call_soon(self._on_deposed, reason)
        # This node promises nothing any more, so the others need not wait for the lease's end.
        self._spawn(self._revoke(term.lease))

    def _note(self, error: str) -> None:
        self._last_error = error

    # Observing.

    async def _observe(self) -> None:
        """Read etcd's keys at each event of the watch and at intervals, and report a changed leader."""
        while True:
            self._bell.clear()
            term = self._term
            modified = term.modified if term is not None else 0
            try:
                observed = await self._read()
            except Exception as error:
                self._failed(error)
                await asyncio.sleep(RETRY_S)
                continue
            if self._term is not term:
                continue  # What was read may be from before.
            if observed.unchanged(self._keys.in_sync).modified < modified:
                await self._record_again()
            self._report(observed.leader)
            self._listen()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._ttl_s / 2, READ_EVERY_S_MAX)):
                    await self._bell.wait()

    async def _read(self) -> core.Observed:
        """Read etcd's keys; end this node's term if another node's lease, or none, is recorded."""
        term = self._term
        snapshot = await self._etcd.read(self._keys.prefix)
        observed = core.observe(self._keys, snapshot.entries)
        self._revision = snapshot.revision
        self._memory = self._memory.after(observed)
        # This read may be older than a term that began meanwhile.
        if term is not None and self._term is term and observed.leader_lease != term.lease.id:
            who = f"node {observed.leader.node_id} leads" if observed.leader else "etcd has ended the lease"
            term.lease.lose(who)
        return observed

    def _report(self, leader: ElectedLeader | None) -> None:
        """Wake the watchers if the leader changed, a reminder is due, or etcd is back."""
        if not self._is_reachable:
            logger.info("etcd_reached endpoint=%s", self._etcd.endpoint)
        now_s = self._clock_s()
        is_reminder = leader is None and now_s >= self._reported_at_s + self._ttl_s
        if leader != self._reported or is_reminder or not self._is_reachable:
            self._reported, self._reported_at_s = leader, now_s
            self.report_again()
        self._is_reachable = True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _failed(self, error: Exception) -> None:
        """Log only the first of successive failures."""
        text = str(error)
        if not isinstance(error, LeveretError):
            logger.error("etcd_read_failed error=%s", text, exc_info=error)
        elif self._is_reachable or self._last_error is None:
            logger.warning("etcd_unreachable error=%s", text)
        self._last_error = text
        self._is_reachable = False

    def _listen(self) -> None:
        """Watch at the endpoint that answers."""
        ringer = self._ringer
        if ringer is not None and not ringer.done() and self._ringing_endpoint is self._etcd.endpoint:
            return
        if ringer is not None:
            ringer.cancel()
        self._ringing_endpoint = self._etcd.endpoint
        self._ringer = self._spawn(self._ring(self._revision))

    async def _ring(self, revision: int) -> None:
        try:
            async for _ in self._etcd.watch(self._keys.prefix, revision):
                self._bell.set()
        except EtcdError as error:
            self._last_error = str(error)
            await asyncio.sleep(RETRY_S)
            self._bell.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
