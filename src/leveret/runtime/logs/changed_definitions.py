"""Changes of definitions on their way to the log here and to all other nodes, and the promises that wait for them.

A start knows the definitions in the log, and in a cluster those in etcd; it removes the logs of all other queues. So
the answer to a change waits until the change is durable in both, and so does every promise on messages that rest in a
queue of which that is not so yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from leveret.core.broker.broker import Broker
from leveret.model import definitions as d
from leveret.model.errors import StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.definitions_store import DefinitionsStore
from leveret.runtime.logs.ports import ReplicationPort

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
"""The longest wait until refused changes are logged again."""


class _Pending:
    """Changes that a start, or another node, may lack.

    Attributes:
        is_known: whether they are where they have to be.
        then: the promises that wait for that.
    """

    __slots__ = ("is_known", "then")

    def __init__(self) -> None:
        self.is_known = False
        self.then: list[Callable[[], None]] = []

    def known(self) -> None:
        """Note that the changes are where they have to be, and keep the promises."""
        self.is_known = True
        then, self.then = self.then, []
        for step in then:
            step()


class ChangedDefinitions:
    """See the module.

    Attributes:
        refusal: the reason for which the log has refused changes, which wait in the broker; None if it has all.
    """

    def __init__(
        self, broker: Broker, commit: GroupCommit, log: DefinitionsStore, touch: Callable[[], None]
    ) -> None:
        """Begin without changes; `touch` has the engine flush soon."""
        self._broker = broker
        self._commit = commit
        self._log = log
        self._touch = touch
        self.refusal: StorageError | None = None
        self._refused = _Pending()
        self._publication: _Pending | None = None
        self._unlogged: dict[object, _Pending] = {}
        self._unshared: dict[object, _Pending] = {}
        self._again_s = 0.0

    # -- the flush ----------------------------------------------------------------------------

    def flush(self, port: ReplicationPort | None) -> bool:
        """Share the broker's changes with the other nodes, and log them; return whether the log has them.

        If the disk refuses them, they wait in the broker for the next flush.
        """
        # Even if the disk here refuses them: else a node with a full disk would keep the definitions lock, and no other
        # node could declare or delete. They are durable in etcd, from which each start takes the definitions;
        # the logs of deleted queues, and the replies to this node's clients, wait for its disk.
        self._share(port)
        changes, self._broker.changes = self._broker.changes, []
        try:
            self._log.append(changes)
        except StorageError as error:
            self._broker.changes = changes + self._broker.changes
            self._refuse(changes, error)
            return False
        if self.refusal is not None:
            self.refusal = None
            self._commit.when_durable(self._refused.known)
            self._refused = _Pending()
        self._broker.changes_in_flight += 1
        self.when_known(self._leave_flight)
        return True

    def _share(self, port: ReplicationPort | None) -> None:
        if port is None or not self._broker.shared:
            return
        shared, self._broker.shared = self._broker.shared, []
        self._publication = _Pending()
        self._await(shared, self._unshared, self._publication)
        port.share(shared, self._publication.known)

    def _refuse(self, changes: list[d.Change], error: StorageError) -> None:
        self.refusal = error
        self._await(changes, self._unlogged, self._refused)
        loop = asyncio.get_running_loop()
        # One timer for all flushes that come here meanwhile.
        if loop.time() >= self._again_s:
            self._again_s = loop.time() + _AGAIN_S / 2
            logger.error("definitions_not_logged error=%s", error)
            loop.call_later(_AGAIN_S, self._touch)
        self._commit.refused(error)

    def _await(self, changes: Iterable[d.Change], missing: dict[object, _Pending], pending: _Pending) -> None:
        """Note the queues of these changes as missing until the changes are known."""
        keys = {
            each.entity.key for each in changes if isinstance(each, d.Put) and each.entity.kind == "queues"
        }
        found = [self._broker.queues[key] for key in keys if key in self._broker.queues]
        # The log may refuse the same changes many times.
        if queues := [queue for queue in found if missing.get(queue) is not pending]:
            missing |= dict.fromkeys(queues, pending)
            pending.then.append(partial(_found, queues, missing, pending))

    def _leave_flight(self) -> None:
        self._broker.changes_in_flight -= 1

    # -- promises -----------------------------------------------------------------------------

    def lack(self, queues: Iterable[object]) -> bool:
        """Return whether a start may not know one of these queues, and would remove its log."""
        return bool(self._unlogged or self._unshared) and not (
            self._unlogged.keys().isdisjoint(queues) and self._unshared.keys().isdisjoint(queues)
        )

    def once_known(self, queues: Iterable[object], promise: Callable[[], None]) -> None:
        """Keep a promise on messages, which are durable in these queues, once every start knows the queues."""
        for missing in (self._unlogged, self._unshared):
            pending = (
                next((missing[queue] for queue in queues if queue in missing), None) if missing else None
            )
            if pending is not None:
                pending.then.append(partial(self.once_known, queues, promise))
                return
        promise()

    def when_known(self, promise: Callable[[], None]) -> None:
        """Keep a promise once all definitions so far are durable here, and at every other node."""
        publication = self._publication
        if self.refusal is not None:
            self._refused.then.append(partial(self.when_known, promise))
        elif publication is None or publication.is_known:
            self._commit.when_durable(promise)
        else:
            self._commit.when_durable(
                lambda: promise() if publication.is_known else publication.then.append(promise)
            )

    async def all_known(self) -> None:
        """Return once everything that was flushed so far is durable here, the definitions also at every other node.

        Raises:
            StorageError: the log refuses definitions now, or the node ends before.
        """
        if self.refusal is not None:
            raise StorageError(
                f"definitions are changed and not on disk: {self.refusal}; they are logged once the disk takes them, "
                "and lost if the node ends before"
            )
        await self._commit.all_durable()
        publication = self._publication
        if publication is not None and not publication.is_known:
            known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            publication.then.append(lambda: None if known.done() else known.set_result(None))
            await known


def _found(queues: Iterable[object], missing: dict[object, _Pending], pending: _Pending) -> None:
    """Note that these queues are known, except those of which a later change is not."""
    for queue in queues:
        if missing.get(queue) is pending:
            del missing[queue]
