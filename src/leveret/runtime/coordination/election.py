"""Automatic fail-over: a leader's lease in etcd, and who may have it next.

    election = Election(config.etcd, on_deposed=lambda why: roles.fence(why))
    election.start()
    async for leader in election.watch_leader():             # a `ElectedLeader`, or None while nobody leads
        if leader is None:
            outcome = await election.campaign(node_id, "tcp://10.0.0.2:5679", own_epoch)
            if isinstance(outcome, Won):
                ...                                          # lead in outcome.epoch; see `Won`

    await election.record_in_sync(frozenset({"b", "c"}))     # the leader, each time its followers change
    if election.holds_lease_now(): ...                       # before a promise is kept, each time
    await election.resign()                                  # a graceful stop: the next one leads at once
    await election.close()

What is decided is in core/replication/election; this asks etcd (runtime/coordination/etcd) and has the lease kept
alive (runtime/coordination/lease), whose clock is asked at the moment of a promise.

While etcd is away nobody is elected, and the leader gives up when its lease ends. When it is back all goes on.
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
from leveret.core.replication.election import ElectedLeader
from leveret.model.errors import LeveretError
from leveret.runtime.coordination.etcd import Etcd, EtcdAway, EtcdError
from leveret.runtime.coordination.lease import RETRY_S, KeptLease, attempt_timeout_s, boot_clock_s

logger = logging.getLogger(__name__)

READ_EVERY_S_MAX: Final = 2.0
"""What etcd holds is read this often, or twice in a lease's time, though the bell did not ring."""
CANDIDACIES_MAX: Final = 5
"""Of one campaign; each but the first means that others changed what etcd holds meanwhile."""


class Deposed(LeveretError):
    """This node does not lead, or no longer."""


class Won(NamedTuple):
    """This node leads.

    Attributes:
        epoch: higher than any that there was, and than the node's own; to be made durable before it serves.
        in_sync: the other nodes that the record names: one of them may win next, so nothing may be promised
            without them before `record_in_sync` has returned with fewer (`recorded` of core/replication/in_sync).
    """

    epoch: int
    in_sync: frozenset[str]


class LeadershipLost(NamedTuple):
    """This node does not lead: why, and who does, if that is why."""

    reason: str
    leader: ElectedLeader | None = None


class _Term:
    """One time of leading, from the win to the end of the lease."""

    def __init__(
        self, leader: ElectedLeader, lease: KeptLease, in_sync: frozenset[str], modified: int
    ) -> None:
        self.leader = leader
        self.lease = lease
        self.in_sync = in_sync
        self.modified = modified
        """The revision that wrote the record of who is in sync last, as far as is known."""


