"""One log on its way to one mirror: reads it, and sends the records that core.replication.sender says are due.

Promises and records of etcd speak of states, which follow the phases of the scope:

    joining          the copy is compared with the log, or is all but complete
    synchronising    missing records are sent, from disk, beside live traffic
    unsynchronised   the mirror is sent each cut, and lacks the prefix: the records before the begin of its copy
    live             the mirror has everything, and is sent each cut
    gone             the scope has ended, or fell behind

The common part of copy and log is kept, and records behind it are sent in order. A mirror without a copy
begins at the log's *present end*, on a segment of its own: so it gets new records at once, however long the log is.
The prefix is sent afterwards, on request or by policy, the newest segment first, at the allowed pace. A sync that was
cancelled, or cut off, continues where it stopped. A short log is sent whole.

A state is reported only after the mirror's ack, so the records are on the mirror's disk. Promises count on the mirror
from the frame on with which it goes live, once it lacks no prefix.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from leveret.core.replication.join import Begin, Continue, DropBefore, QuarantineLog, Step, Truncate
from leveret.core.replication.sender import SendEvent, SendPhase, SentPrefix
from leveret.model.errors import StorageError
from leveret.runtime.mirroring.led_log import LedLog, MirrorState
from leveret.runtime.mirroring.source_link_base import SourceLinkBase
from leveret.runtime.replication.progress import SynchronisingProgress
from leveret.runtime.replication.sent_logs import SentLogs
from leveret.storage.log import Log
from leveret.wire import link as wire
from leveret.wire.chunk import decode_header
from leveret.wire.link import ChangeKind, Frame, Octets, log_change, name_change

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 256 * 1024
"""The octets read and sent in one turn of the loop, less than a millisecond of work; live records wait behind it."""
FINAL_BYTES: Final = 1024 * 1024
"""With less than this missing the rest is sent in one turn of the loop; a shorter log is sent whole."""


class SourceStream(SentLogs):
    """See the module.

    Attributes:
        led: the log.
        prefix: the progress of its prefix.
        state: the last reported state.
        syncs: whether the mirror is to be sent the prefix.
    """

    link: SourceLinkBase

    def __init__(self, link: SourceLinkBase, led: LedLog, copy: wire.Copy) -> None:
        """Serve a mirror with that copy of the log; the first step compares them."""
        self.led = led
        super().__init__(link, led.name, link.leader.tree, led.pace, link.numbers)
        self.scope.happens(SendEvent.REPORTED)
        self.prefix = SentPrefix(copy.log.first_offset)
        self.state = MirrorState.JOINING
        # A mirror that promises wait for counts as complete: it is sent missing records, whatever the policy says of
        # new mirrors.
        self.syncs = led.automatic or self.is_expected
        self._number = 0
        self._counts = False
        self._paced_until = 0
        self._reported, self._reported_prefix = copy.log, copy.head
        self._compare_copy()

    @property
    def node(self) -> str:
        """The mirror's node."""
        return self.link.node

    @property
    def is_expected(self) -> bool:
        """Whether promises wait for the mirror."""
        return self.link.leader.replicas(self.led.name).waits_for(self.node)

    @property
    def log(self) -> Log | None:
        """The log; None if it never had a record."""
        return self.tree.logs.get(self.led.name)

    def paths(self) -> Iterable[str]:
        """See SentLogs."""
        return [self.led.name] if self.log is not None else []

    def spared(self) -> set[str]:
        """See SentLogs."""
        return set()

    def unreadable(self, name: str, error: StorageError) -> None:
        """See SentLogs: the log cannot be mirrored."""
        self.link.unreadable(name, error)

    # -- the comparison -----------------------------------------------------------------------

    def _compare_copy(self) -> None:
        """Begin to compare the mirror's report with the log."""
        reported = self._reported
        self.prefix.first = reported.first_offset
        if self.led.has_what_was_lost(reported):
            # The mirror quarantines these messages, and reports the rest anew: none of them may be dropped as settled.
            self.compare([], is_clean=False)
            self._take([QuarantineLog(self.led.name)])
            return
        extents = [reported] if reported.last or reported.next_offset else []
        self.compare(extents, is_clean=False)

    def revised(self, step: Step) -> Step | None:
        """See SentLogs: the mirror reports anew after records of its copy were quarantined."""
        match step:
            case Continue() if self.verdict is SendEvent.DIVERGED:
                return None
            case Begin(name, offset):
                return self._begin(name, offset)
            case Truncate(_, offset):
                wipes = offset <= self._reported.first_offset
                if self._puts_off(wipes=wipes) or self.verdict is not SendEvent.COMPARED:
                    return None
                self.verdict = SendEvent.DIVERGED
            case DropBefore(_, offset):
                self.prefix.first = max(self.prefix.first, offset)
            case QuarantineLog():
                self.verdict = SendEvent.DIVERGED
        return step

    def _begin(self, name: str, offset: int) -> Begin | None:
        log = self.log
        if self.verdict is not SendEvent.COMPARED or log is None:
            return None
        if self._puts_off(wipes=bool(self._reported.last)):
            return None
        is_short = self.syncs and log.bytes_from(offset) <= self._final_bytes
        if log.next_offset and not (is_short and log.size_bytes):
            offset = self._present_end(name, log)
        self.prefix.first = offset
        return Begin(name, offset)

    def _present_end(self, name: str, log: Log) -> int:
        """Begin a segment for a mirror that lacks the records before it, so that the prefix is whole segments.

        The segment begins with a chunk. If everything is settled, no other chunk may come for long; and a mirror that
        is counted on, without a chunk, could not say which records it has: it would look like one that lost them, and
        the other nodes' records of the log would look divergent to it.
        """
        try:
            return self.link.leader.logs.begin_segment(name)
        except StorageError as error:
            logger.warning("mirror_sent_all log=%s node=%s error=%s", name, self.node, error)
            return log.first_offset

    def _puts_off(self, *, wipes: bool) -> bool:
        """Whether a step that would leave the mirror without a copy must wait, because its copy is counted on.

        The mirror may have to lead at any moment, as long as it is recorded. Promises stop waiting for a mirror only
        after the record dropped it: so a mirror that no promise waits for is not recorded.
        """
        if wipes and self.is_expected:
            self.verdict = SendEvent.POSTPONED
        return self.verdict is SendEvent.POSTPONED

    def expected_changed(self) -> None:
        """Continue a step that was put off, if promises do not wait for this mirror any more."""
        if self.scope.phase is SendPhase.PUT_OFF and not self.is_expected:
            self.link.wake(self)

    # -- steps --------------------------------------------------------------------------------

    async def step(self, now_ms: Callable[[], int]) -> bool:
        """See SentLogs; a live mirror is sent the prefix."""
        try:
            if self.scope.phase is SendPhase.PUT_OFF:
                if self.is_expected:
                    return False
                self.scope.happens(SendEvent.RELEASED)
                self._compare_copy()
                return True
            return self._send_prefix(now_ms) if self.scope.is_live else await super().step(now_ms)
        except StorageError as error:
            self.unreadable(self.led.name, error)
            return False

    def compared(self) -> None:
        """See SentLogs."""
        super().compared()
        log = self.log
        if self.verdict is SendEvent.POSTPONED:
            # The receiver of this report removes the mirror from the record.
            self._report(MirrorState.UNSYNCHRONISED)
        elif self.verdict is SendEvent.COMPARED and log is not None:
            self._paced_until = log.next_offset
            self.prefix.begins(self.prefix.first)
            self._resume_prefix(log)

    def noted(self) -> None:
        """See SentLogs."""
        super().noted()
        log, total = self.log, self.progress.total_bytes
        if log is not None and total:
            self.link.lacks(self.led.name, total, log.bytes_from(log.first_offset))
        if total > FINAL_BYTES:
            self._report(MirrorState.SYNCHRONISING)

    def _resume_prefix(self, log: Log) -> None:
        """Continue in the middle of a segment, if the mirror's part of it equals this log's."""
        reported, top = self._reported_prefix, self.prefix.top
        if reported is None or not reported.last or reported.first_offset != log.segment_before(top):
            return
        last = decode_header(reported.last)
        if reported.first_offset <= last.chunk_id < last.next_offset == reported.next_offset < top:
            for _, octets in log.headers_before(last.chunk_id + 1, 1):
                if octets == reported.last:
                    self.prefix.part = (reported.first_offset, reported.next_offset)

    @property
    def step_bytes(self) -> int:
        """See SentLogs."""
        return STEP_BYTES

    @property
    def limit_bytes_s(self) -> int:
        """See SentLogs; the limit is for one log."""
        return self.link.leader.sync_bytes_s_max

    @property
    def batch_records(self) -> int:
        """See SentLogs."""
        return self.led.batch_messages

    @property
    def is_paced(self) -> bool:
        """See SentLogs: records that existed at the begin are paced; later ones come on top."""
        if self.scope.phase is SendPhase.CATCHING_UP:
            return self.plan.sent.get(self.led.name, 0) < self._paced_until
        return self.scope.is_live

    @property
    def _final_bytes(self) -> int:
        """The octets sent in one turn: of paced records no more than may be sent in a second."""
        return min(FINAL_BYTES, self.limit_bytes_s or FINAL_BYTES)

    def is_little(self) -> bool:
        """See SentLogs."""
        return self.plan.bytes_left(exactly=True) <= (self._final_bytes if self.is_paced else FINAL_BYTES)

    def cut(self) -> None:
        """See SentLogs."""
        self.link.leader.cut()

    def send(self, frame: Frame) -> None:
        """See SentLogs."""
        self.scope.read(self.link.send(frame), self.plan.sent.get(self.led.name, 0))
        self.link.sender.waits(self.scope)

    def go_live(self) -> None:
        """See SentLogs."""
        log, led, frame = self.log, self.led, Frame()
        self._number = next(self.link.numbers)
        frame.add(name_change(self._number, led.name))
        # Sent even if nothing was delivered: a mirror without a cursor must mark all messages as redelivered.
        frame.add(log_change(ChangeKind.CURSOR, self._number, led.cursor))
        self.scope.begins_live(self.link.send(frame), log.next_offset if log is not None else 0)
        self.link.sender.waits(self.scope)
        if self.has_prefix_to_send and self.lacks_prefix:
            self.progress.total_bytes = self._prefix_left()

    # -- the prefix ---------------------------------------------------------------------------

    @property
    def lacks_prefix(self) -> bool:
        """Whether unsettled records precede the mirror's copy."""
        log = self.log
        return log is not None and self.prefix.first > max(log.first_offset, self.led.floor)

    @property
    def has_prefix_to_send(self) -> bool:
        """Whether the mirror is to be sent a part of the prefix now."""
        log = self.log
        return self.syncs and self.scope.is_live and log is not None and self.prefix.top > log.first_offset

    def synchronise(self, *, wanted: bool) -> None:
        """Send the prefix, or stop sending it for now."""
        self.syncs = wanted
        if wanted and self.scope.is_live:
            self.progress = SynchronisingProgress(self._prefix_left())
            self.link.wake(self)
        self._report_if_joined()

    def floor_rose(self) -> None:
        """Note that more of the log is settled, or dropped."""
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
        limit, frame = self.limit_bytes_s, Frame()
        for segment, header, octets in log.read_segments(at, min(STEP_BYTES, limit) if limit else STEP_BYTES):
            if segment != start or header.chunk_id >= prefix.top or frame.records >= self.led.batch_messages:
                break
            frame.add(log_change(ChangeKind.HEAD, self._number, start), [octets], header.records)
            at = header.next_offset
        if prefix.sent(self.link.send(frame), at):
            self.link.sender.waits(self.scope)
        self.pace.sent(frame.octets, now_ms())
        return self.has_prefix_to_send

    def _prefix_left(self) -> int:
        log, prefix = self.log, self.prefix
        if log is None or prefix.top <= log.first_offset:
            return 0
        left = log.bytes_from(log.first_offset) - log.bytes_from(prefix.top)
        if prefix.part is not None and prefix.part[1] > prefix.part[0] >= log.first_offset:
            left -= log.bytes_from(prefix.part[0]) - log.bytes_from(prefix.part[1])
        return max(0, left)

    # -- changes in the tree ------------------------------------------------------------------

    def appended(self, segment: int, chunk: list[Octets], records: int) -> None:
        """Send, or plan to send, a chunk that was appended to the log."""
        if self.scope.is_live:
            self.link.add(log_change(ChangeKind.APPEND, self._number, segment), chunk, records)
        elif self.scope.phase is SendPhase.CATCHING_UP:
            self.plan.noted(self.led.name)

    def dropped(self, first_offset: int) -> None:
        """Note that records before this offset were dropped."""
        if self.scope.is_live:
            self.link.add(log_change(ChangeKind.DROP, self._number, first_offset))
        else:
            self.plan.dropped(self.led.name, first_offset)
        self.floor_rose()

    def cursor_rose(self) -> None:
        """Send the cursor: more messages may have been handed to consumers."""
        if self.scope.is_live:
            self.link.add(log_change(ChangeKind.CURSOR, self._number, self.led.cursor))

    # -- acks, and the end --------------------------------------------------------------------

    def acked(self) -> None:
        """The mirror has acked frames that the scope or the prefix waited for."""
        self.prefix.acked(self.acked_cut, self._first_here)
        self._report_if_joined()
        if self.prefix.is_owed:
            self.link.sender.waits(self.scope)

    @property
    def acked_cut(self) -> int:
        """The last cut that the mirror has acked, of this log or others."""
        return self.link.sender.acks.cut

    @property
    def first(self) -> int:
        """The first offset of the records on the mirror's disk."""
        return self.prefix.first

    @property
    def has(self) -> int:
        """The offset up to which the mirror has all records from `first` on its disk."""
        if self.scope.phase is SendPhase.JOINED:
            return self.led.end_at(self.acked_cut)
        return self.scope.has_read

    @property
    def _first_here(self) -> int:
        log = self.log
        return log.first_offset if log is not None else 0

    def _report_if_joined(self) -> None:
        if self.scope.phase is not SendPhase.JOINED:
            return
        if not self.lacks_prefix:
            # For promises it counts only now: a mirror without the prefix lacks promised messages.
            if not self._counts:
                self._counts = True
                self.link.leader.replicas(self.led.name).joined(
                    self.node, self.link.sender.acks, self.scope.joins_at
                )
                self.link.leader.acked(self.node)
            self.link.failing.discard(self.led.name)
            self._report(MirrorState.LIVE)
        else:
            self._report(MirrorState.SYNCHRONISING if self.syncs else MirrorState.UNSYNCHRONISED)

    def _report(self, state: MirrorState) -> None:
        if state is not self.state:
            self.state = state
            self.link.leader.reported(self.led.name, self.node, state)

    def fall_behind(self) -> None:
        """Read from disk again; the records of all cuts so far are on their way."""
        log = self.log
        self.goes_back(self.led.cut, has=self.has, end=log.next_offset if log is not None else 0)
        self._leave()
        self._paced_until = 0
        self._report(MirrorState.GONE)
        self._report(MirrorState.SYNCHRONISING)

    def _leave(self) -> None:
        if self._counts:
            self._counts = False
            self.link.leader.replicas(self.led.name).left(self.node)

    def end(self, *, reports: bool = True) -> None:
        """Send the log no longer."""
        if self.state is not MirrorState.GONE:
            self._leave()
            if reports:
                self._report(MirrorState.GONE)
            self.state = MirrorState.GONE

    # -- state --------------------------------------------------------------------------------

    def row(self, owed_since_s: float | None, now_s: float) -> dict[str, Any]:
        """Return node, state, lag, and the progress of a synchronisation."""
        log = self.log
        end = log.next_offset if log is not None else 0
        left = self._prefix_left() if self.scope.is_live else self.plan.bytes_left()
        return {
            "node": self.node,
            "state": str(self.state),
            "first_offset": self.first,
            "acked_offset": self.has,
            "lag_records": end - self.has,
            "lag_bytes": log.bytes_from(self.has) if log is not None and self.has < end else 0,
            "lag_s": round(now_s - owed_since_s, 3) if owed_since_s is not None else 0.0,
            "progress": self.progress.row(left) if self.state is MirrorState.SYNCHRONISING else None,
        }
