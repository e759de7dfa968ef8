"""One log on its way to one mirror: reads it, and sends what core.replication.sender says is due.

Promises and records of etcd speak of states, which follow the phases of the scope:

    joining          the copy is compared with the log, or is all but complete
    synchronising    missing records are sent, from disk, beside live traffic
    unsynchronised   it is sent each cut, and lacks the prefix: the records before the begin of its copy
    live             it has everything, and is sent each cut
    gone             the scope has ended, or fell behind

The common part of copy and log is kept, and records behind it are sent in order. A mirror without a copy
begins at the log's *present end*, on a segment of its own: so it gets new records at once, however long the log is.
The prefix is sent afterwards, if that is asked for, the newest segment first, at the allowed pace. A sync that was
cancelled, or cut off, continues where it stopped. A short log is simply sent.

A state is reported only after the mirror's ack, so the records are on the mirror's disk. Promises count on the mirror
from the frame on with which it goes live, once it lacks no prefix.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from leveret.core.replication.sender import ReplicationSender, SendEvent, SendPhase, SentPrefix
from leveret.model.errors import StorageError
from leveret.runtime.mirroring.led_log import LedLog, MirrorState
from leveret.runtime.replication.catching_up import CatchUpPlan
from leveret.runtime.replication.progress import SynchronisingProgress
from leveret.runtime.replication.reconciliation import Reconciliation
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire import link as wire
from leveret.wire.chunk import decode_header
from leveret.wire.link import ChangeKind, Frame, LinkError, Octets, log_change, name_change

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 256 * 1024
"""Read and sent in one turn of the loop, less than a millisecond; what is live waits behind it."""
FINAL_BYTES: Final = 1024 * 1024
"""With so little missing the rest is sent in one turn of the loop; a log so short is sent whole."""


class MirrorStreamHost(Protocol):
    """The link that a stream is on, and the room behind it."""

    node: str
    numbers: Iterator[int]
    tree: Tree
    sender: ReplicationSender

    @property
    def limit_bytes_s(self) -> int:
        """Most that a log's mirrors are sent in a second to synchronise; 0 for no limit."""

    def send(self, frame: Frame) -> int:
        """Send a frame at once; its number."""

    def add(self, head: bytes, chunk: list[Octets] | None = None, records: int = 0) -> None:
        """Have a change in the frame of this flush."""

    def cut_all(self) -> None:
        """End the frame of this flush, and have it sent."""

    def begin_segment(self, name: str) -> int:
        """Begin a segment of a log that is led here, with a chunk that settles nothing; its offset. StorageError."""

    def ask(self, probe: wire.ProbeHeaders) -> None:
        """Ask the mirror."""

    def wake(self, stream: MirrorStream) -> None:
        """It has something to do."""

    def joined(self, stream: MirrorStream, cut: int) -> None:
        """The mirror has everything that is not settled up to the cut that it acks, from that one on."""

    def left(self, stream: MirrorStream) -> None:
        """The mirror is not sent each cut any more."""

    def reported(self, stream: MirrorStream, state: MirrorState) -> None:
        """It is in another state."""

    def unreadable(self, stream: MirrorStream, error: StorageError) -> None:
        """This node cannot read its own log: it cannot be mirrored."""

    @property
    def is_congested(self) -> bool:
        """Whether much waits for the socket."""


