"""Acquires the definitions lock for this node, and hands it over (core.broker.definitions_lock has its rules).

The lock is a key in etcd, bound to the lease of its holder. This node has the lock once the event of its own key
has arrived: then all earlier changes of other nodes have arrived, too. The node releases the lock when another node
wants it and no change of this node is in flight; a node with more changes requests it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from leveret.core.broker.definitions_lock import DEFINITIONS_LOCK_TIMEOUT_S, DefinitionsLock
from leveret.core.replication.cluster import ClusterState, encode
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction, Unchanged
from leveret.model.errors import LeveretError, ResourceLocked
from leveret.runtime.cluster.membership.store import ClusterStore
from leveret.runtime.coordination.etcd import EtcdRefused

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
_NEVER: Final = 1 << 62
"""A revision at which no key was ever written."""


class DefinitionsLockHolder:
    """See the module.

    Attributes:
        is_here: whether this node holds the lock, and its broker knows that.
    """

    def __init__(
        self,
        store: ClusterStore,
        state: ClusterState,
        me: str,
    ) -> None:
        """Start without the lock, and without a reason to acquire it."""
        self.is_here = False
        self._store = store
        self._state = state
        self._lock = DefinitionsLock()
        self._me = me
        self._is_busy: Callable[[], bool] = lambda: False
        self._on_arrived: Callable[[], None] = lambda: None
        self._key = state.keys.definitions_lock
        self._wanted_key = state.keys.definitions_lock_wanted(me)
        self._wants = False
        self._taken_at = 0
        self._pins = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self.serve(self._lock)

    def serve(
        self,
        definitions_lock: DefinitionsLock,
        is_busy: Callable[[], bool] = lambda: False,
        on_arrived: Callable[[], None] = lambda: None,
    ) -> None:
        """Acquire the lock for this broker, keep it while `is_busy`, and call `on_arrived` after each arrival."""
        self._lock, self._is_busy, self._on_arrived = definitions_lock, is_busy, on_arrived
        definitions_lock.is_here = self.is_here
        definitions_lock.on_wanted = self.want

    def want(self) -> None:
        """Acquire the lock: a change at this node waits for it."""
        self._wants = True
        self._wake.set()

    def check(self) -> None:
        """Check again: the holder, the requests of other nodes, or whether this node is busy may have changed."""
        self._arrive_if_due()
        if self._is_asked_for() or self._is_missing():
            # Else the task would find nothing to do, twenty times a second.
            self._wake.set()

    def _is_asked_for(self) -> bool:
        """Whether this node has the lock and another one wants it."""
        return self.is_here and bool(self._state.definitions_lock_wanted - {self._me})

    def _is_missing(self) -> bool:
        """Whether this node wants the lock and has not taken it."""
        return not self.is_here and self._wants and not self._taken_at

    @property
    def lock_condition(self) -> Unchanged:
        """The condition of a transaction that this node still holds the lock."""
        return Unchanged(self._key, self._taken_at or _NEVER)

    async def fetched(self) -> None:
        """Wait until this node holds the lock."""
        if not self.is_here:
            waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waits)
            self.want()
            await waits

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep the lock here within this context."""
        self._pins += 1
        try:
            yield
        finally:
            self._pins -= 1
            self.check()

    @asynccontextmanager
    async def held(self, refusal: Callable[[], str] | None = None) -> AsyncIterator[None]:
        """Have the lock within this context: with it, this node knows all earlier changes of others.

        Args:
            refusal: makes the text of the error if another node does not hand the lock over in time; None: wait for it.

        Raises:
            ResourceLocked: at entry; see `refusal`.
        """
        with self.pinned():
            try:
                async with asyncio.timeout(DEFINITIONS_LOCK_TIMEOUT_S if refusal is not None else None):
                    await self.fetched()
            except TimeoutError:
                assert refusal is not None
                raise ResourceLocked(refusal()) from None
            yield

    async def run(self) -> None:
        """Acquire the lock and hand it over, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._step()
            except LeveretError as error:
                logger.warning("definitions_lock_not_moved error=%s", error)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def _step(self) -> None:
        if self._is_asked_for():
            if not self._pins and not self._is_busy():
                await self._hand_over()
        elif self._is_missing():
            if self._state.definitions_lock is None:
                await self._take()
            elif self._me not in self._state.definitions_lock_wanted:
                put = PutKey(self._wanted_key, encode(self._me), leased=True)
                await self._store.transact(StoreTransaction((), (put,)))

    async def _take(self) -> None:
        free = self._state.unchanged(self._key)
        writes = (PutKey(self._key, encode(self._me), leased=True), DeleteKey(self._wanted_key))
        revision = await self._store.transact(StoreTransaction((free,), writes))
        if revision is not None:
            self._taken_at = revision
            self._arrive_if_due()

    def _arrive_if_due(self) -> None:
        if self.is_here or not self._taken_at or self._state.definitions_lock_modified != self._taken_at:
            return
        self.is_here, self._wants = True, False
        self._lock.arrived()
        waiting, self._waiting = self._waiting, []
        for waits in waiting:
            if not waits.done():
                waits.set_result(None)
        self._on_arrived()
        self._wake.set()

    async def _hand_over(self) -> None:
        """Release the lock: all nodes have applied this node's changes, and from here on it changes nothing."""
        lock_condition, taken_at = self.lock_condition, self._taken_at
        self.is_here = self._lock.is_here = False
        self._taken_at = 0
        try:
            await self._store.transact(StoreTransaction((lock_condition,), (DeleteKey(self._key),)))
        except EtcdRefused:
            # The lock still is this node's: it is handed over once etcd writes again.
            self._taken_at = taken_at
            self._arrive_if_due()
            raise
        if self._lock.has_work or self._waiting:
            self.want()