class Election:
    """This node's part in the election; see the module. All of it in one event loop."""

    def __init__(
        self,
        settings: EtcdOptions,
        *,
        on_deposed: Callable[[str], None],
        tls: ssl.SSLContext | None = None,
        clock_s: Callable[[], float] = boot_clock_s,
    ) -> None:
        """Ask nobody yet.

        Args:
            settings: the endpoints of etcd, at least one, the prefix of the keys and the lease's time.
            on_deposed: told why, in words, once each time that this node has lost the lead; not after `resign`.
                Nothing may be promised from then on. It is called from the event loop as soon as that has its
                turn; `holds_lease_now` says so earlier.
            tls: for `https`: whom to trust other than the system does, and which certificate to show.
            clock_s: seconds that go on while the machine sleeps.
        """
        self._settings = settings
        self._ttl_s = settings.lease_ttl_ms / 1000
        self._etcd = Etcd(settings.endpoints, attempt_timeout_s(self._ttl_s), tls)
        self._keys = core.ElectionKeys.under(settings.prefix)
        self._on_deposed = on_deposed
        self._clock_s = clock_s
        self._term: _Term | None = None
        self._writing = asyncio.Lock()
        self._memory = core.Memory()
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

    # Life.

    def start(self) -> None:
        """Begin to watch who leads."""
        self._spawn(self._observe())

    async def close(self) -> None:
        """Give up the lead, if this node has it, and end all connections; `watch_leader` ends."""
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
    ) -> Won | LeadershipLost:
        """Try to lead, now; it takes a few requests to etcd.

        Args:
            node_id: this node.
            uri: where its followers connect.
            epoch: the highest that it has led or followed in.
            is_torn: see Candidate.
            force: also when it was not in sync, so that confirmed messages may be lost; for an operator's wish.

        Raises:
            EtcdError: etcd does not answer, or refuses; `watch_leader` gives the occasion for another try.
            UnreadableState: what etcd holds is not ours.
        """
        async with self._writing:
            if self._term is not None and self.holds_lease_now():
                return Won(self._term.leader.epoch, self._term.in_sync - {node_id})
            return await self._campaign(core.Candidate(node_id, uri, epoch, is_torn), force=force)

    async def _campaign(self, candidate: core.Candidate, *, force: bool) -> Won | LeadershipLost:
        lease: KeptLease | None = None
        term: _Term | None = None
        try:
            for _ in range(CANDIDACIES_MAX):
                decision = core.stand(self._keys, await self._read(), self._memory, candidate, force=force)
                if isinstance(decision, core.ElectionDeclined):
                    return LeadershipLost(decision.reason, decision.leader)
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
                    return Won(term.leader.epoch, term.in_sync - {candidate.node_id})
                if self._is_closed or not lease.is_fresh:
                    return LeadershipLost("etcd was too slow, not much is left of the lease")
            return LeadershipLost("other nodes campaign at the same time")
        finally:
            if lease is not None and term is None:
                self._spawn(self._give_back(lease))

    async def _give_back(self, lease: KeptLease) -> None:
        """Have etcd end a lease that nobody relies on, as soon as it answers: a restart of etcd begins it anew."""
        is_over = await lease.revoke()
        while not is_over:
            await asyncio.sleep(RETRY_S)
            is_over = await lease.revoke()

    async def _take(self, candidacy: core.Candidacy, lease: KeptLease) -> _Term | None:
        """Write what makes this node the leader; None when that did not happen."""
        with suppress(EtcdAway):
            await self._etcd.transact(candidacy.transaction, lease.id)
        # The answer of an attempt that was carried out may have been lost, so what counts is what is there.
        # If it is carried out later, then with a lease that nobody keeps alive.
        observed = await self._read()
        is_late = self._is_closed or not lease.is_held_now()
        if is_late or observed.leader_lease != lease.id:
            return None
        modified = observed.unchanged(self._keys.in_sync).modified
        return _Term(candidacy.leader, lease, candidacy.in_sync, modified)

    def holds_lease_now(self) -> bool:
        """Whether this node leads at this moment, by the clock: cheap, to be asked before each promise."""
        return self._term is not None and self._term.lease.is_held_now()

    async def record_in_sync(self, followers: frozenset[str]) -> None:
        """Have etcd name these nodes, and this one, as those that may lead next; return when it does.

        Once it has returned, no earlier call that was cut off can change the record any more. It tries for as
        long as this node leads, so it lasts while etcd is away, a lease's time at most.

        Raises:
            Deposed: this node does not lead; the record is as it was, or as its new leader has it.
            EtcdRefused: etcd does not take it, as when its disk is full or the user may not write.
        """
        async with self._writing:
            while True:
                term = self._current()
                in_sync = followers | {term.leader.node_id}
                transaction = core.record(self._keys, term.leader, term.modified, in_sync)
                try:
                    revision = await self._etcd.transact(transaction)
                    if revision is None:
                        term.modified = (await self._read()).unchanged(self._keys.in_sync).modified
                except EtcdAway as error:
                    self._last_error = str(error)
                    await asyncio.sleep(RETRY_S)
                    continue
                if revision is not None and self._current() is term:
                    term.in_sync, term.modified = in_sync, revision
                    return

    async def resign(self) -> None:
        """Let the next one lead at once: for a graceful stop, when nothing is promised any more.

        Where etcd does not answer the lease ends by itself.
        """
        term, self._term = self._term, None
        if term is not None:
            term.lease.end()
            logger.info("leader_resigned epoch=%d", term.leader.epoch)
            await term.lease.revoke()

    # What is seen.

    async def watch_leader(self) -> AsyncIterator[ElectedLeader | None]:
        """Yield who leads, this node included, and again at each change; None while nobody does.

        Who is slow gets the latest only. While nobody leads, None comes again once in a lease's time: the
        occasion to repeat a campaign that failed. Nothing comes while etcd is away; when it is back, who leads
        is told again. After a quick restart this node's own lease of before may last a little longer: it then
        reads here that it leads, until that ends, though `holds_lease_now` says no. Ends with `close`.
        """
        seen = 0
        while True:
            while self._version == seen and not self._is_closed:
                await self._changed.wait()
            if self._is_closed:
                return
            seen = self._version
            yield self._reported

    def status(self) -> dict[str, Any]:
        """What a node's status says of etcd.

            endpoints (without passwords), reachable, leader {node_id, uri, epoch} or null, epoch (the highest),
            in_sync [node ids] or null, holds_lease, lease_ttl_ms, lease_left_ms or null, last_error or null

        All but the lease is as it was when etcd last answered.
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
            raise Deposed(
                "this node does not lead: etcd's record of who is in sync is its leader's to change"
            )
        return self._term

    def _deposed(self, term: _Term, reason: str) -> None:
        """The lease is over against this node's will."""
        if self._term is term:
            self._term = None
        logger.warning("leader_deposed epoch=%d reason=%s", term.leader.epoch, reason)
        asyncio.get_running_loop().call_soon(self._on_deposed, reason)
        # Nothing is promised any more, so the others need not wait for the lease's end.
        self._spawn(self._give_back(term.lease))

    def _note(self, error: str) -> None:
        self._last_error = error

    # Looking.

    async def _observe(self) -> None:
        """Read what etcd holds, when the bell rings and once in a while, and tell what is new."""
        while True:
            self._bell.clear()
            term = self._term
            try:
                observed = await self._read()
            except Exception as error:
                self._failed(error)
                await asyncio.sleep(RETRY_S)
                continue
            if self._term is not term:
                continue  # What was read may be from before.
            self._report(observed.leader)
            self._listen()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._ttl_s / 2, READ_EVERY_S_MAX)):
                    await self._bell.wait()

    async def _read(self) -> core.Observed:
        """What etcd holds now; ends the term of this node if that is over."""
        term = self._term
        snapshot = await self._etcd.read(self._keys.prefix)
        observed = core.observe(self._keys, snapshot.entries)
        self._revision = snapshot.revision
        self._memory = self._memory.after(observed)
        # A term that began while the read was under way is not to be seen in it.
        if term is not None and self._term is term and observed.leader_lease != term.lease.id:
            who = f"node {observed.leader.node_id} leads" if observed.leader else "etcd has ended the lease"
            term.lease.lose(who)
        return observed

    def _report(self, leader: ElectedLeader | None) -> None:
        """Wake those who watch, if there is something to say."""
        if not self._is_reachable:
            logger.info("etcd_reached endpoint=%s", self._etcd.endpoint)
        now_s = self._clock_s()
        is_reminder = leader is None and now_s >= self._reported_at_s + self._ttl_s
        if leader != self._reported or is_reminder or not self._is_reachable:
            self._reported, self._reported_at_s = leader, now_s
            self._version += 1
            self._wake()
        self._is_reachable = True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _failed(self, error: Exception) -> None:
        """Tell of the first failure of many."""
        text = str(error)
        if not isinstance(error, LeveretError):
            logger.error("etcd_read_failed error=%s", text, exc_info=error)
        elif self._is_reachable or self._last_error is None:
            logger.warning("etcd_away error=%s", text)
        self._last_error = text
        self._is_reachable = False

    def _listen(self) -> None:
        """Have the bell rung by the endpoint that answers."""
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
