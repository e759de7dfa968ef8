"""core.replication.mirror_events: what is logged when mirrors come, go, catch up or fall behind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from leveret.core.replication.cluster import Placement, PlacementChanged, StoredPlacement
from leveret.core.replication.mirror_events import MirrorEvents, events

KEY = ("/", "q")


def placed(mirrors: str = "", synchronised: str = "", stopped: str = "", **changes: Any) -> Placement:
    found = Placement(7, "a", "a1", 3, tuple(mirrors), tuple(synchronised), tuple(stopped))
    return msgspec.structs.replace(found, **changes)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, placed("bc", "bc"), ["Adding mirror on node b", "Adding mirror on node c"]),
        (placed("b", "b"), placed("bc", "b"), ["Adding mirror on node c"]),
        (placed("bc", "b"), placed("bc", "bc"), ["Mirror on node c is synchronised"]),
        (placed("bc", "bc"), placed("bc", "b"), ["Mirror on node c is not synchronised any more"]),
        (placed("bc", "bc"), placed("b", "b"), ["Dropping queue mirror on node c"]),
        (placed("bc", "bc"), placed("b", "b", "c"), ["Mirror on node c is gone"]),
        (placed("bc", "bc"), placed("bc", "bc", majority=True), []),
        # a mirror follows on, and the leader before mirrors
        (placed("ac", "c", leader="b"), placed("cb", "c"), ["Adding mirror on node b"]),
        # another queue of that name
        (placed("b", "b"), placed("b", "b", epoch=8), ["Adding mirror on node b"]),
    ],
)
def test_each_change_of_a_queues_mirrors_is_told(
    before: Placement | None, after: Placement, expected: list[str]
) -> None:
    assert events(before, after) == expected


def test_only_the_leader_tells_and_what_was_recorded_before_is_no_news() -> None:
    changed = PlacementChanged(KEY, placed("bc", "b"))
    follower, leader, started = MirrorEvents("b"), MirrorEvents("a"), MirrorEvents("a")
    started.begin({KEY: StoredPlacement(placed("bc"), 1)})
    assert follower.changed(changed) == []
    assert leader.changed(changed) == ["Adding mirror on node b", "Adding mirror on node c"]
    assert started.changed(changed) == ["Mirror on node b is synchronised"]
    assert started.changed(PlacementChanged(KEY, None)) == []
    assert started.changed(changed) == ["Adding mirror on node b", "Adding mirror on node c"]
