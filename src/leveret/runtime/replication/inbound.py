"""The follower's side of the link: it connects, reports its logs, applies received changes, and acks them once on disk.

The follower connects again whenever the link ends or a frame is invalid. The leader never sends present records again,
so a new link costs a round trip.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from leveret.config.uris import NodeUri
from leveret.core.replication.receiver import ReceivePhase
from leveret.model.errors import Corrupt, LeveretError, StorageError
from leveret.runtime.link.dialling import Dialling
from leveret.runtime.link.heartbeat import LinkHeartbeat
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.link.questions import Questions, Unanswered, in_thread
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.replication.applier import FollowerData, WaitingChanges
from leveret.runtime.replication.identity import LinkEnd
from leveret.runtime.replication.progress import progress_row
from leveret.runtime.replication.receiving_link import ReceivedFrame, ReceivingLink
from leveret.runtime.sockets.backoff import RETRY_S, RetryWaits
from leveret.session.link_handshake import (
    HandshakeDeclined,
    HandshakeRefused,
    ProvenLeader,
    SecretsDiffer,
)
from leveret.wire.link import (
    FrameHead,
    Headers,
    Inventory,
    LinkError,
    LogChange,
    LogExtent,
    Number,
    ProbeHeaders,
    Type,
    decode,
    pack,
)

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0
SILENCE_S: Final = 10
"""A leader sends a message every second; one that is silent for this time is lost."""
TAKE_OVER_TIMEOUT_S: Final = 3.0
_TAKE_OVER_ROUNDS_MAX: Final = 10
_EXTENTS_AT_ONCE: Final = 4096
_SLICE_S: Final = 0.01


class FollowingNode(Protocol):
    """The following node, as the link sees it."""

    def files(self) -> Iterable[str]:
        """Return the names of the present state files."""

    def leader_epoch(self, leader: ProvenLeader) -> None:
        """Take a proven leader, whose epoch may be higher than this node's."""

    def damaged(self, error: Corrupt) -> None:
        """Called with the error of a damaged or missing log of this node."""

    def hopeless(self, error: LeveretError) -> None:
        """Called with an error that no further attempt can cure: the leader has another secret."""


@dataclass(slots=True)
class LeaderProgress:
    """The leader and the progress of replication, as this node knows them.

    Attributes:
        state: connecting, joining, catching_up, streaming or failed; see `error`.
        heard_at_ms: when the leader's last message came, by this node's clock; None before the first.
        has_all: whether this node had all data of the leader when it last heard of it.
        position: the last known position of the leader's feed; this node is there if it has all data.
        bytes_left: the missing octets, as the leader last named them; None if it has not compared the logs.
        bytes_copied: the octets copied so far while catching up.
        cut_at_ms: the time at which the leader cut the last applied frame, by its clock; 0 for none.
        is_torn: whether a link ended while this node was catching up.
    """

    state: str = "connecting"
    error: str = ""
    leader: ProvenLeader | None = None
    connected_at_ms: int | None = None
    heard_at_ms: int | None = None
    has_all: bool = False
    position: int = 0
    acked_position: int = 0
    received_bytes: int = 0
    cut_at_ms: int = 0
    bytes_left: int | None = None
    bytes_copied: int = 0
    copying_since_ms: int = 0
    is_torn: bool = False


