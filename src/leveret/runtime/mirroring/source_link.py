"""The leader's end of the link to one mirror node, for every log that the one leads and the other mirrors.

Live records are sent once a flush, all logs in one frame with the number of the cut. Records that a mirror lacks are
sent between, in steps of their own, one log after the other, in frames with numbers of their own. An ack of a number
says that all frames of the link up to it are on the mirror's disk (core.replication.replica_set).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from leveret.model.errors import StorageError
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.mirroring.led_log import LedLog, MirrorState
from leveret.runtime.mirroring.source_link_base import MirrorLeader, SourceLinkBase
from leveret.runtime.mirroring.source_stream import SourceStream
from leveret.runtime.process.sparse_log import SparseLog
from leveret.runtime.replication.sent_logs import check_name
from leveret.storage.open_segments import OutOfDescriptors
from leveret.wire import link as wire
from leveret.wire.link import Frame, LinkError, Type, decode, pack

logger = logging.getLogger(__name__)

BEAT_S: Final = 1.0
_READ_AGAIN_S: Final = 1.0


class MirroredLog(LedLog):
    """A log that this node leads, with its streams by the mirror's node."""

    __slots__ = ("streams",)

    def __init__(self, name: str, cut: int, end: int) -> None:
        """Start without a mirror; at the last cut, `cut`, the log ended at `end`."""
        super().__init__(name, cut, end)
        self.streams: dict[str, SourceStream] = {}

    def changed(self, cut: int, end: int) -> None:
        """Note the log's end since that cut."""
        acked = (stream.acked_cut for stream in self.streams.values() if stream.scope.is_live)
        self.ends_at(cut, end, forget_to=min(acked, default=cut))


