"""Forwarding: this node's clients at queues of other leaders, and other nodes' clients at the queues of this leader.

`Forwarding` is the store of queues with a leader elsewhere (log_store.QueueStoring): messages that they gather go
to their leaders. It dials one link for each leader and vhost while there is traffic, and again after an end of the
link. At the other end `accept` makes a connection of the engine from such a link, as amqp_peer does from a client's
socket.

A forwarding connection is always read. The sender keeps sent messages until their confirm, and stops reading its
publishers while it keeps too many (`is_overloaded`). So heartbeats arrive even while this node is busy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import StreamBatch
from leveret.model.errors import LeveretError
from leveret.runtime.cluster.forwarding_ends import AcceptedEnd, DialledEnd, LocalEnd
from leveret.runtime.link.peer import LinkPeer, Receiver
from leveret.runtime.process.clock import elapsed_ms
from leveret.runtime.process.sparse_log import SparseLog
from leveret.runtime.sockets.backoff import QUICK_RETRY_S, delay_s
from leveret.session.amqp091.remote_queues import ConnectionHost
from leveret.session.forwarding.leader_client import LeaderClient
from leveret.session.forwarding.leaders import RemoteLeaders
from leveret.session.forwarding.stream_outlets import Hold
from leveret.session.link_handshake import Kind, ProvenFollower

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node

logger = logging.getLogger(__name__)

UNCONFIRMED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Publishers are not read while leaders have not confirmed more than this."""
LINK_BYTES_MAX: Final = 16 * 1024 * 1024
"""Publishers are not read while one link has more than this to send."""
_TICK_S: Final = 0.1


class Dial(Protocol):
    """Makes links; see runtime.cluster.membership.links."""

    def __call__(self, node: str, kind: Kind, *, vhost: str) -> Coroutine[Any, Any, LinkPeer]:
        """Return a new link to a node; the caller sets its receiver next. Raises LeveretError."""


