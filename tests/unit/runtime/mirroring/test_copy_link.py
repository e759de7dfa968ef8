"""A mirror's end of its link: what it takes, and when it says what it has; without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from isal.isal_zlib import crc32

from leveret.runtime.mirroring import copy_link
from leveret.runtime.mirroring.copy_link import CopyLink
from leveret.runtime.mirroring.mirror_copy import MirrorCopy
from leveret.testing.network.waiting import until
from leveret.wire import link as wire
from leveret.wire.chunk import ChunkType, encode_entry, encode_header
from leveret.wire.link import ChangeKind, Frame, LogExtent, Type, log_change, name_change, pack

NAME = "queues/0000000000000001"


class Peer:
    """A link to a leader, and what was said on it."""

    is_closed = False
    address = "leader"
    received_bytes = 0

    def __init__(self) -> None:
        self.said: list[Type] = []
        self.receiver: Any = None

    def write(self, *octets: Any) -> None:
        self.said.append(Type(octets[0][4]))

    def close(self, error: Exception | None = None) -> None:
        self.is_closed = True

    abort = close


class Shared:
    """copy_link.LinkedCopies: what is told counts up; what is changed is noted."""

    def __init__(self, peer: Peer) -> None:
        self.changed: list[ChangeKind] = []
        self.durable: list[Callable[[], None]] = []
        commits = SimpleNamespace(
            when_durable=self.durable.append, begin=lambda: None, unsynced_logs=0, unsynced_logs_max=9
        )
        self.commits = cast(Any, commits)
        self._peer = peer

    async def dial(self, node: str, kind: str) -> Any:
        return self._peer

    def change(self, copy: Any, change: wire.LogChange) -> None:
        self.changed.append(change.kind)

    def drop_due(self) -> None:
        """Nothing waits."""

    def describe(self, copy: Any) -> wire.Copy:
        copy.reported(copy.serial + 1)
        return wire.Copy(copy.serial, LogExtent(NAME, 0, 0, b""), None)

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        return []

    def idle(self, link: CopyLink) -> None:
        """It ends."""


DROPPED = (log_change(ChangeKind.DROP, 1, 0),)
ENTRY = encode_entry(b"small")
CHUNK = encode_header(ChunkType.USER, 1, 1, 1, 9, 0, crc32(ENTRY), len(ENTRY)) + ENTRY
APPENDED = (log_change(ChangeKind.APPEND, 1, 0), [CHUNK], 1)


def frame(position: int, change: tuple[Any, ...] = DROPPED) -> memoryview:
    made = Frame()
    made.add(name_change(1, NAME))
    made.add(*change)
    return memoryview(b"".join(bytes(each) for each in made.message(position, 0, 0)))[5:]


def told_apart(said: Any, kind: Type) -> memoryview:
    return memoryview(pack(kind, said))[5:]


def copy_for(shared: Shared) -> MirrorCopy:
    tree = cast(Any, SimpleNamespace(root=Path("data"), logs={}))
    return MirrorCopy(NAME, "leader", tree, shared.commits, lambda copy, error: None)


async def linked() -> tuple[CopyLink, Peer, Shared, Any]:
    peer = Peer()
    shared = Shared(peer)
    copy = copy_for(shared)
    link = CopyLink(cast(Any, shared), "leader")
    link.add(copy)
    for _ in range(5):
        await asyncio.sleep(0)
    assert peer.said == [Type.COPIES]
    return link, peer, shared, copy


async def test_only_the_answer_to_what_was_told_last_is_taken_and_acked_once_it_is_on_disk() -> None:
    link, peer, shared, _ = await linked()
    link.received(Type.FRAME, frame(1))
    assert shared.changed == []
    link.report(NAME)
    link.received(Type.MIRRORING, told_apart(wire.Mirroring(NAME, 1, 9), Type.MIRRORING))
    link.received(Type.FRAME, frame(2))
    assert shared.changed == []
    link.received(Type.MIRRORING, told_apart(wire.Mirroring(NAME, 2, 9), Type.MIRRORING))
    link.received(Type.FRAME, frame(3))
    assert shared.changed == [ChangeKind.DROP]
    assert Type.ACK not in peer.said
    for each in shared.durable:
        each()
    assert peer.said.count(Type.ACK) == 3
    link.stop()


async def test_nothing_is_told_of_what_is_being_set_aside() -> None:
    link, peer, _, copy = await linked()
    copy.quarantines(asyncio.ensure_future(asyncio.Event().wait()))
    link.received(Type.REPORT_AGAIN, told_apart(wire.LogNames([NAME]), Type.REPORT_AGAIN))
    assert peer.said == [Type.COPIES]
    copy.busy.cancel()
    await asyncio.wait((copy.busy,))
    link.received(Type.REPORT_AGAIN, told_apart(wire.LogNames([NAME]), Type.REPORT_AGAIN))
    assert peer.said == [Type.COPIES] * 2
    link.stop()


async def test_what_cannot_be_written_is_told_before_anything_is_acked_and_nothing_more_of_it_is_taken() -> (
    None
):
    link, peer, shared, copy = await linked()
    link.received(Type.MIRRORING, told_apart(wire.Mirroring(NAME, 1, 9), Type.MIRRORING))
    link.fail(copy, OSError("disk full"))
    link.received(Type.FRAME, frame(1))
    shared.durable[0]()
    assert shared.changed == []
    assert peer.said == [Type.COPIES, Type.FAILED, Type.ACK]
    link.stop()


@pytest.mark.long
async def test_a_disk_that_takes_small_records_only_is_not_tried_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_link, "RETRY_S", (0.01, 0.02, 0.05, 0.1, 0.2))
    link, _, shared, copy = await linked()
    ends_s, tries = asyncio.get_running_loop().time() + 1, 0

    def is_reported() -> bool:
        return bool(copy.serial > tries)

    while asyncio.get_running_loop().time() < ends_s:
        tries += 1
        link.received(Type.MIRRORING, told_apart(wire.Mirroring(NAME, tries, 9), Type.MIRRORING))
        link.received(Type.FRAME, frame(tries, APPENDED))
        link.fail(copy, OSError("disk full"))
        await until(is_reported)
    assert shared.changed == [ChangeKind.APPEND] * tries
    # 0.38 s for the first five, then 0.2 s for each.
    assert tries < 12
    link.stop()


async def test_no_error_of_one_try_ends_the_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its loop the link would be down for as long as the node runs."""
    monkeypatch.setattr(copy_link, "RETRY_S", (0.0,))
    peer = Peer()
    shared, tries = Shared(peer), 0

    async def dial(node: str, kind: str) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise UnicodeError("label too long")
        return peer

    shared.dial = dial  # type: ignore[method-assign]
    link = CopyLink(cast(Any, shared), "leader")
    link.add(copy_for(shared))
    await until(lambda: peer.said == [Type.COPIES])
    assert (tries, link.error) == (2, "")
    link.stop()