class SourceLink(SourceLinkBase):
    """See the module; link.peer.Receiver.

    Attributes:
        run_id: the id of the mirror node's run.
        wanted: names of the logs that the mirror wants of this node, led here or not.
        streams: the streams under way, by the log's name.
    """

    def __init__(
        self,
        leader: MirrorLeader,
        led: dict[str, MirroredLog],
        peer: LinkPeer,
        node: str,
        run_id: str = "",
    ) -> None:
        """Serve a node after its handshake; send nothing before it reports which of the `led` logs it wants."""
        super().__init__(leader, peer, node)
        self.run_id = run_id
        self.wanted: set[str] = set()
        self.streams: dict[str, SourceStream] = {}
        self._led = led
        self._is_over = False
        self._failures = SparseLog()
        self._beating = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def fall_behind(self) -> None:
        """See SourceLinkBase."""
        logger.warning("mirror_falls_behind node=%s waiting_bytes=%d", self.node, self.peer.waiting_bytes)
        for stream in list(self.streams.values()):
            if stream.scope.is_live:
                stream.fall_behind()

    def _acked(self, number: int) -> None:
        before = self.sender.acks.cut
        for scope in self.sender.acked(number):
            stream = self.streams.get(scope.name)
            if stream is not None and stream.scope is scope:
                stream.acked()
        if self.sender.acks.cut > before:
            self.leader.acked(self.node)

    # -- messages of the mirror ---------------------------------------------------------------

    def received(self, kind: Type, payload: memoryview) -> None:
        """See link.peer.Receiver."""
        match kind:
            case Type.ACK:
                self._acked(decode(kind, payload, wire.Acked).position)
            case Type.COPIES:
                for copy in decode(kind, payload, wire.MirrorInventory).copies:
                    self._take(copy)
            case Type.RELEASED:
                for name in decode(kind, payload, wire.LogNames).paths:
                    self.wanted.discard(name)
                    self.failing.discard(name)
                    self.end(name)
            case Type.HEADERS:
                found = decode(kind, payload, wire.Headers)
                stream = self.streams.get(found.path)
                if stream is not None:
                    stream.probed(found)
            case Type.FAILED:
                failed = decode(kind, payload, wire.CopyFailed)
                others = self._failures.others()
                if others is not None:
                    logger.warning(
                        "mirror_failed log=%s node=%s error=%s others=%d",
                        failed.path,
                        self.node,
                        failed.error[:500],
                        others,
                    )
                self.end(failed.path)
                if failed.path in self._led:
                    self.failing.add(failed.path)
            case _:
                raise LinkError(f"message {kind.name} is not due from a mirror")

    def _take(self, copy: wire.Copy) -> None:
        name, tree = copy.log.path, self.leader.tree
        led = self._led.get(name)
        if led is None:
            check_name(tree, name)
            self.wanted.add(name)
            if len(self.wanted) > wire.LOGS_MAX:
                raise LinkError(f"the mirror names more than {wire.LOGS_MAX} logs")
            return
        self.wanted.add(name)
        self.end(name)
        # Changes that wait for the cut belong to the previous stream: they must not follow the begin of the new one.
        self.leader.cut()
        log = tree.logs.get(name)
        epoch = log.epoch if log is not None else tree.epochs.get(name, tree.epoch)
        self.peer.write(
            pack(Type.MIRRORING, wire.Mirroring(name, copy.serial, epoch, led.lost_before, led.lost_epoch))
        )
        try:
            stream = SourceStream(self, led, copy)
        except StorageError as error:
            self.unreadable(name, error)
            return
        self.streams[name] = led.streams[self.node] = stream
        self.leader.replicas(name).begins_anew(self.node)
        self.leader.reported(name, self.node, MirrorState.JOINING)
        self.wake(stream)

    def lead(self, name: str) -> None:
        """Request a report on a log that this node leads from now on, if the mirror wants the log."""
        if name in self.wanted:
            self.peer.write(pack(Type.REPORT_AGAIN, wire.LogNames([name])))

    def unreadable(self, name: str, error: StorageError) -> None:
        """Send a log no longer that cannot be read; if only the system's descriptors have run out, soon again."""
        logger.error("mirrored_log_unreadable log=%s node=%s error=%s", name, self.node, error)
        self.end(name)
        if isinstance(error, OutOfDescriptors):
            asyncio.get_running_loop().call_later(_READ_AGAIN_S, self.lead, name)

    def end(self, name: str, *, reports: bool = True) -> None:
        """Send that log no longer."""
        stream = self.streams.pop(name, None)
        if stream is not None:
            led = self._led.get(name)
            if led is not None and led.streams.get(self.node) is stream:
                del led.streams[self.node]
            self.drop(stream)
            self.sender.end(name)
            stream.end(reports=reports)

    def ended(self, error: Exception | None) -> None:
        """See link.peer.Receiver."""
        if self._is_over:
            return
        self._is_over = True
        self.stop_steps()
        self._beating.cancel()
        log = logger.warning if self.streams else logger.info
        log("mirror_disconnected node=%s reason=%s", self.node, error or "it closed the link")
        for name in list(self.streams):
            self.end(name)
        # The listener forgets a link when the next one comes, which may be days later.
        self.wanted.clear()
        self.leader.ended(self)

    # -- heartbeats ---------------------------------------------------------------------------

    def _beat(self) -> None:
        """Send a heartbeat; end the link of a mirror that owes an ack for too long."""
        self._beating = asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        # No promise waits for records that are sent to synchronise, however long that takes.
        since_ms = self.sender.owed_since_ms
        owed_ms = self.now_ms() - since_ms if since_ms is not None else 0
        if owed_ms > self.leader.ack_timeout_ms:
            self.peer.abort(LinkError(f"it owes an ack for {owed_ms} ms"))
        elif self.wanted:
            self.peer.write(*Frame().message(self.sender.sent, 0, self.now_ms()))

    def owed_since_ms(self, stream: SourceStream) -> int | None:
        """Return the time of the oldest unacked cut if the stream lacks a cut, in milliseconds; else None."""
        return self.sender.owed_since_ms if stream.led.cut > self.sender.acks.cut else None
