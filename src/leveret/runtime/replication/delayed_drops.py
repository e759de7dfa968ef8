"""The segments that a delayed follower's leader has dropped, and that stay here until the delay has passed.

A drop waits from its frame until the window of the delay begins behind that frame; then it is due. Two things end or
change a waiting drop:

    a log is deleted or truncated          its files of before are kept whole: an earlier drop does not apply to the
                                           present log, which may lack the records that settled the dropped ones
    the leader gets earlier segments again the drop ends where they begin, whether it still waits or is due

A frame may hold several changes of one log. They are taken in order, and then `entries` returns what the index of the
delay has to note of all of them together: at most one entry a log.
"""

from __future__ import annotations

from collections.abc import Container

from leveret.storage.delayed.index import KEPT, EntryKind, FrameGroup, IndexedFrame, IndexEntry
from leveret.wire.link import ChangeKind, LogChange


class DelayedDrops:
    """See the module.

    Attributes:
        due: the first offsets of logs whose drops are due.
    """

    def __init__(self) -> None:
        """Start without a drop."""
        self.due: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        """The first offsets of logs after all waiting drops."""
        self._kept_at: dict[str, int] = {}
        """The last frame in the window that deleted or truncated each log."""
        self._begins: dict[str, list[tuple[int, int]]] = {}
        """The frames with which the leader got earlier segments of a log again, and the segments' first offsets."""
        self._frame: dict[str, int] = {}
        """`_waiting` after the changes that were taken of the present frame, of the logs that these concern."""
        self._at_leader: dict[str, int] = {}
        """The last drops that the present leader sent: its logs begin there, also once it has truncated them."""

    def begin_window(self) -> None:
        """Forget the frames that were counted so far: the index begins anew."""
        for counted in (self._waiting, self._kept_at, self._begins):
            counted.clear()

    def joining(self) -> None:
        """Forget where the logs of the leader so far begin."""
        self._at_leader.clear()

    # -- frames that enter and leave the window -----------------------------------------------

    def noted(self, at: int, frame: IndexedFrame) -> None:
        """Take a frame at the end of the window."""
        for each in frame.noted:
            if each.kind in KEPT:
                self._kept_at[each.name] = at
                # No drop from before applies to the log, also if it is due and was not made yet.
                for drops in (self._waiting, self.due, self._begins):
                    drops.pop(each.name, None)
            elif each.kind is EntryKind.DROP:
                self._waiting[each.name] = max(each.offset, self._waiting.get(each.name, 0))
            elif each.kind is EntryKind.BEGINS:
                self._waiting[each.name] = min(each.offset, self._waiting.get(each.name, 0))
                self._begins.setdefault(each.name, []).append((at, each.offset))

    def expired(self, group: FrameGroup) -> None:
        """Take the frames that the window begins behind now: their drops are due."""
        for at, frame in group.frames:
            for each in frame.noted:
                kept_at = self._kept_at.get(each.name, -1)
                if each.kind is EntryKind.DROP and kept_at < at:
                    later = [begin for begun, begin in self._begins.get(each.name, ()) if begun > at]
                    offset = min([each.offset, *later])
                    self.due[each.name] = max(offset, self.due.get(each.name, 0))
                    if self._waiting.get(each.name, 0) <= offset:
                        self._waiting.pop(each.name, None)
                elif each.kind is EntryKind.BEGINS:
                    left = [begun for begun in self._begins.pop(each.name, ()) if begun[0] > at]
                    if left:
                        self._begins[each.name] = left
                elif each.kind in KEPT and kept_at <= at:
                    self._kept_at.pop(each.name, None)

    # -- changes of the leader ----------------------------------------------------------------

    def begin_frame(self) -> None:
        """Take the changes of another frame from now on."""
        self._frame.clear()

    def dropped(self, name: str, first_offset: int) -> None:
        """The leader has dropped the segments before an offset."""
        self._at_leader[name] = first_offset
        self._frame[name] = max(first_offset, self._waits(name))

    def begins_earlier(self, name: str, offset: int) -> None:
        """The leader has a segment that it had dropped, or lacked while it was synchronised itself.

        This node still has the segment if the drop waits. So the drop must not remove it once the delay has passed.
        """
        for drops in (self._at_leader, self.due):
            if name in drops:
                drops[name] = min(drops[name], offset)
        self._frame[name] = min(offset, self._waits(name))

    def destroyed(self, change: LogChange) -> None:
        """A log is deleted or truncated; the leader's last drop applies to the log as a truncation leaves it.

        Records that the truncation removed may have settled what an earlier leader dropped, so its drops are left out.
        """
        name, begin = change.name, self._at_leader.pop(change.name, None)
        if begin is None or change.kind is not ChangeKind.TRUNCATE or begin > change.offset:
            self._frame[name] = 0
        else:
            self._at_leader[name] = self._frame[name] = begin

    def joined(self) -> list[IndexEntry]:
        """Note the end of a join: the leader has dropped each log that begins later there; other drops end earlier."""
        self.begin_frame()
        for name in sorted({*self._waiting, *self.due}):
            self.begins_earlier(name, self._at_leader.get(name, 0))
        return self.entries(())

    def entries(self, kept: Container[str]) -> list[IndexEntry]:
        """Return what is to be noted of the frame; behind those that note the logs in `kept` as destroyed."""
        found = []
        for name, begin in self._frame.items():
            before = 0 if name in kept else self._waiting.get(name, 0)
            if begin != before:
                kind = EntryKind.DROP if begin > before else EntryKind.BEGINS
                found.append(IndexEntry(kind, name, begin))
        return found

    def _waits(self, name: str) -> int:
        return self._frame.get(name, self._waiting.get(name, 0))
