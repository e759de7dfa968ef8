"""Publishes recovered messages into a queue of a cluster, at its leader, wherever that is.

A recovery publishes to its own node. If another node leads the queue, the messages are passed on to it, in order, and
confirmed once they are durable there. The numbers of recovered messages are in the queue's log, so they move with its
leader: messages that are passed on twice are stored once, and a gap is refused.

The leader takes messages of a vhost only from the node that recovers it, in its present term. So nothing comes from a
node that was paused while another one took its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from leveret.core.broker.broker import Broker
from leveret.core.queues.remote_queue import RemoteQueue, leader_is_down
from leveret.model.errors import LeveretError, StorageError
from leveret.runtime.clients.recovery_ingest import RecoveryIngest, never_called
from leveret.runtime.process.outcomes import outcome_of
from leveret.wire.stream.publish import MessageRun

logger = logging.getLogger(__name__)

RECOVER: Final = "recover"
"""The name of the question to a queue's leader."""


class RecoveryPort(Protocol):
    """The other nodes of a cluster: runtime.cluster.sites.recovery_port."""

    @property
    def name(self) -> str:
        """This node."""

    def check_recoverer(self, vhost: str, node: str, term: int) -> None:
        """Check that a node recovers a vhost in this term.

        Any node may publish to a vhost without an owner, as rehearsals do.

        Raises:
            PreconditionFailed: another one does, or it does so in another term.
        """

    def term_of(self, vhost: str) -> int:
        """The term of the vhost's owner; 0 without one."""

    async def ask(self, node: str, about: dict[str, Any]) -> dict[str, Any]:
        """The answer of a queue's leader to RECOVER.

        Raises:
            LeveretError: it does not answer, or refuses.
        """

    def changing(self) -> AbstractAsyncContextManager[None]:
        """A context in which queues may be made.

        Raises:
            ResourceLocked: another node does not let this one.
        """


class ForwardingIngest:
    """runtime.clients.stream_host.RecoveryQueue, in a cluster."""

    def __init__(
        self, broker: Broker, key: tuple[str, str], ingest: RecoveryIngest, port: RecoveryPort
    ) -> None:
        """Publish to the queue of this vhost and name; `ingest` does so if this node leads it."""
        self._broker = broker
        self._key = key
        self._ingest = ingest
        self._port = port
        self._term = port.term_of(key[0])
        self._making: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def last_sequence(self, reference: str) -> int:
        """See RecoveryQueue; only of a queue that this node leads."""
        return self._ingest.last_sequence(reference)

    def ask_sequence(
        self, reference: str, found: Callable[[int], None], failed: Callable[[LeveretError], None]
    ) -> None:
        """See RecoveryQueue."""
        if self._is_here():
            self._check_here()
            self._ingest.ask_sequence(reference, found, failed)
            return
        self._spawn(self._ask_sequence(reference, found), failed)

    def append(
        self,
        reference: str,
        runs: list[MessageRun],
        done: Callable[[], None],
        failed: Callable[[LeveretError], None] = never_called,
    ) -> None:
        """See RecoveryQueue."""
        if self._is_here() and self._making is None:
            self._check_here()
            self._ingest.append(reference, runs, done, failed)
            return
        self._spawn(self._forward(reference, runs, done, failed), failed)

    def _is_here(self) -> bool:
        queue = self._broker.queues.get(self._key)
        return queue is not None and not queue.is_remote

    def _check_here(self) -> None:
        self._port.check_recoverer(self._key[0], self._port.name, self._term)

    def _spawn(self, work: Coroutine[Any, Any, None], failed: Callable[[LeveretError], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._telling(work, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _telling(self, work: Coroutine[Any, Any, None], failed: Callable[[LeveretError], None]) -> None:
        """Report whatever ends the work early: the recovery would wait for it for ever."""
        try:
            await work
        except LeveretError as error:
            failed(error)
        except Exception as error:
            logger.exception("recovered_messages_not_passed_on vhost=%s queue=%s", *self._key)
            failed(StorageError(f"queue '{self._key[1]}': {error!r}; see the node's log"))

    async def _ask_sequence(self, reference: str, found: Callable[[int], None]) -> None:
        if self._key not in self._broker.queues:
            # It is made with its first messages; a queue of that name that was deleted here has left its number.
            found(self._ingest.last_sequence(reference))
            return
        answer = await self._port.ask(self._leader(), self._about(reference))
        found(int(answer["last"]))

    async def _forward(
        self,
        reference: str,
        runs: list[MessageRun],
        done: Callable[[], None],
        failed: Callable[[LeveretError], None],
    ) -> None:
        await self._made(runs)
        if self._is_here():
            self._check_here()
            self._ingest.append(reference, runs, done, failed)
            return
        octets = [[run.first, run.records, bytes(run.data)] for run in runs]
        await self._port.ask(self._leader(), {**self._about(reference), "runs": octets})
        done()

    def _about(self, reference: str) -> dict[str, Any]:
        return {
            "vhost": self._key[0],
            "queue": self._key[1],
            "reference": reference,
            "term": self._term,
            "node": self._port.name,
        }

    def _leader(self) -> str:
        """The leader of the queue.

        Raises:
            NotFound: it has none now.
        """
        queue = self._broker.queue(*self._key)
        if not isinstance(queue, RemoteQueue):
            return self._port.name
        if queue.is_down:
            raise leader_is_down(queue, queue.leader)
        return queue.leader

    async def _made(self, runs: list[MessageRun]) -> None:
        """Make a queue that the schema sync had not brought yet; later messages wait for it, in order."""
        if self._key in self._broker.queues and self._making is None:
            return
        making = self._making
        if making is None:
            making = self._making = asyncio.get_running_loop().create_task(self._make(runs))
        try:
            await outcome_of(making)
        finally:
            if making.done():
                self._making = None

    async def _make(self, runs: list[MessageRun]) -> None:
        async with self._port.changing():
            if self._key not in self._broker.queues:
                self._ingest.make_for(runs)
                await self._ingest.all_durable()


async def recover_here(
    ingest: RecoveryIngest, port: RecoveryPort, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer RECOVER at the queue's leader.

    Raises:
        LeveretError: this node does not lead the queue, the sender does not recover the vhost, or the disk refuses.
    """
    # Nothing is awaited before the messages are gathered: they are taken in the order in which they came.
    port.check_recoverer(about["vhost"], about["node"], about["term"])
    ingest.check()
    if "runs" not in about:
        return {"last": ingest.last_sequence(about["reference"])}
    runs = [MessageRun(first, records, data) for first, records, data in about["runs"]]
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done() -> None:
        if not stored.done():
            stored.set_result(None)

    def failed(error: LeveretError) -> None:
        if not stored.done():
            stored.set_exception(error)

    ingest.append(about["reference"], runs, done, failed)
    try:
        await stored
    except asyncio.CancelledError:
        raise StorageError("the link to the recovering node ended") from None
    return {}