class Inbound:
    """See the module.

    Attributes:
        progress: the progress of replication.
        questions: the questions to and from the leader.
    """

    def __init__(
        self,
        uri: NodeUri,
        own: LinkEnd,
        *,
        data: FollowerData,
        commits: GroupCommit,
        followed: FollowingNode,
        clock_ms: Callable[[], int],
        answer: Callable[[str, dict[str, Any]], dict[str, Any]],
        repaired: Callable[[], Awaitable[None]],
    ) -> None:
        """Start without a connection.

        `data` applies the leader's frames, `answer` answers the leader's questions. `repaired` returns once no chunk is
        being repaired; none is repaired while this node joins.
        """
        self._repaired = repaired
        self.uri = uri
        self.progress = LeaderProgress()
        self.questions = Questions(in_thread(answer))
        self._own = own
        self._data = data
        self._commits = commits
        self._followed = followed
        self._clock_ms = clock_ms
        self._link: ReceivingLink | None = None
        self._ended = asyncio.Event()
        self._received_before = 0
        self._stops = False
        self._handed_over = asyncio.Event()
        self._asks_to_take_over = False
        self._telling: asyncio.Task[None] | None = None
        self._applying: asyncio.Task[None] | None = None

    # -- the link -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the leader, for ever; connect again after each link."""
        waits, loop = RetryWaits(RETRY_S), asyncio.get_running_loop()
        while not self._stops:
            await self._once()
            # A link that soon ends is a failure although it streamed: a copy of this node ends it with its own.
            await asyncio.sleep(waits.failed(loop.time()))

    async def _once(self) -> None:
        self._ended.clear()
        loop = asyncio.get_running_loop()
        dialling = Dialling(self._own.prove)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await dialling.connect(self.uri, self._own.tls() if self.uri.is_tls else None)
        except (OSError, TimeoutError, LeveretError) as error:
            self._note_error(f"cannot connect to {self.uri}: {str(error) or 'no answer'}")
            return
        peer = dialling.peer
        try:
            async with asyncio.timeout(SILENCE_S):
                leader = await dialling.shake(self._own.credentials.dials("follow", peer.channel))
            if not self._stops:
                # This node may follow another leader by now, or lead.
                self._begin_joining(leader)
        except (OSError, TimeoutError, LeveretError) as error:
            peer.close(error)
            self.ended(error if str(error) else LinkError("the leader does not answer"))
            return
        except BaseException:
            peer.abort()
            raise
        if self._stops or peer.is_closed:
            peer.close()
            self.ended(None)
            return
        link = ReceivingLink(peer, self._data, ReceivePhase.JOINING, self._commits, self._durable)
        self._link, peer.receiver = link, self
        LinkHeartbeat(peer, silent_beats_max=SILENCE_S, says=False)
        # Without a reference the task may be garbage-collected.
        self._telling = loop.create_task(self._send_inventory(peer))
        await link.beat(self._ended)
        await self._ended.wait()
        if self._applying is not None:
            await asyncio.wait((self._applying,))

    def copying(self) -> dict[str, Any] | None:
        """Return the progress of catching up, see `progress_row`; None if this node does not catch up."""
        progress = self.progress
        if progress.state != "catching_up":
            return None
        done, left = progress.bytes_copied, progress.bytes_left or 0
        return progress_row(done, done + left, (self._clock_ms() - progress.copying_since_ms) / 1000)

    @property
    def has_handed_over(self) -> bool:
        """Whether the leader has answered `take_over`: this node has all its changes."""
        return self._handed_over.is_set()

    async def take_over(self, epoch: int) -> None:
        """Have the leader send all its changes, and promise none from then on; see `has_handed_over`.

        The last changes of a leader that is away, or does not answer, are lost.
        """
        if self._link is None or self.progress.state != "streaming":
            return
        self._asks_to_take_over = True
        self._link.peer.write(pack(Type.TAKE_OVER, Number(epoch)))
        waits = [asyncio.create_task(event.wait()) for event in (self._handed_over, self._ended)]
        for _ in range(_TAKE_OVER_ROUNDS_MAX):
            position = self.progress.position
            done, _ = await asyncio.wait(
                waits, timeout=TAKE_OVER_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            # As long as earlier frames still arrive, the answer is in flight.
            if done or self.progress.position == position:
                break
        for wait in waits:
            wait.cancel()

    @property
    def state(self) -> str:
        """The state of this follower: that of the link, but `delayed` for a streaming delayed follower."""
        state = self.progress.state
        return "delayed" if state == "streaming" and self._data.apply_delay_ms else state

    @property
    def error(self) -> str:
        """The error of the link or of its frames; empty if there is none."""
        extent = self._data.delayed_changes()
        return self.progress.error or (extent.error if extent is not None else "")

    def delayed_changes(self) -> WaitingChanges | None:
        """Return the changes that can be left out; None for a node without a delay."""
        return self._data.delayed_changes()

    @property
    def is_connected(self) -> bool:
        """Whether the leader can receive questions."""
        return self._link is not None and self.progress.leader is not None

    async def ask(self, what: str, about: dict[str, str | int | bool]) -> dict[str, Any]:
        """Return the leader's answer to a question.

        Raises:
            Unanswered: there is no answer.
        """
        if self._link is None:
            raise Unanswered("the replication link to the leader is down")
        return await self.questions.ask(self._link.peer, what, about)

    async def stop(self) -> None:
        """End the link, and connect no more; on return no thread keeps records any more, so the logs may change."""
        self._stops = True
        if self._link is not None:
            self._link.peer.close()
        if self._applying is not None:
            # It may wait for a sync that a failed node does not make. A coroutine must have begun to be cancelled.
            await asyncio.sleep(0)
            self._applying.cancel()
            await asyncio.wait((self._applying,))

    def _note_error(self, error: str) -> None:
        if error != self.progress.error:
            logger.warning("replication_link_lost leader=%s error=%s", self.uri, error)
        self.progress.error = error

    def ended(self, error: Exception | None) -> None:
        """See link.peer.Receiver."""
        progress = self.progress
        if progress.state == "catching_up":
            progress.is_torn = True
        if not self._stops:
            self._note_error(str(error or "the leader closed the link"))
            if isinstance(error, SecretsDiffer):
                self._followed.hopeless(error)
        if isinstance(error, Corrupt):
            self._followed.damaged(error)
        refused = isinstance(error, (SecretsDiffer, HandshakeRefused, HandshakeDeclined, StorageError))
        progress.state = "failed" if refused else "connecting"
        progress.connected_at_ms = None
        self._received_before = progress.received_bytes
        self.questions.ended()
        self._link = None
        self._ended.set()

    # -- messages of the leader ---------------------------------------------------------------

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link.peer.Receiver."""
        link = self._link
        if link is None:
            return
        peer = link.peer
        self.progress.received_bytes = self._received_before + peer.received_bytes
        self.progress.heard_at_ms = self._clock_ms()
        match kind:
            case Type.FRAME:
                self._take_frame(link, payload)
            case Type.STREAMING:
                self._begin_streaming(link, decode(kind, payload, Number).number)
            case Type.HANDED_OVER:
                decode(kind, payload, Number)
                if not self._asks_to_take_over:
                    raise LinkError("the leader hands over, and was not asked to")
                self._handed_over.set()
            case Type.PROBE if link.receiver.phase is not ReceivePhase.STREAMING:
                probe = decode(kind, payload, ProbeHeaders)
                found = self._data.headers(probe.path, probe.before, probe.count)
                peer.write(pack(Type.HEADERS, Headers(probe.path, found)))
            case Type.QUESTION | Type.ANSWER:
                self.questions.received(peer, kind, payload)
            case _:
                raise LinkError(f"message {kind.name} is not due from a leader")

    def _begin_joining(self, leader: ProvenLeader) -> None:
        """Begin a join with the leader; raise HandshakeRefused if it was replaced."""
        epoch = self._own.identity.identity.epoch
        if leader.epoch < epoch:
            raise HandshakeRefused(
                f"the leader {leader.name} at {self.uri} has epoch {leader.epoch}, this node's data have {epoch}: "
                "it was replaced; follow the present leader"
            )
        self._followed.leader_epoch(leader)
        self._data.joining(leader)
        progress = self.progress
        progress.leader, progress.state = leader, "joining"
        progress.error, progress.connected_at_ms = "", self._clock_ms()
        progress.heard_at_ms = progress.connected_at_ms
        # Of another feed, perhaps, and of another leader.
        progress.has_all, progress.bytes_left = False, None
        progress.position = progress.acked_position = 0
        logger.info("replication_connected leader=%s name=%s epoch=%d", self.uri, leader.name, leader.epoch)

    async def _send_inventory(self, peer: LinkPeer) -> None:
        """Send the extents of all logs, in slices of time: there may be thousands, each with a header to read."""
        loop, delay_ms = asyncio.get_running_loop(), self._data.apply_delay_ms
        part: list[LogExtent] = []
        try:
            # The leader may have a log truncated that a repair writes to.
            await self._repaired()
            until_s = loop.time() + _SLICE_S
            for extent in self._data.inventory():
                part.append(extent)
                if len(part) == _EXTENTS_AT_ONCE:
                    peer.write(pack(Type.INVENTORY, Inventory(part, [], False, delay_ms)))
                    part = []
                if loop.time() >= until_s:
                    await asyncio.sleep(0)
                    until_s = loop.time() + _SLICE_S
                if peer.is_closed:
                    return
            files = list(self._followed.files())
            peer.write(pack(Type.INVENTORY, Inventory(part, files, True, delay_ms)))
        except Exception as error:
            # Any error ends the link: the leader would wait for the rest of the report for ever.
            if not isinstance(error, LeveretError):
                logger.exception("inventory_not_sent peer=%s", peer.address)
            peer.close(error)

    def _take_frame(self, link: ReceivingLink, payload: memoryview) -> None:
        if self._data.apply_delay_ms or link.receiver.phase is not ReceivePhase.STREAMING:
            # It may be applied later, and these octets are valid only now.
            payload = memoryview(bytes(payload))
        frame = link.read(payload)
        keeping = self._data.keeping(frame.changes)
        if keeping is None:
            self._apply(link, frame, len(payload))
        else:
            link.peer.hold()
            later = self._apply_after(keeping, link, frame, len(payload))
            self._applying = asyncio.get_running_loop().create_task(later)

    def _apply(self, link: ReceivingLink, frame: ReceivedFrame, size: int) -> None:
        self._note(link.apply(frame, lambda head, changes: self._make(head, changes, size)))

    async def _apply_after(
        self, keeping: Coroutine[Any, Any, None], link: ReceivingLink, frame: ReceivedFrame, size: int
    ) -> None:
        """Apply a frame after long work, and take the messages behind it; not if the link has ended meanwhile."""
        peer = link.peer
        try:
            await keeping
            if not peer.is_closed:
                self._apply(link, frame, size)
                if not link.is_behind:  # else it goes on by itself
                    link.go_on()
        except Exception as error:
            # As an error in `received`.
            if not isinstance(error, LeveretError):
                logger.exception("replication_link_failed peer=%s", peer.address)
            peer.close(error)

    def _make(self, head: FrameHead, changes: list[LogChange], size: int) -> None:
        progress = self.progress
        if progress.state != "catching_up" and not head.position:
            # The leader sends records from disk: this node lacks some.
            progress.state, progress.copying_since_ms = "catching_up", self._clock_ms()
        if not head.position:
            progress.has_all, progress.bytes_left = False, head.records
            progress.bytes_copied += size
        self._data.take(head, changes)

    def _note(self, head: FrameHead) -> None:
        progress = self.progress
        progress.cut_at_ms = max(progress.cut_at_ms, head.cut_at_ms)
        progress.position = max(progress.position, head.position)

    def _begin_streaming(self, link: ReceivingLink, position: int) -> None:
        link.receiver.joined(position)
        progress = self.progress
        progress.state, progress.has_all, progress.is_torn = "streaming", True, False
        progress.position = position
        progress.bytes_left = progress.bytes_copied = 0
        logger.info("replication Files synced leader=%s position=%d", self.uri, position)
        logger.info("replication Streaming changes leader=%s", self.uri)
        # The leadership that this node has joined must be on disk before the ack, on which promises rely.
        self._data.joined()
        link.acknowledge()

    def _durable(self, number: int) -> None:
        self.progress.acked_position = number
        try:
            self._data.drop_due()
        except StorageError as error:
            # The drop is due again after the next sync. The acked records are on disk in any case.
            logger.warning("dropped_later error=%s", error)
