"""Several changes of one log in one frame count together for the segments that wait to be dropped."""

from __future__ import annotations

import pytest

from leveret.runtime.replication.delayed_drops import DelayedDrops
from leveret.storage.delayed.index import EntryKind, FrameGroup, FramePart, IndexedFrame, IndexEntry
from leveret.wire.link import ChangeKind, LogChange

LOG = "queues/0000000000000001"
ANEW = LogChange(ChangeKind.BEGIN, LOG, 0)


def cut(at: int) -> LogChange:
    return LogChange(ChangeKind.TRUNCATE, LOG, at)


class Window:
    """The frames of a leader, each of which holds changes of one log."""

    def __init__(self) -> None:
        self.drops = DelayedDrops()
        self.frames: list[IndexedFrame] = []

    def frame(self, *changes: LogChange | tuple[str, int]) -> list[IndexEntry]:
        """Take a frame: the log is destroyed by a change, or `drop`ped or `begins` at an offset; what is noted."""
        self.drops.begin_frame()
        lines = list[IndexEntry]()
        for change in changes:
            if isinstance(change, LogChange):
                kind = EntryKind.TRUNCATED if change.kind is ChangeKind.TRUNCATE else EntryKind.DELETED
                lines = [*lines, IndexEntry(kind, LOG, change.offset)][:1]
                self.drops.destroyed(change)
            elif change[0] == "drop":
                self.drops.dropped(LOG, change[1])
            else:
                self.drops.begins_earlier(LOG, change[1])
        noted = self.drops.entries([LOG] if lines else [])
        self._add([*lines, *noted])
        return noted

    def join(self, *changes: LogChange | tuple[str, int]) -> None:
        self.drops.joining()
        self.frame(*changes)
        self._add(self.drops.joined())

    def _add(self, lines: list[IndexEntry]) -> None:
        frame = IndexedFrame(FramePart.WHOLE, lines)
        self.drops.noted(len(self.frames), frame)
        self.frames.append(frame)

    def due(self) -> dict[str, int]:
        """What is to be dropped once the delay has passed for all frames."""
        for at, frame in enumerate(self.frames):
            self.drops.expired(FrameGroup(0, 0, at, at + 1, [(at, frame)]))
        return self.drops.due


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ([("drop", 60)], 60),
        ([("begins", 30)], 30),
        ([("begins", 30), ("drop", 50)], 50),
        ([("begins", 30), ("drop", 60)], 60),
        ([("drop", 60), ("begins", 40)], 40),
        ([cut(70)], 50),
        ([cut(70), ("drop", 60)], 60),
        ([("drop", 60), cut(70)], 60),
        ([cut(70), ("drop", 60), cut(65)], 60),
        ([ANEW], 0),
        ([ANEW, ("drop", 20)], 20),
        ([("drop", 60), ANEW], 0),
        ([ANEW, ("drop", 60), ANEW], 0),
        ([cut(70), ("drop", 60), ANEW], 0),
    ],
)
def test_the_last_changes_of_a_frame_decide_what_is_dropped_in_the_end(
    changes: list[LogChange | tuple[str, int]], due: int
) -> None:
    window = Window()
    window.frame(("drop", 50))
    assert len(window.frame(*changes)) <= 1
    assert window.due().get(LOG, 0) == due


def test_a_drop_that_is_due_does_not_apply_to_the_log_that_is_begun_anew_before_it_is_made() -> None:
    """While a join takes longer than the delay, nothing is dropped, and both frames leave the window."""
    window = Window()
    window.frame(("drop", 50))
    assert window.due() == {LOG: 50}
    window.frame(ANEW)
    assert window.due() == {}


def test_what_the_leader_does_not_say_again_at_a_join_is_not_dropped() -> None:
    window = Window()
    window.frame(("drop", 50))
    window.join(("drop", 50))
    assert window.due() == {LOG: 50}
    other = Window()
    other.frame(("drop", 50))
    other.join()
    assert other.due() == {LOG: 0}
