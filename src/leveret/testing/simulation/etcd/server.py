"""A simulated etcd: one store behind all endpoints, in the virtual time of the simulation's loop.

    etcd = SimulatedEtcd(loop, random.Random(seed))
    etcd.use_here()                                          # nodes that are made in this context find it
    etcd.cut("n1", answers=False); etcd.heal("n1")           # requests of n1 do not arrive
    etcd.kill(); etcd.start()                                # a restart; start(backup) and start(EtcdState()) lose data

Clients are in `client`, the paths to them in `paths`. A request may be lost, be carried out without an
answer, or be carried out long after its sender has given up. A seed repeats all of that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from leveret.core.replication.election import StoreTransaction
from leveret.runtime.coordination.etcd import (
    EtcdCompacted,
    EtcdRefused,
    EtcdUnreachable,
    GrantedLease,
    Snapshot,
    WatchEvents,
)
from leveret.testing.simulation.etcd.paths import Action, Asker, EtcdPaths, OrderedPath
from leveret.testing.simulation.etcd.state import EtcdState

EXPIRY_TICK_S: Final = 0.5
"""The interval at which etcd checks for expired leases."""
KEEPALIVE_S: Final = 5.0
"""The time after which both ends of a watch notice a cut between them; see `etcd_wire`'s TCP keepalive."""

_here: ContextVar[SimulatedEtcd | None] = ContextVar("leveret_simulated_etcd", default=None)


class EtcdWatch:
    """Both ends of a watch.

    Attributes:
        inbox: the arrived events, for the owner to take; an error is the last item.
        is_ended: whether etcd sends no more events.
    """

    def __init__(self, asker: Asker, prefix: str, revision: int) -> None:
        """Watch keys that begin with `prefix`, from a revision on."""
        self.asker, self.prefix, self.revision = asker, prefix, revision
        self.inbox: asyncio.Queue[WatchEvents | Exception] = asyncio.Queue()
        self.is_ended = False