class Forwarding:
    """See the module.

    Attributes:
        leaders: the part of forwarding without sockets.
        accepted: links of other nodes to this one.
        engine, host: of this node.
    """

    def __init__(self, name: str, node: Node, dial: Dial, run_id: str) -> None:
        """Know no remote queue yet; `run_id` identifies this run of the node `name`."""
        self._name = name
        self.engine = node.engine
        self.host: ConnectionHost = node.amqp_host
        self._alarms = node.alarms
        self._broker = node.broker
        self._dial_link = dial
        self._links: dict[LeaderClient, DialledEnd] = {}
        self.accepted: set[AcceptedEnd] = set()
        self._is_stopped = False
        self._keepers: set[asyncio.Task[None]] = set()
        self._relieved: list[Callable[[], None]] = []
        self._ticker: asyncio.Task[None] | None = None
        self._failures = SparseLog()
        self.leaders = RemoteLeaders(name, node.broker, node.engine.outbox, run_id.encode(), self._dial)
        self.leaders.kept.on_freed = self._relieve
        node.alarms.on_change.append(self._alarms_changed)

    # -- queues, as log_store.QueueStoring ------------------------------------------------------

    def append_messages(self, queue: Queue) -> None:
        """Send the queue's gathered messages to its leader."""
        if isinstance(queue, RemoteQueue):
            self.leaders.append_messages(queue)

    def append_settlements(self, queue: Queue) -> None:
        """Do nothing: only a leader settles messages."""

    def delete(self, queue: Queue) -> None:
        """Drop the messages of a deleted queue that no leader confirmed; they never will be."""
        self.leaders.ceased(queue)
        self.engine.touch()

    # -- streams, for clients of their protocol -------------------------------------------------

    def stream_elsewhere(self, key: tuple[str, str], epoch: int) -> RemoteQueue | None:
        """The stream of this epoch, if another node leads it, or is to lead it."""
        queue = self._broker.queues.get(key)
        return queue if isinstance(queue, RemoteQueue) and queue.epoch == epoch else None

    def publish_batch(self, queue: RemoteQueue, batch: StreamBatch, hold: Hold) -> None:
        """Publish a batch at the leader of a stream, once `hold` calls back; its `done` is called with the outcome."""
        self.leaders.streams.publish(queue, batch, hold)
        self.engine.touch()

    # -- leaders of queues --------------------------------------------------------------------

    def led_by(self, queue: RemoteQueue, leader: str) -> None:
        """Send the queue's messages to another node, which leads it now."""
        self.leaders.led_by(queue, leader)
        self.engine.touch()

    def led_here(self, before: Queue, queue: Queue) -> None:
        """Send the queue's messages to `queue`, which this node leads now, in the place of the placeholder `before`.

        All published and unconfirmed messages are gathered before this returns.
        """
        self.leaders.led_here(before, queue)
        self.engine.touch()

    def waits(self, before: Queue, stands: RemoteQueue) -> None:
        """Keep messages: `stands` replaces `before`, which this node led, until `led_by` or `led_here` is called."""
        self.leaders.waits(before, stands)
        self.engine.touch()

    def down(self, queue: RemoteQueue) -> None:
        """Refuse messages until `led_by` or `led_here`: the leader is gone, and no other node can lead the queue."""
        self.leaders.down(queue)
        self.engine.touch()

    # -- flow control ------------------------------------------------------------

    def is_overloaded(self) -> bool:
        """Whether publishers should wait for leaders; messages for a queue that is down do not count."""
        kept = self.leaders.kept
        if kept.size_bytes > UNCONFIRMED_BYTES_MAX < kept.expected_bytes:
            return True
        return any(link.peer.waiting_bytes > LINK_BYTES_MAX for link in self._links.values())

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once `is_overloaded` is False."""
        self._relieved.append(callback)

    def _relieve(self) -> None:
        if self._relieved and not self.is_overloaded():
            relieved, self._relieved = self._relieved, []
            for callback in relieved:
                callback()

    def go_on(self) -> None:
        """Continue blocked requests of other nodes' clients, for instance because the definitions lock has arrived."""
        for link in list(self.accepted):
            link.go_on()

    def _alarms_changed(self) -> None:
        for link in list(self.accepted):
            link.alarms_changed()

    def alarms_elsewhere(self) -> None:
        """A leader's memory or disk alarm began or ended: publishers wait for its end."""
        short = {each: None for leader_client in self._links for each in leader_client.blocked_by}
        self._alarms.set_elsewhere(tuple(short))

    # -- links to leaders ---------------------------------------------------------------------

    def _dial(self, leader_client: LeaderClient) -> None:
        self._begin_ticks()
        if leader_client.leader == self._name:
            LocalEnd(self, leader_client, self._name)
            return
        keeper = asyncio.get_running_loop().create_task(self._keep(leader_client))
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)

    async def _keep(self, leader_client: LeaderClient) -> None:
        """Keep a link to a leader for as long as it is wanted."""
        failures, loop = 0, asyncio.get_running_loop()
        while self.leaders.wants(leader_client):
            try:
                peer = await self._dial_link(leader_client.leader, "relay", vhost=leader_client.vhost)
                failures, began_s = 0, loop.time()
                try:
                    link = self._links[leader_client] = DialledEnd(self, leader_client, peer)
                    await link.is_over.wait()
                finally:
                    peer.close()
                # A leader that accepts each link and ends it at once is not asked without a pause.
                await asyncio.sleep(max(0.0, began_s + QUICK_RETRY_S[0] - loop.time()))
            except Exception as error:
                # Any error: without this loop nothing would reach the leader any more.
                is_bug = not isinstance(error, LeveretError)
                level = logging.ERROR if is_bug else logging.DEBUG if failures else logging.INFO
                text = "forwarding_not_connected leader=%s error=%s"
                logger.log(level, text, leader_client.leader, error, exc_info=is_bug)
                await asyncio.sleep(delay_s(QUICK_RETRY_S, failures))
                failures += 1
        self.leaders.discard(leader_client)

    def link_ended(self, dialled: DialledEnd) -> None:
        """See ForwardingOwner; unconfirmed messages are kept, and sent again."""
        self._links.pop(dialled.leader_client, None)
        if not self._is_stopped:
            self.leaders.lost(dialled.leader_client)
            self.alarms_elsewhere()
            self.engine.touch()
            self._relieve()

    # -- links of others ----------------------------------------------------------------------

    def accept(self, peer: LinkPeer, caller: ProvenFollower) -> Receiver:
        """Make a connection of this node's engine from another node's forwarding connection."""
        self._begin_ticks()
        link = AcceptedEnd(self, peer, caller.name)
        self.accepted.add(link)
        return link

    def forget(self, accepted: AcceptedEnd) -> None:
        """See ForwardingOwner."""
        self.accepted.discard(accepted)

    # -- time and end -------------------------------------------------------------------------

    def _begin_ticks(self) -> None:
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_ms = elapsed_ms()
            try:
                if self.leaders.tick(now_ms):
                    self.engine.touch()
            except Exception:
                # A bug in one request must not end the heartbeats and timeouts of all links.
                others = self._failures.others()
                if others is not None:
                    logger.exception("forwarding_failed action=retry others=%d", others)
            ends: list[AcceptedEnd | DialledEnd] = [*self.accepted, *self._links.values()]
            for end in ends:
                try:
                    end.tick(now_ms)
                except Exception as error:
                    # A bug in one link must not end the heartbeats and timeouts of all.
                    logger.exception("forwarding_failed peer=%s", end.peer.address)
                    end.peer.close(error)
            self._relieve()

    async def stop(self) -> None:
        """End all links; unconfirmed messages are dropped, and their publishers get no answer."""
        self._is_stopped = True
        tasks = [*self._keepers, *([self._ticker] if self._ticker is not None else [])]
        for task in tasks:
            task.cancel()
        for peer in [*(each.peer for each in self._links.values()), *(each.peer for each in self.accepted)]:
            peer.close()
        await asyncio.gather(*tasks, return_exceptions=True)
