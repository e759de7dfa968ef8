"""A leader's end of a mirror's link: whose acks count; without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.mirroring.source_link import SourceLink
from leveret.testing.network.waiting import until
from leveret.wire import link as wire
from leveret.wire.link import LogExtent, Type, pack
from tests.unit.runtime.mirroring.sites import NAMES, Node

NAME = NAMES[0]
MIRROR = "b"


class Peer:
    """A link to a mirror that takes everything."""

    address = "mirror"
    waiting_bytes = received_bytes = 0
    is_closed = False
    receiver: Any = None

    def write(self, *octets: Any) -> None:
        """Nobody looks."""

    async def drain(self) -> None:
        """Nothing waits."""

    def abort(self, error: Exception | None = None) -> None:
        self.is_closed = True

    close = abort


def says(link: SourceLink, kind: Type, what: Any) -> None:
    link.received(kind, memoryview(pack(kind, what))[5:])


def has_nothing(serial: int, name: str = NAME) -> wire.MirrorInventory:
    return wire.MirrorInventory([wire.Copy(serial, LogExtent(name, 0, 0, b""), None)])


def play(tmp_path: Path, story: Callable[[Node, Peer, SourceLink, list[int]], Any]) -> None:
    """Of a short log that a mirror was sent all of; it has acked nothing, and a promise waits for it."""

    async def played() -> None:
        node = Node(tmp_path / "leader")
        node.append(NAME, count=3)
        await node.commits.all_durable()
        node.lead(NAME, automatic=True)
        node.sources.wait_for(NAME, frozenset({MIRROR}))
        describe: list[int] = []
        node.promise(describe, NAME)
        node.commits.begin()
        peer = Peer()
        link = cast(SourceLink, node.sources.accept(cast(Any, peer), MIRROR))
        says(link, Type.COPIES, has_nothing(1))
        stream = link.streams[NAME]
        await until(lambda: stream.scope.is_live, "it was sent all")
        story(node, peer, link, describe)
        await node.stop()

    asyncio.run(played())


async def test_what_a_full_mirror_lacks_is_logged_once_until_it_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its logs is tried again every two seconds: 100 lines a second for 200 queues."""
    caplog.set_level("INFO")
    node = Node(tmp_path / "leader")
    for name in NAMES:
        node.append(name, count=3)
    await node.commits.all_durable()
    node.lead(*NAMES, automatic=True)
    link = cast(SourceLink, node.sources.accept(cast(Any, Peer()), MIRROR))

    async def attempt(serial: int) -> list[str]:
        caplog.clear()
        says(link, Type.COPIES, wire.MirrorInventory([has_nothing(serial, name).copies[0] for name in NAMES]))
        await until(lambda: all(each.scope.is_live for each in link.streams.values()), "all were sent")
        return [
            each.getMessage().partition(" ")[0] for each in caplog.records if "mirror_lacks" in each.message
        ]

    assert len(await attempt(1)) == len(NAMES)
    for serial in range(2, 5):
        for name in NAMES:
            says(link, Type.FAILED, wire.CopyFailed(name, "no space left"))
        assert len(await attempt(serial)) == (1 if serial == 2 else 0)
    says(link, Type.ACK, wire.Acked(link.sender.sent, 0))
    assert len(await attempt(5)) == len(NAMES), "they had it, and lack it anew"
    await node.stop()


def test_a_link_that_has_ended_names_no_log_any_more(tmp_path: Path) -> None:
    """Its listener keeps it until the next link comes (2026-12-01)."""

    def story(node: Node, peer: Peer, link: SourceLink, describe: list[int]) -> None:
        wanted = set(link.wanted)
        link.ended(None)
        assert (wanted, link.wanted) == ({NAME}, set())

    play(tmp_path, story)


def test_who_has_acked_everything_has_it(tmp_path: Path) -> None:
    def story(node: Node, peer: Peer, link: SourceLink, describe: list[int]) -> None:
        assert describe == []
        says(link, Type.ACK, wire.Acked(link.sender.sent, 0))
        assert describe == [0]
        assert node.state(NAME, MIRROR) is MirrorState.LIVE

    play(tmp_path, story)


def test_acks_of_what_was_sent_before_it_told_anew_do_not_count(tmp_path: Path) -> None:
    def story(node: Node, peer: Peer, link: SourceLink, describe: list[int]) -> None:
        before = link.sender.sent
        says(link, Type.COPIES, has_nothing(2))
        says(link, Type.ACK, wire.Acked(before, 0))
        assert describe == []
        assert not node.sources.has_all(NAME, MIRROR)
        assert node.state(NAME, MIRROR) is MirrorState.JOINING

    play(tmp_path, story)


def test_nor_does_what_it_had_acked_before_it_told_anew(tmp_path: Path) -> None:
    def story(node: Node, peer: Peer, link: SourceLink, describe: list[int]) -> None:
        says(link, Type.ACK, wire.Acked(link.sender.sent, 0))
        assert node.sources.has_all(NAME, MIRROR)
        says(link, Type.COPIES, has_nothing(2))
        assert not node.sources.has_all(NAME, MIRROR)

    play(tmp_path, story)


def test_of_a_link_that_has_a_follower_nothing_counts(tmp_path: Path) -> None:
    def story(node: Node, peer: Peer, link: SourceLink, describe: list[int]) -> None:
        node.sources.accept(cast(Any, Peer()), MIRROR)
        assert peer.is_closed
        assert node.state(NAME, MIRROR) is MirrorState.GONE
        says(link, Type.ACK, wire.Acked(link.sender.sent, 0))
        assert describe == []

    play(tmp_path, story)
