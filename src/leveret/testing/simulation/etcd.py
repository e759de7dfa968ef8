"""A simulated etcd: one store behind all endpoints, in the virtual time of the simulation's loop.

    etcd = SimulatedEtcd(loop, random.Random(seed))
    etcd.use_here()                                          # nodes that are made in this context find it
    etcd.cut("n1", answers=False); etcd.heal("n1")           # what n1 asks for does not arrive
    etcd.kill(); etcd.start()                                # a restart; start(backup) and start(EtcdState()) lose data

The clients are `etcd_client`'s, the ways to them `etcd_paths`'s. A request may not be done, be done without an answer,
or be done long after its sender has given up. A seed repeats all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from leveret.core.replication.election import StoreTransaction
from leveret.runtime.coordination.etcd import (
    EtcdAway,
    EtcdCompacted,
    EtcdRefused,
    GrantedLease,
    Snapshot,
    WatchEvents,
)
from leveret.testing.simulation.etcd_paths import Action, Asker, EtcdPaths, OrderedPath
from leveret.testing.simulation.etcd_state import EtcdState

EXPIRY_TICK_S: Final = 0.5
"""etcd looks this often for leases that are over."""
KEEPALIVE_S: Final = 5.0
"""Both ends of a watch notice after this time that nothing passes between them; see `etcd_wire`'s TCP keepalive."""

_here: ContextVar[SimulatedEtcd | None] = ContextVar("leveret_simulated_etcd", default=None)


class EtcdWatch:
    """A watch, both its ends.

    Attributes:
        inbox: what has arrived, for its owner to take; an error is the last.
        is_ended: whether etcd sends nothing more.
    """

    def __init__(self, asker: Asker, prefix: str, revision: int) -> None:
        """Of what happens to keys that begin with `prefix`, from a revision on."""
        self.asker, self.prefix, self.revision = asker, prefix, revision
        self.inbox: asyncio.Queue[WatchEvents | Exception] = asyncio.Queue()
        self.is_ended = False