class SimulatedEtcd:
    """See the module.

    Attributes:
        state: the content.
        paths: the paths between etcd and its clients; `paths.delay_s_max` makes it slow.
        is_up: whether it runs; otherwise it refuses connections.
        is_stopped: whether it accepts connections, but carries out no request.
        on_request: called with each transaction that a client asks for, before it is sent.
        on_change: called with each transaction that made a change, after it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        """Start an empty etcd. Its callbacks run in the present context, so make it outside of any process."""
        self.state = EtcdState()
        self.paths = EtcdPaths(loop, rng)
        self.is_up = True
        self.is_stopped = False
        self._loop, self._rng = loop, rng
        self.on_request: Callable[[StoreTransaction], None] = lambda transaction: None
        self.on_change: Callable[[StoreTransaction], None] = lambda transaction: None
        self._boot = 0
        self._waiting: list[Action] = []
        self._watches: dict[EtcdWatch, OrderedPath] = {}
        self._reported = self.state.revision
        self._looks = 0
        self._cuts = 0
        self._cut_since: dict[str, int] = {}

    def use_here(self) -> None:
        """Make clients of this context, and of later copies of it, use this etcd."""
        _here.set(self)

    # Faults.

    def cut(self, name: str, *, requests: bool = True, answers: bool = True) -> None:
        """Cut a process or an endpoint off, until `heal`.

        Args:
            name: of a process, whose watches notice the cut after `KEEPALIVE_S`; or the URL of an endpoint, which seems
                to hang.
            requests: whether no request arrives at etcd.
            answers: whether no answer of etcd arrives.
        """
        self.paths.cut(name, requests=requests, answers=answers)
        self._cuts += 1
        number = self._cut_since[name] = self._cuts
        self.paths.after(KEEPALIVE_S, lambda: self._break_watches(name, number))

    def heal(self, name: str) -> None:
        """End the cuts of a process or an endpoint; messages that TCP still holds arrive."""
        self._cut_since.pop(name, None)
        self.paths.heal(name)
        for path in self._watches.values():
            path.deliver()

    def stop(self) -> None:
        """Accept connections, but carry out no request, until `go_on`."""
        self.is_stopped = True

    def go_on(self) -> None:
        """End a stop: carry out the requests that came meanwhile, and expire leases that are due."""
        self.is_stopped = False
        self._arrive_late()
        self._watch_leases()

    def kill(self) -> None:
        """End etcd at once: connections break, and new ones are refused until `start`."""
        self.is_up, self.is_stopped = False, False
        self._boot += 1
        for watch, path in self._watches.items():
            self._end(watch, path, ConnectionResetError("etcd ended the connection"))
        self._arrive_late()

    def start(self, state: EtcdState | None = None) -> None:
        """Run again after `kill`, with the previous content or another; all leases begin anew.

        Args:
            state: an earlier `state.copy()` makes an etcd that was restored from a backup, `EtcdState()` one that has
                lost all data: clients know later revisions than it has.
        """
        assert not self.is_up
        self.state = self.state if state is None else state.copy()
        self._reported = self.state.revision
        self.state.renew_all(self._loop.time())
        self.is_up = True
        self._watch_leases()

    # Requests, also of an administrator, carried out at once.

    def read(self, prefix: str) -> Snapshot:
        """Return all keys that begin with a prefix."""
        return self.state.read(prefix)

    def transact(self, transaction: StoreTransaction, lease_id: int = 0) -> int | None:
        """See `EtcdState.transact`."""
        revision = self.state.transact(transaction, lease_id)
        self._report()
        if revision is not None:
            self.on_change(transaction)
        return revision

    def grant(self, ttl_s: int) -> GrantedLease:
        """Grant a new lease."""
        number = self._rng.getrandbits(62) + 1
        lease = self.state.grant(number, ttl_s, self._loop.time())
        self._watch_lease(number)
        return GrantedLease(number, lease.ttl_s)

    def keep_alive(self, lease_id: int) -> int:
        """Renew a lease; return the seconds that it lasts from now, 0 if it is over."""
        ttl_s = self.state.keep_alive(lease_id, self._loop.time())
        self._report()
        return ttl_s

    def revoke(self, lease_id: int) -> None:
        """End a lease. Raises EtcdRefused: the lease is over."""
        self.state.revoke(lease_id)
        self._report()

    def compact(self, revision: int | None = None) -> None:
        """Forget the history before a revision, by default the latest. Raises EtcdRefused."""
        self.state.compact(self.state.revision if revision is None else revision)

    def open_watch(self, watch: EtcdWatch) -> None:
        """Report past events from the watch's revision on, and all later ones.

        If that revision is in the future, reports begin with it, as in etcd: a restored etcd reports no event until
        then.
        """
        if watch.is_ended:
            return  # The owner has closed the watch.
        path = self._watches[watch] = OrderedPath(self.paths, watch.asker)
        missed = self.state.happened_from(watch.revision)
        if missed is None:
            self._end(
                watch,
                path,
                EtcdCompacted(f"etcd has compacted the revisions before {self.state.compacted}"),
            )
        for batch in missed or ():
            self._send(watch, path, batch)

    def close_watch(self, watch: EtcdWatch) -> None:
        """Stop reporting to a watch."""
        watch.is_ended = True
        self._watches.pop(watch, None)

    # Requests over the network.

    def ask(self, asker: Asker, work: Callable[[], object]) -> asyncio.Future[Any]:
        """Send a request that calls `work`, a method above; the future's result is the answer, or etcd's error.

        etcd may carry out the request though the future is cancelled, and the future may never have a result.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        boot = self._boot

        def arrive() -> None:
            if self.is_stopped:
                self._waiting.append(arrive)
                return
            is_refused = not self.is_up or boot != self._boot
            outcome = ConnectionRefusedError("connection refused") if is_refused else _outcome(work)
            self.paths.answer(asker, lambda: _give(answer, outcome))

        self.paths.request(asker, arrive)
        return answer

    def _arrive_late(self) -> None:
        waiting, self._waiting = self._waiting, []
        for arrive in waiting:
            self.paths.after(self.paths.delay_s(), arrive)

    def _report(self) -> None:
        """Report new events to the watches."""
        for batch in self.state.happened_from(self._reported + 1) or ():
            for watch, path in list(self._watches.items()):
                if watch.asker.process is not None and not watch.asker.process.is_alive:
                    del self._watches[watch]
                elif batch.revision >= watch.revision and not watch.is_ended:
                    self._send(watch, path, batch)
        self._reported = self.state.revision

    def _send(self, watch: EtcdWatch, path: OrderedPath, batch: WatchEvents) -> None:
        events = [event for event in batch.events if event.key.startswith(watch.prefix)]
        if events:
            path.send(lambda: watch.inbox.put_nowait(WatchEvents(batch.revision, events)))

    def _end(self, watch: EtcdWatch, path: OrderedPath, error: Exception) -> None:
        if not watch.is_ended:
            watch.is_ended = True
            path.send(lambda: watch.inbox.put_nowait(error))

    def _break_watches(self, name: str, number: int) -> None:
        """End the watches that a cut has lasted too long for: both of their ends notice it."""
        if self._cut_since.get(name) == number:
            for watch in [each for each in self._watches if each.asker.host == name]:
                del self._watches[watch]
                watch.inbox.put_nowait(EtcdUnreachable("connection timed out"))

    def _watch_leases(self) -> None:
        self._looks += 1
        for number in self.state.leases:
            self._watch_lease(number)

    def _watch_lease(self, number: int) -> None:
        """End an expired lease at etcd's next check; `_watch_leases` makes earlier checks void."""
        looks = self._looks

        def look() -> None:
            lease = self.state.leases.get(number)
            if lease is None or looks != self._looks or self.is_stopped or not self.is_up:
                return
            if lease.ends_s <= self._loop.time():
                self.revoke(number)
            else:
                self._watch_lease(number)

        left_s = self.state.leases[number].ends_s - self._loop.time()
        self.paths.after(max(0.0, left_s) + self._rng.uniform(0, EXPIRY_TICK_S), look)


def _give(answer: asyncio.Future[Any], outcome: object) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except EtcdRefused as error:
        return error


def etcd_here() -> SimulatedEtcd:
    """Return the etcd of this context's simulation.

    Raises:
        LookupError: the context has none: call `use_here` before the nodes are made.
    """
    etcd = _here.get()
    if etcd is None:
        raise LookupError("no simulated etcd here: call SimulatedEtcd.use_here before a node is made")
    return etcd
