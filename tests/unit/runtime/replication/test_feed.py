"""The feed of changes: what a promise is bound to."""

from __future__ import annotations

from pathlib import Path

from leveret.core.replication.in_sync import InSync
from leveret.runtime.replication.feed import Feed
from leveret.storage.tree import Tree

NAME = "queues/0000000000000001"


def test_what_nobody_is_sent_waits_for_a_follower_that_is_gone_and_still_recorded(tmp_path: Path) -> None:
    """It may lead: until a smaller record is written it counts as having all that was promised."""
    tree = Tree(tmp_path, epoch=1)
    in_sync = InSync(ack_timeout_ms=1000, min_in_sync=0, records_shrink=True)
    feed = Feed(tree, in_sync, lambda: 0, waits=True, compress=False, elapsed_ms=lambda: 0)
    log = tree.log(tmp_path / NAME).open()
    in_sync.joined("f", feed.begin_live(), 0)
    in_sync.acked("f", feed.cut(), 0)
    in_sync.writing(frozenset({"f"}))
    in_sync.written(frozenset({"f"}))
    in_sync.left("f")
    assert feed.committed() == feed.cut()
    log.append(0, 1, 1, b"a message", 0)
    promised = feed.cut()
    assert feed.committed() < promised
    in_sync.writing(frozenset())
    assert feed.committed() < promised
    in_sync.written(frozenset())
    assert feed.committed() == promised
