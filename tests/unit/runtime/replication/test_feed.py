"""The feed of changes: what a promise is bound to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from leveret.core.replication.in_sync import InSync
from leveret.runtime.replication.feed import Feed
from leveret.storage.log import Log
from leveret.storage.open_segments import OutOfDescriptors
from leveret.storage.tree import Tree
from leveret.wire import link
from leveret.wire.link import LinkError, Octets

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


class Follower:
    """A live follower: the frames and the error that it was given."""

    is_live = True
    waiting_bytes = 0

    def __init__(self) -> None:
        self.frames: list[int] = []
        self.error: Exception | None = None

    def send_frame(self, position: int, pieces: list[Octets], octets: int) -> None:
        self.frames.append(octets)

    def lose(self, error: Exception) -> None:
        self.error = error


def test_a_flush_that_no_frame_holds_ends_the_links_and_not_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The followers join again, and get it from disk."""
    monkeypatch.setattr(link, "FRAME_BYTES_MAX", 500)
    tree = Tree(tmp_path, epoch=1)
    feed = Feed(tree, InSync(ack_timeout_ms=1000, min_in_sync=0), lambda: 0, waits=True, compress=False)
    follower = Follower()
    feed.followers.append(cast(Any, follower))
    feed.count_live()
    log = tree.log(tmp_path / NAME).open()
    log.append(0, 1, 1, b"m" * 100, 0)
    before = feed.cut()
    assert (len(follower.frames), follower.error) == (1, None)
    log.append(0, 1, 1, b"m" * 600, 0)
    assert feed.cut() > before
    assert len(follower.frames) == 1
    assert isinstance(follower.error, LinkError)


def test_segments_that_come_in_front_again_are_sent_though_earlier_ones_wait(tmp_path: Path) -> None:
    """A slow follower is sent none. Meanwhile the node drops more, as its leader says, and gets it from another one."""
    tree = Tree(tmp_path, epoch=1)
    feed = Feed(tree, InSync(ack_timeout_ms=1000, min_in_sync=0), lambda: 0, waits=True, compress=False)
    follower = Follower()
    feed.followers.append(cast(Any, follower))
    feed.count_live()
    log = tree.log(tmp_path / NAME, segment_bytes_max=100).open()
    for _ in range(3):
        log.append(0, 1, 1, b"m" * 100, 0)
    feed.cut()
    feed.prepended(NAME, 1)
    feed.dropped(NAME, 2)
    feed.prepended(NAME, 2)
    assert feed.prefixes[NAME].top == 2


def test_a_prefix_that_no_descriptor_is_left_to_read_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path, epoch=1)
    feed = Feed(tree, InSync(ack_timeout_ms=1000, min_in_sync=0), lambda: 0, waits=True, compress=False)
    feed.followers.append(cast(Any, Follower()))
    feed.count_live()
    log = tree.log(tmp_path / NAME, segment_bytes_max=100).open()
    for _ in range(3):
        log.append(0, 1, 1, b"m" * 100, 0)
    feed.cut()
    feed.prepended(NAME, 2)

    def scarce(*args: object) -> None:
        raise OutOfDescriptors("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Log, "read_segments", scarce)
        feed.read_prefixes()
    assert feed.prefixes[NAME].top == 2
    feed.read_prefixes()
    assert feed.prefixes[NAME].top < 2