class MirrorStream:
    """See the module; also reconciliation.Notes, for what is decided of it.

    Attributes:
        led: the log.
        scope: how far it is.
        prefix: the same of its prefix.
        state: as it was told last.
        syncs: whether it is to be sent its prefix.
    """

    def __init__(self, host: MirrorStreamHost, led: LedLog, copy: wire.Copy) -> None:
        """Of a mirror that has that copy of the log; it is compared at the first step."""
        self.led = led
        self.scope = host.sender.begin(led.name)
        self.scope.happens(SendEvent.REPORTED)
        self.prefix = SentPrefix(copy.log.first_offset)
        self.state = MirrorState.JOINING
        # Who is waited for counts as having everything: what it lacks it is sent, whatever the policy says of new ones.
        self.syncs = led.automatic or host.node in led.expected
        self._host = host
        self._number = 0
        self._counts = False
        self._paced_until = 0
        self._progress = SynchronisingProgress()
        self._reported, self._reported_prefix = copy.log, copy.head
        self._compare()

    def _compare(self) -> None:
        """Begin to compare what the mirror told with what is here now."""
        host, name = self._host, self.led.name
        extent = [self._reported] if self._reported.last or self._reported.next_offset else []
        self.prefix.first = self._reported.first_offset
        self._plan = self._lacks({})
        self._verdict = SendEvent.COMPARED
        has_what_was_lost = self.led.has_what_was_lost(self._reported)
        if has_what_was_lost:
            # It keeps that, and tells anew what else it has: nothing of it is dropped as if it were settled.
            extent = []
            self.quarantine(name)
        self._reconciliation = Reconciliation(
            host.tree,
            self,
            extent,
            set(),
            is_clean=bool(extent) and self.led.is_late(self._reported, self.log),
            unreadable=lambda name, error: host.unreadable(self, error),
            ask=host.ask,
            paths=lambda: [name] if name in host.tree.logs and not has_what_was_lost else [],
        )

    def _lacks(self, sent: dict[str, int]) -> CatchUpPlan:
        host = self._host
        return CatchUpPlan(
            host.tree, sent, set(), lambda name, error: host.unreadable(self, error), host.numbers
        )

    @property
    def node(self) -> str:
        """The mirror's."""
        return self._host.node

    @property
    def log(self) -> Log | None:
        """The log, if anything was ever put into it."""
        return self._host.tree.logs.get(self.led.name)

    # -- what was decided: reconciliation.Notes -----------------------------------------------

    def go_on(self, name: str, offset: int) -> None:
        """See reconciliation.Notes."""
        if self._verdict is not SendEvent.DIVERGED:
            self._plan.go_on(name, offset)

    def begin(self, name: str, offset: int) -> None:
        """See reconciliation.Notes; where it begins is decided here."""
        log = self.log
        if (
            self._puts_off(wipes=bool(self._reported.last))
            or self._verdict is not SendEvent.COMPARED
            or log is None
        ):
            return
        is_short = self.syncs and log.bytes_from(offset) <= self._final_bytes
        if log.next_offset and not (is_short and log.size_bytes):
            offset = self._present_end(name, log)
        self.prefix.first = offset
        self._plan.begin(name, offset)

    def _present_end(self, name: str, log: Log) -> int:
        """Where a mirror begins that lacks what is before: on a segment of its own, so that this is whole segments.

        That begins with a chunk. Where all is settled nothing else may come for long, and a copy that is counted on
        without a chunk in it would not know what it has: it could not be told from one that is lost, and what others
        have of the log would look divergent to it.
        """
        try:
            return self._host.begin_segment(name)
        except StorageError as error:
            logger.warning("mirror_sent_all log=%s node=%s error=%s", name, self.node, error)
            return log.first_offset

    def cut(self, name: str, offset: int) -> None:
        """See reconciliation.Notes. The mirror quarantines that, and tells anew what it has then."""
        wipes = offset <= self._reported.first_offset
        if not self._puts_off(wipes=wipes) and self._verdict is SendEvent.COMPARED:
            self._verdict = SendEvent.DIVERGED
            self._plan.cut(name, offset)

    def _puts_off(self, *, wipes: bool) -> bool:
        """Whether what leaves the mirror with nothing has to wait: it is counted on to have everything.

        It may have to lead at any moment, as long as it is recorded. Nobody is taken out of what promises wait for
        before the record says so: so who is not waited for is not recorded.
        """
        if wipes and self.node in self.led.expected:
            self._verdict = SendEvent.POSTPONED
        return self._verdict is SendEvent.POSTPONED

    def expected_changed(self) -> None:
        """Promises wait for others than before."""
        if self.scope.phase is SendPhase.PUT_OFF and self.node not in self.led.expected:
            self._host.wake(self)

    def drop(self, name: str, first_offset: int) -> None:
        """See reconciliation.Notes."""
        self.prefix.first = max(self.prefix.first, first_offset)
        self._plan.drop(name, first_offset)

    def delete(self, name: str) -> None:
        """See reconciliation.Notes; only of an empty one."""
        self._plan.delete(name)

    def quarantine(self, name: str) -> None:
        """See reconciliation.Notes."""
        self._verdict = SendEvent.DIVERGED
        self._plan.quarantine(name)

    def spare(self, name: str) -> None:
        """See reconciliation.Notes: `unreadable` has ended it."""

    # -- steps --------------------------------------------------------------------------------

    def probed(self, found: wire.Headers) -> None:
        """The mirror's answer. Raises PeerError."""
        if self.scope.phase is not SendPhase.COMPARING:
            raise LinkError(f"headers of log {self.led.name} came that were not asked for")
        self._reconciliation.probed(found)
        self._host.wake(self)

    def wait_ms(self, now_ms: int) -> int:
        """How long its next step has to wait."""
        if self.scope.is_live or (self.scope.phase is SendPhase.CATCHING_UP and self._is_paced):
            return self.led.wait_ms(self._host.limit_bytes_s, now_ms)
        return 0

    @property
    def _is_paced(self) -> bool:
        """Whether what is sent next was there when it began; what was published since comes on top."""
        return self._plan.sent.get(self.led.name, 0) < self._paced_until

    async def step(self, now_ms: Callable[[], int]) -> bool:
        """Do some of what is to be done; whether there is more.

        Raises:
            LeveretError: the mirror told what cannot be.
        """
        match self.scope.phase:
            case SendPhase.PUT_OFF:
                if self.node in self.led.expected:
                    return False
                self.scope.happens(SendEvent.RELEASED)
                self._compare()
                return True
            case SendPhase.COMPARING:
                await self._reconciliation.run(lambda: self.is_ended)
                if self.is_ended or not self._reconciliation.is_over:
                    return False
                self._decided()
                return not self.is_ended
            case SendPhase.QUARANTINING:
                self._host.send(self._plan.step(STEP_BYTES))
                return False
        try:
            more = self._send_prefix(now_ms) if self.scope.is_live else self._catch_up(now_ms)
        except StorageError as error:
            self._host.unreadable(self, error)
            return False
        return more and not self.is_ended

    def _decided(self) -> None:
        """It is known what the mirror lacks."""
        self.scope.happens(self._verdict)
        if self._verdict is SendEvent.POSTPONED:
            # Whoever is told of this takes it out of the record.
            self._report(MirrorState.UNSYNCHRONISED)
            return
        log = self.log
        if self._verdict is SendEvent.DIVERGED or log is None:
            return
        self._plan.noted(self.led.name)
        self._paced_until = log.next_offset
        total = self._progress.total_bytes = self._plan.bytes_left()
        if total:
            reported = "mirror_lacks log=%s node=%s bytes=%d of_bytes=%d"
            logger.info(reported, self.led.name, self.node, total, log.bytes_from(log.first_offset))
        self.prefix.begins(self.prefix.first)
        self._resume_prefix(log)
        if total > FINAL_BYTES:
            self._report(MirrorState.SYNCHRONISING)

    def _resume_prefix(self, log: Log) -> None:
        """Go on in the middle of a segment, if what the mirror has of it is what is here."""
        reported, top = self._reported_prefix, self.prefix.top
        if reported is None or not reported.last or reported.first_offset != log.segment_before(top):
            return
        last = decode_header(reported.last)
        if reported.first_offset <= last.chunk_id < last.next_offset == reported.next_offset < top:
            for _, octets in log.headers_before(last.chunk_id + 1, 1):
                if octets == reported.last:
                    self.prefix.part = (reported.first_offset, reported.next_offset)

    @property
    def _final_bytes(self) -> int:
        """As much is sent in one turn: of what is paced no more than what may be sent in a second."""
        return min(FINAL_BYTES, self._host.limit_bytes_s or FINAL_BYTES)

    def _catch_up(self, now_ms: Callable[[], int]) -> bool:
        plan, host = self._plan, self._host
        final_bytes = self._final_bytes if self._is_paced else FINAL_BYTES
        if host.is_congested:
            # Whoever steps waits for the socket then.
            return True
        if plan.bytes_left(exactly=True) <= final_bytes:
            # What was appended and not cut is on disk, and sent from there: no later frame may have it too.
            host.cut_all()
            while not plan.is_nothing and not self.is_ended:
                self._send_step(now_ms)
            if not self.is_ended:
                self._go_live()
            return self.has_prefix_to_send
        self._send_step(now_ms)
        return True

    def _send_step(self, now_ms: Callable[[], int]) -> None:
        led, limit = self.led, self._host.limit_bytes_s
        is_paced = self._is_paced
        # What may be sent in a second is sent at once, at most.
        frame = self._plan.step(min(STEP_BYTES, limit) if limit else STEP_BYTES, led.batch_messages)
        self.scope.read(self._host.send(frame), self._plan.sent.get(led.name, 0))
        self._host.sender.waits(self.scope)
        if is_paced:
            led.paid(frame.octets, now_ms())

    def _go_live(self) -> None:
        """All of it was sent: from here on it is sent with each group commit."""
        log, led, frame = self.log, self.led, Frame()
        self._number = next(self._host.numbers)
        frame.add(name_change(self._number, led.name))
        # Also that nothing was handed out: who never heard of it has to take all as redelivered.
        frame.add(log_change(ChangeKind.CURSOR, self._number, led.cursor))
        self.scope.begins_live(self._host.send(frame), log.next_offset if log is not None else 0)
        self._host.sender.waits(self.scope)
        if self.has_prefix_to_send and self.lacks_prefix:
            self._progress.total_bytes = self._prefix_left()

    # -- the prefix ---------------------------------------------------------------------------

    @property
    def lacks_prefix(self) -> bool:
        """Whether there is something in front of what it has that is not settled."""
        log = self.log
        return log is not None and self.prefix.first > max(log.first_offset, self.led.floor)

    @property
    def has_prefix_to_send(self) -> bool:
        """Whether it is to be sent something of it now."""
        log = self.log
        return self.syncs and self.scope.is_live and log is not None and self.prefix.top > log.first_offset

    def synchronise(self, *, wanted: bool) -> None:
        """Send the prefix, or no more of it for now."""
        self.syncs = wanted
        if wanted and self.scope.is_live:
            self._progress = SynchronisingProgress(self._prefix_left())
            self._host.wake(self)
        self._report_if_joined()

    def floor_rose(self) -> None:
        """More of the log is settled, or dropped."""
        log = self.log
        if log is not None:
            self.prefix.dropped(log.first_offset)
        if self.state is not MirrorState.LIVE and not self.is_ended:
            self._report_if_joined()

    def _send_prefix(self, now_ms: Callable[[], int]) -> bool:
        log, prefix = self.log, self.prefix
        if log is None or not self.has_prefix_to_send or not self.lacks_prefix:
            return False
        part = prefix.next_part(log.first_offset, log.segment_before(prefix.top))
        if part is None:
            return False
        start, at = part
        limit, frame = self._host.limit_bytes_s, Frame()
        for segment, header, octets in log.read_segments(at, min(STEP_BYTES, limit) if limit else STEP_BYTES):
            if segment != start or header.chunk_id >= prefix.top or frame.records >= self.led.batch_messages:
                break
            frame.add(log_change(ChangeKind.HEAD, self._number, start), [octets], header.records)
            at = header.next_offset
        if prefix.sent(self._host.send(frame), at):
            self._host.sender.waits(self.scope)
        self.led.paid(frame.octets, now_ms())
        return self.has_prefix_to_send

    def _prefix_left(self) -> int:
        log, prefix = self.log, self.prefix
        if log is None or prefix.top <= log.first_offset:
            return 0
        left = log.bytes_from(log.first_offset) - log.bytes_from(prefix.top)
        if prefix.part is not None and prefix.part[1] > prefix.part[0] >= log.first_offset:
            left -= log.bytes_from(prefix.part[0]) - log.bytes_from(prefix.part[1])
        return max(0, left)

    # -- what happens in the tree -------------------------------------------------------------

    def appended(self, segment: int, chunk: list[Octets], records: int) -> None:
        """A chunk stands at the end of the log."""
        if self.scope.is_live:
            self._host.add(log_change(ChangeKind.APPEND, self._number, segment), chunk, records)
        elif self.scope.phase is SendPhase.CATCHING_UP:
            self._plan.noted(self.led.name)
            self._host.wake(self)

    def dropped(self, first_offset: int) -> None:
        """The log begins later."""
        if self.scope.is_live:
            self._host.add(log_change(ChangeKind.DROP, self._number, first_offset))
        else:
            self._plan.dropped(self.led.name, first_offset)
            self._host.wake(self)
        self.floor_rose()

    def cursor_rose(self) -> None:
        """More may have been handed to consumers."""
        if self.scope.is_live:
            self._host.add(log_change(ChangeKind.CURSOR, self._number, self.led.cursor))

    # -- what becomes of it -------------------------------------------------------------------

    def acked(self) -> None:
        """The mirror has acked frames that the scope or the prefix waited for."""
        self.prefix.acked(self.acked_cut, self._first_here)
        self._report_if_joined()
        if self.prefix.is_owed:
            self._host.sender.waits(self.scope)

    @property
    def acked_cut(self) -> int:
        """The last cut that the mirror has acked, of this log or of others."""
        return self._host.sender.acks.cut

    @property
    def first(self) -> int:
        """The offset at which what the mirror has on its disk begins."""
        return self.prefix.first

    @property
    def has(self) -> int:
        """The mirror has everything from `first` up to here on its disk."""
        if self.scope.phase is SendPhase.JOINED:
            return self.led.end_at(self.acked_cut)
        return self.scope.has_read

    @property
    def is_ended(self) -> bool:
        """Whether nothing of it is sent any more."""
        return self.scope.phase is SendPhase.ENDED

    @property
    def _first_here(self) -> int:
        log = self.log
        return log.first_offset if log is not None else 0

    def _report_if_joined(self) -> None:
        if self.scope.phase is not SendPhase.JOINED:
            return
        if not self.lacks_prefix:
            # For promises it counts only now: one that begins late does not have what was promised.
            if not self._counts:
                self._counts = True
                self._host.joined(self, self.scope.joins_at)
            self._report(MirrorState.LIVE)
        else:
            self._report(MirrorState.SYNCHRONISING if self.syncs else MirrorState.UNSYNCHRONISED)

    def _report(self, state: MirrorState) -> None:
        if state is not self.state:
            self.state = state
            self._host.reported(self, state)

    def fall_behind(self) -> None:
        """All that was cut is on its way; from here on it is read from disk again."""
        log = self.log
        end = log.next_offset if log is not None else 0
        self.scope.falls_behind(self.led.cut, has=self.has, end=end)
        self._host.sender.waits(self.scope)
        self._leave()
        self._plan = self._lacks({self.led.name: end})
        self._paced_until = 0
        self._report(MirrorState.GONE)
        self._report(MirrorState.SYNCHRONISING)
        self._host.wake(self)

    def _leave(self) -> None:
        if self._counts:
            self._counts = False
            self._host.left(self)

    def end(self, *, reports: bool = True) -> None:
        """Nothing of it is sent any more."""
        if self.state is not MirrorState.GONE:
            self._leave()
            if reports:
                self._report(MirrorState.GONE)
            self.state = MirrorState.GONE

    # -- how it is ----------------------------------------------------------------------------

    def row(self, owed_since_s: float | None, now_s: float) -> dict[str, Any]:
        """Node, state, how far it is behind, and how a synchronisation goes."""
        log = self.log
        end = log.next_offset if log is not None else 0
        left = self._prefix_left() if self.scope.is_live else self._plan.bytes_left()
        return {
            "node": self.node,
            "state": str(self.state),
            "first_offset": self.first,
            "acked_offset": self.has,
            "lag_records": end - self.has,
            "lag_bytes": log.bytes_from(self.has) if log is not None and self.has < end else 0,
            "lag_s": round(now_s - owed_since_s, 3) if owed_since_s is not None else 0.0,
            "progress": self._progress.row(left) if self.state is MirrorState.SYNCHRONISING else None,
        }
