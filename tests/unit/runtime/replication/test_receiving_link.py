"""What a copying node acks: what came on this very connection, once it is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.replication.receiver import Copied, ReceivePhase
from leveret.model.errors import PeerError
from leveret.runtime.replication import receiving_link
from leveret.runtime.replication.receiving_link import ReceivingLink
from leveret.testing.network.waiting import until
from leveret.wire.link import Acked, Frame, Type, decode


class Peer:
    """A link to a leader, and the numbers that were acked on it."""

    received_bytes = 0
    is_closed = False

    def __init__(self) -> None:
        self.acked: list[int] = []

    def write(self, octets: bytes) -> None:
        self.acked.append(decode(Type.ACK, memoryview(octets)[5:], Acked).position)

    def abort(self, error: Exception | None = None) -> None:
        self.is_closed = True


class Logs:
    """receiver.CopiedLogs of a node without logs."""

    def copied(self, name: str) -> Copied | None:
        return Copied(None, 9)


def frame(number: int) -> memoryview:
    return memoryview(b"".join(bytes(each) for each in Frame().message(number, 0, 0)))[5:]


def linked(durable: list[Callable[[], None]]) -> tuple[ReceivingLink, Peer]:
    peer = Peer()
    commits = SimpleNamespace(when_durable=durable.append, begin=lambda: None)
    link = ReceivingLink(
        cast(Any, peer), Logs(), ReceivePhase.JOINING, cast(Any, commits), lambda number: None
    )
    link.take(frame(0), lambda head, changes: None)
    return link, peer


def test_neither_a_sign_of_life_nor_a_late_sync_acks_what_came_on_another_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A former leader's number may be higher than all that this leader has cut."""
    monkeypatch.setattr(receiving_link, "_ACK_AGAIN_S", 0.005)

    async def scenario() -> None:
        durable: list[Callable[[], None]] = []
        before, former = linked(durable)
        before.receiver.joined(5000)
        before.acknowledge()
        durable.pop()()
        before.take(frame(6000), lambda head, changes: None)
        assert former.acked == [5000]
        former.is_closed = True
        link, peer = linked(durable)
        link.receiver.joined(7)
        link.acknowledge()
        ended = asyncio.Event()
        beating = asyncio.create_task(link.beat(ended))
        await until(lambda: len(peer.acked) >= 3, "it beats")
        assert set(peer.acked) == {0}
        late, joined = durable
        late()
        joined()
        ended.set()
        await beating
        assert (former.acked, peer.acked[-1]) == ([5000], 7)

    asyncio.run(scenario())


def test_nothing_is_made_of_a_frame_that_does_not_fit() -> None:
    async def scenario() -> None:
        link, _ = linked([])
        made: list[object] = []
        with pytest.raises(PeerError, match="cut 3, which is not due while this node is copying"):
            link.take(frame(3), lambda head, changes: made.append(head))
        assert made == []

    asyncio.run(scenario())
