"""The leader's end of the link to one mirror node, carrying every log that the one leads and the other mirrors.

Live records go out once a flush, all logs in one frame with the number of the cut. Records that a mirror lacks go out
between, in steps of their own, each log in its turn, in frames with numbers of their own. An ack of a number says that
all of the link up to there is on the mirror's disk (core.replication.replica_set).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, Protocol

from leveret.core.replication.replica_set import ReplicaSet
from leveret.core.replication.sender import ReplicationSender
from leveret.model.errors import StorageError
from leveret.runtime.link.peer import WRITE_BUFFER_BYTES, LinkPeer
from leveret.runtime.mirroring.led_log import LedLog, MirrorState
from leveret.runtime.mirroring.log_table import LogTable
from leveret.runtime.mirroring.mirror_stream import MirrorStream
from leveret.runtime.replication.reconciliation import check_name
from leveret.runtime.replication.sending_steps import SendingSteps
from leveret.storage.tree import Tree
from leveret.wire import link as wire
from leveret.wire.link import Frame, LinkError, Octets, Type, decode, pack

logger = logging.getLogger(__name__)

LIVE_BYTES_MAX: Final = 64 * 1024 * 1024
"""With so much of what is live waiting for the socket, a mirror goes back to being sent it from disk."""
BEAT_S: Final = 1.0
SILENCE_S: Final = 15.0


class MirrorLeader(Protocol):
    """The state that all links of a leader share: sources.MirrorSources."""

    tree: Tree
    led: dict[str, MirroredLog]
    sync_bytes_s_max: int
    ack_timeout_ms: int
    clock_ms: Callable[[], int]
    logs: LogTable

    def touched(self, link: SourceLink) -> None:
        """It has something in the frame of this flush."""

    def number(self, octets: int) -> int:
        """The number of a frame with so many octets of changes, higher than all before."""

    def replicas(self, name: str) -> ReplicaSet:
        """The replicas of a log that is led here."""

    def cut(self) -> int:
        """Send what was appended since the last cut, to every mirror."""

    def acked(self, node: str) -> None:
        """A mirror has more of its logs: promises may be due."""

    def reported(self, stream: MirrorStream, state: MirrorState) -> None:
        """See mirror_stream.MirrorStreamHost."""

    def ended(self, link: SourceLink) -> None:
        """It is gone."""


class MirroredLog(LedLog):
    """A log that this node leads, with its streams by the mirror's node."""

    __slots__ = ("streams",)

    def __init__(self, name: str, cut: int, end: int) -> None:
        """Nobody mirrors it; it ends there, at the last cut."""
        super().__init__(name, cut, end)
        self.streams: dict[str, MirrorStream] = {}

    def changed(self, cut: int, end: int) -> None:
        """It ends there since that cut."""
        acked = (stream.acked_cut for stream in self.streams.values() if stream.scope.is_live)
        self.ends_at(cut, end, forget_to=min(acked, default=cut))


