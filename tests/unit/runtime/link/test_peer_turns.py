"""A link takes thousands of messages of one read in turns with all other work of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from leveret.runtime.link import peer as peer_module
from leveret.runtime.link.peer import LinkPeer
from leveret.wire.link import GREETING, LENGTH, LinkError, Type
from tests.unit.runtime.link.transport import Transport

IN_A_TURN = 3
MESSAGES = 20


class Taking:
    """Takes messages, and does more with some of them."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.at: dict[int, Callable[[], None]] = {}

    def received(self, kind: Type, payload: memoryview) -> None:
        self.taken.append(int.from_bytes(payload))
        self.at.get(self.taken[-1], lambda: None)()

    def ended(self, error: Exception | None) -> None:
        pass


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> tuple[LinkPeer, Transport, Taking]:
    """A link whose turns end after `IN_A_TURN` messages."""

    def turn() -> Callable[[], bool]:
        looks = iter(range(1, MESSAGES + 1))
        return lambda: next(looks) >= IN_A_TURN

    monkeypatch.setattr(peer_module, "time_slice", turn)
    link, transport, taking = LinkPeer(), Transport(), Taking()
    link.receiver = taking
    link.is_trusted = True
    link.connection_made(cast(Any, transport))
    return link, transport, taking


def read(link: LinkPeer, octets: bytes) -> None:
    link.get_buffer(-1)[: len(octets)] = octets
    link.buffer_updated(len(octets))


def messages(first: int, end: int) -> bytes:
    return b"".join(
        LENGTH.pack(5) + bytes((Type.FRAME,)) + number.to_bytes(4) for number in range(first, end)
    )


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_no_pass_of_the_loop_takes_more_than_a_turn_and_all_come_in_their_order(
    link: tuple[LinkPeer, Transport, Taking],
) -> None:
    peer, transport, taking = link
    whole = GREETING + messages(0, MESSAGES)
    read(peer, whole[:-2])
    before = 0
    while len(taking.taken) < MESSAGES - 1:
        assert 0 < len(taking.taken) - before <= IN_A_TURN
        assert not transport.reads, "the buffer is taken before it is filled again"
        before = len(taking.taken)
        await passes(1)
    assert transport.reads
    read(peer, whole[-2:])
    assert taking.taken == list(range(MESSAGES))
    assert transport.pauses == (MESSAGES - 2) // IN_A_TURN


async def test_octets_that_a_transport_had_read_before_the_pause_wait_behind_the_others(
    link: tuple[LinkPeer, Transport, Taking],
) -> None:
    peer, _, taking = link
    read(peer, GREETING + messages(0, 5))
    read(peer, messages(5, MESSAGES))
    assert taking.taken == list(range(IN_A_TURN))
    await passes(MESSAGES)
    assert taking.taken == list(range(MESSAGES))


async def test_a_link_that_ends_in_a_turn_takes_nothing_more(
    link: tuple[LinkPeer, Transport, Taking],
) -> None:
    peer, _, taking = link
    taking.at[IN_A_TURN + 1] = lambda: peer.close(LinkError("enough"))
    read(peer, GREETING + messages(0, MESSAGES))
    await passes(MESSAGES)
    assert taking.taken == list(range(IN_A_TURN + 2))


async def test_a_receiver_that_holds_the_messages_gets_none_at_the_begin_of_a_turn(
    link: tuple[LinkPeer, Transport, Taking],
) -> None:
    peer, transport, taking = link
    other = Taking()
    taking.at[IN_A_TURN - 1] = peer.hold
    read(peer, GREETING + messages(0, MESSAGES))
    await passes(MESSAGES)
    assert (taking.taken, transport.reads) == (list(range(IN_A_TURN)), False)
    peer.receiver = other
    await passes(MESSAGES)
    assert other.taken == list(range(IN_A_TURN, MESSAGES))
    assert transport.reads


@pytest.mark.parametrize("at", range(IN_A_TURN + 2))
async def test_another_receiver_at_any_message_gets_the_rest(
    link: tuple[LinkPeer, Transport, Taking], at: int
) -> None:
    peer, transport, taking = link
    other = Taking()

    def change() -> None:
        peer.hold()
        peer.receiver = other

    taking.at[at] = change
    read(peer, GREETING + messages(0, MESSAGES))
    await passes(MESSAGES)
    assert taking.taken + other.taken == list(range(MESSAGES))
    assert transport.reads