class SimulatedEtcd:
    """See the module.

    Attributes:
        state: the content.
        paths: what lies between it and its clients; `paths.delay_s_max` makes it slow.
        is_up: whether it runs; without that it refuses connections.
        is_stopped: whether it takes connections and does nothing.
        on_change: called after each transaction that has changed something.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        """An empty etcd that runs. Its callbacks have the context in which it is made: make it in no process."""
        self.state = EtcdState()
        self.paths = EtcdPaths(loop, rng)
        self.is_up = True
        self.is_stopped = False
        self._loop, self._rng = loop, rng
        self.on_change: Callable[[], None] = lambda: None
        self._boot = 0
        self._waiting: list[Action] = []
        self._watches: dict[EtcdWatch, OrderedPath] = {}
        self._reported = self.state.revision
        self._looks = 0
        self._cuts = 0
        self._cut_since: dict[str, int] = {}

    def use_here(self) -> None:
        """Have it found by clients that are made in this context, and in copies that are made of it later."""
        _here.set(self)

    # Faults.

    def cut(self, name: str, *, requests: bool = True, answers: bool = True) -> None:
        """Have nothing arrive from, or at, a process or an endpoint, until `heal`.

        Args:
            name: of a process, whose watches notice in `KEEPALIVE_S`; or the URL of an endpoint, which seems to hang.
            requests: whether nothing goes to etcd.
            answers: whether nothing comes from it.
        """
        self.paths.cut(name, requests=requests, answers=answers)
        self._cuts += 1
        number = self._cut_since[name] = self._cuts
        self.paths.after(KEEPALIVE_S, lambda: self._break_watches(name, number))

    def heal(self, name: str) -> None:
        """End the cuts of a process or an endpoint; what TCP still has arrives."""
        self._cut_since.pop(name, None)
        self.paths.heal(name)
        for path in self._watches.values():
            path.deliver()

    def stop(self) -> None:
        """Have it take connections and do nothing, until `go_on`."""
        self.is_stopped = True

    def go_on(self) -> None:
        """End a stop: what was asked for meanwhile is done now, and what should have ended ends."""
        self.is_stopped = False
        self._arrive_late()
        self._watch_leases()

    def kill(self) -> None:
        """End it at once: connections break, and new ones are refused until `start`."""
        self.is_up, self.is_stopped = False, False
        self._boot += 1
        for watch, path in self._watches.items():
            self._end(watch, path, ConnectionResetError("etcd ended the connection"))
        self._arrive_late()

    def start(self, state: EtcdState | None = None) -> None:
        """Run again after `kill`, with the content of before or another; all leases begin anew.

        Args:
            state: a `state.copy()` of earlier makes an etcd that was restored from a backup, `EtcdState()` one that
                has lost everything: clients know later revisions than it has.
        """
        assert not self.is_up
        self.state = self.state if state is None else state.copy()
        self._reported = self.state.revision
        self.state.renew_all(self._loop.time())
        self.is_up = True
        self._watch_leases()

    # What is asked of it; done at once, and an administrator's too.

    def read(self, prefix: str) -> Snapshot:
        """All keys that begin with a prefix."""
        return self.state.read(prefix)

    def transact(self, transaction: StoreTransaction, lease_id: int = 0) -> int | None:
        """As `EtcdState.transact`."""
        revision = self.state.transact(transaction, lease_id)
        self._report()
        if revision is not None:
            self.on_change()
        return revision

    def grant(self, ttl_s: int) -> GrantedLease:
        """A new lease."""
        number = self._rng.getrandbits(62) + 1
        lease = self.state.grant(number, ttl_s, self._loop.time())
        self._watch_lease(number)
        return GrantedLease(number, lease.ttl_s)

    def keep_alive(self, lease_id: int) -> int:
        """The seconds that a lease lasts from now; 0: it is over."""
        ttl_s = self.state.keep_alive(lease_id, self._loop.time())
        self._report()
        return ttl_s

    def revoke(self, lease_id: int) -> None:
        """End a lease. Raises EtcdRefused: it is over."""
        self.state.revoke(lease_id)
        self._report()

    def compact(self, revision: int | None = None) -> None:
        """Forget what happened before a revision, the latest by default. Raises EtcdRefused."""
        self.state.compact(self.state.revision if revision is None else revision)

    def open_watch(self, watch: EtcdWatch) -> None:
        """Report what has happened from the watch's revision on, and from now on what happens.

        A revision that is still to come is waited for, as etcd does: one that was restored reports nothing until then.
        """
        if watch.is_ended:
            return  # Nobody waits for it any more.
        path = self._watches[watch] = OrderedPath(self.paths, watch.asker)
        missed = self.state.happened_from(watch.revision)
        if missed is None:
            self._end(
                watch,
                path,
                EtcdCompacted(f"etcd has forgotten what was before revision {self.state.compacted}"),
            )
        for batch in missed or ():
            self._send(watch, path, batch)

    def close_watch(self, watch: EtcdWatch) -> None:
        """Report nothing more to it."""
        watch.is_ended = True
        self._watches.pop(watch, None)

    # From afar.

    def ask(self, asker: Asker, work: Callable[[], object]) -> asyncio.Future[Any]:
        """Have something done, a method above; the future's result is the answer, an error that is one included.

        It may be done though the future is cancelled, and the future may never have a result.
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
        """Tell the watches what is new."""
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
        """A cut has lasted too long: who watched a process, or was watched by it, notices."""
        if self._cut_since.get(name) == number:
            for watch in [each for each in self._watches if each.asker.host == name]:
                del self._watches[watch]
                watch.inbox.put_nowait(EtcdAway("connection timed out"))

    def _watch_leases(self) -> None:
        self._looks += 1
        for number in self.state.leases:
            self._watch_lease(number)

    def _watch_lease(self, number: int) -> None:
        """End a lease when its time is over, at etcd's next look; `_watch_leases` makes earlier looks void."""
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
    """The etcd of this context's simulation.

    Raises:
        LookupError: there is none: call its `use_here` before the nodes are made.
    """
    etcd = _here.get()
    if etcd is None:
        raise LookupError("no simulated etcd here: call SimulatedEtcd.use_here before a node is made")
    return etcd