class SourceLink:
    """See the module; link_peer.Receiver, and mirror_stream.MirrorStreamHost for its streams.

    Attributes:
        node: the mirror's name.
        wanted: names of the logs that the mirror wants of this node, led here or not.
        streams: those that are under way, by the log's name.
        numbers: what logs may be called in frames from now on.
        sender: what was sent, and what the mirror has acked.
        steps: those that are under way.
    """

    def __init__(self, leader: MirrorLeader, peer: LinkPeer, node: str) -> None:
        """Of a node that has proven itself; nothing is sent before it tells what it wants."""
        self.node = node
        self.peer = peer
        self.tree = leader.tree
        self.wanted: set[str] = set()
        self.streams: dict[str, MirrorStream] = {}
        self.numbers: Iterator[int] = count(1)
        self._leader = leader
        self._loop = asyncio.get_running_loop()
        self.sender = ReplicationSender(f"mirror {node}")
        self._frame = Frame()
        self._is_over = False
        self._heard_at_s = self._loop.time()
        self._beating = self._loop.call_later(BEAT_S, self._beat)
        self.steps = SendingSteps(peer, leader.clock_ms, node)

    # -- frames -------------------------------------------------------------------------------

    def add(self, head: bytes, chunk: list[Octets] | None = None, records: int = 0) -> None:
        """See mirror_stream.MirrorStreamHost."""
        frame = self._frame
        if not frame.octets:
            self._leader.touched(self)
        frame.add(head, chunk, records)

    @property
    def gathered(self) -> int:
        """Octets of changes since the last cut."""
        return self._frame.octets

    def cut_all(self) -> None:
        """See mirror_stream.MirrorStreamHost."""
        self._leader.cut()

    def cut(self, number: int) -> None:
        """Send what was added since the last cut."""
        frame = self._frame
        if not frame.octets:
            return
        self._frame = Frame()
        self.sender.cut(number, self._leader.clock_ms())
        self._write(frame, number)
        if self.peer.waiting_bytes > LIVE_BYTES_MAX:
            logger.warning("mirror_falls_behind node=%s waiting_bytes=%d", self.node, self.peer.waiting_bytes)
            for stream in list(self.streams.values()):
                if stream.scope.is_live:
                    stream.fall_behind()

    def send(self, frame: Frame) -> int:
        """See mirror_stream.MirrorStreamHost."""
        number = self._leader.number(frame.octets)
        self.sender.frame(number)
        self._write(frame, number)
        return number

    def _write(self, frame: Frame, number: int) -> None:
        self.peer.write(*frame.message(number, 0, self._leader.clock_ms()))

    def _acked(self, number: int) -> None:
        before = self.sender.acks.cut
        for scope in self.sender.acked(number):
            stream = self.streams.get(scope.name)
            if stream is not None and stream.scope is scope:
                stream.acked()
        if self.sender.acks.cut > before:
            self._leader.acked(self.node)

    # -- mirror_stream.MirrorStreamHost --------------------------------------------------------------------------

    @property
    def limit_bytes_s(self) -> int:
        """See mirror_stream.MirrorStreamHost."""
        return self._leader.sync_bytes_s_max

    @property
    def is_congested(self) -> bool:
        """See mirror_stream.MirrorStreamHost."""
        return self.peer.waiting_bytes > WRITE_BUFFER_BYTES

    def begin_segment(self, name: str) -> int:
        """See mirror_stream.MirrorStreamHost."""
        return self._leader.logs.begin_segment(name)

    def ask(self, probe: wire.ProbeHeaders) -> None:
        """See mirror_stream.MirrorStreamHost."""
        self.peer.write(pack(Type.PROBE, probe))

    def wake(self, stream: MirrorStream) -> None:
        """See mirror_stream.MirrorStreamHost."""
        self.steps.wake(stream)

    def joined(self, stream: MirrorStream, cut: int) -> None:
        """See mirror_stream.MirrorStreamHost."""
        self._leader.replicas(stream.led.name).joined(self.node, self.sender.acks, cut)
        self._leader.acked(self.node)

    def left(self, stream: MirrorStream) -> None:
        """See mirror_stream.MirrorStreamHost."""
        self._leader.replicas(stream.led.name).left(self.node)

    def reported(self, stream: MirrorStream, state: MirrorState) -> None:
        """See mirror_stream.MirrorStreamHost."""
        self._leader.reported(stream, state)

    def unreadable(self, stream: MirrorStream, error: StorageError) -> None:
        """See mirror_stream.MirrorStreamHost."""
        logger.error("mirrored_log_unreadable log=%s node=%s error=%s", stream.led.name, self.node, error)
        self.end(stream.led.name)

    # -- what the mirror says -----------------------------------------------------------------

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link_peer.Receiver."""
        self._heard_at_s = self._loop.time()
        match kind:
            case Type.ACK:
                self._acked(decode(kind, payload, wire.Acked).position)
            case Type.COPIES:
                for copy in decode(kind, payload, wire.MirrorInventory).copies:
                    self._take(copy)
            case Type.RELEASED:
                for name in decode(kind, payload, wire.LogNames).paths:
                    self.wanted.discard(name)
                    self.end(name)
            case Type.HEADERS:
                found = decode(kind, payload, wire.Headers)
                stream = self.streams.get(found.path)
                if stream is not None:
                    stream.probed(found)
            case Type.FAILED:
                failed = decode(kind, payload, wire.CopyFailed)
                logger.warning(
                    "mirror_failed log=%s node=%s error=%s", failed.path, self.node, failed.error[:500]
                )
                self.end(failed.path)
            case _:
                raise LinkError(f"message {kind.name} is not due from a mirror")

    def _take(self, copy: wire.Copy) -> None:
        name = copy.log.path
        led = self._leader.led.get(name)
        if led is None:
            check_name(self.tree, name)
            self.wanted.add(name)
            return
        self.wanted.add(name)
        self.end(name)
        # What waits for the cut is of the stream before this one: it must not come behind what begins now.
        self._leader.cut()
        log = self.tree.logs.get(name)
        epoch = log.epoch if log is not None else self.tree.epochs.get(name, self.tree.epoch)
        self.peer.write(
            pack(Type.MIRRORING, wire.Mirroring(name, copy.serial, epoch, led.lost_before, led.lost_epoch))
        )
        try:
            stream = MirrorStream(self, led, copy)
        except StorageError as error:
            logger.error("mirrored_log_unreadable log=%s node=%s error=%s", name, self.node, error)
            return
        self.streams[name] = led.streams[self.node] = stream
        self._leader.replicas(name).begins_anew(self.node)
        self._leader.reported(stream, MirrorState.JOINING)
        self.wake(stream)

    def lead(self, name: str) -> None:
        """This node leads that log from now on: if the mirror wants it, it is asked what it has."""
        if name in self.wanted:
            self.peer.write(pack(Type.REPORT_AGAIN, wire.LogNames([name])))

    def end(self, name: str, *, reports: bool = True) -> None:
        """That log is not sent any more."""
        stream = self.streams.pop(name, None)
        if stream is not None:
            led = self._leader.led.get(name)
            if led is not None and led.streams.get(self.node) is stream:
                del led.streams[self.node]
            self.steps.drop(stream)
            self.sender.end(name)
            stream.end(reports=reports)

    def ended(self, error: Exception | None) -> None:
        """See link_peer.Receiver."""
        if self._is_over:
            return
        self._is_over = True
        self.steps.cancel()
        self._beating.cancel()
        log = logger.warning if self.streams else logger.info
        log("mirror_disconnected node=%s reason=%s", self.node, error or "it closed the link")
        for name in list(self.streams):
            self.end(name)
        self._leader.ended(self)

    # -- what goes on by itself ---------------------------------------------------------------

    def _beat(self) -> None:
        """Say that the leader is there; end the link of a mirror that is not, or owes for too long."""
        self._beating = self._loop.call_later(BEAT_S, self._beat)
        silent_s = self._loop.time() - self._heard_at_s
        # Nobody waits for what is sent to synchronise, however long that takes.
        since_ms = self.sender.owed_since_ms
        owed_ms = self._leader.clock_ms() - since_ms if since_ms is not None else 0
        if silent_s > SILENCE_S:
            self.peer.abort(LinkError(f"nothing was heard of it for {silent_s:.0f} s"))
        elif owed_ms > self._leader.ack_timeout_ms:
            self.peer.abort(LinkError(f"it owes an ack for {owed_ms} ms"))
        elif self.wanted:
            self.peer.write(*Frame().message(self.sender.sent, 0, self._leader.clock_ms()))

    def owed_since_ms(self, stream: MirrorStream) -> int | None:
        """When the oldest cut was sent that the mirror has not acked, of a stream that lacks one; else None."""
        return self.sender.owed_since_ms if stream.led.cut > self.sender.acks.cut else None
