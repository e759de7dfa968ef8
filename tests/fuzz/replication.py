"""The link between the nodes of a replication: who has not the secret gets no further than the door."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from leveret.session.link_handshake import HandshakeError, HandshakeMessage, refusal
from tests.fuzz.target import CUT, Target, declared, expect
from tests.unit.session.test_link_handshake import follower_side, leader_side, meet, prove

TO_FOLLOWER: Final = 1
OPENED: Final = 2


@cache
def _lawful() -> list[HandshakeMessage]:
    return meet(leader_side(), follower_side()).said


def link_handshake(octets: bytes) -> None:
    """Messages, a type's octet and the payload, between `CUT`; before them an octet that says to whom.

    Its bit 0: to the side that connects, else to the other one; bit 1: after a lawful HELLO. Both sides have the nonces
    of the seeds, so that only what is changed of them keeps a peer out.
    """
    how, *parts = (octets[:1] or b"\0", *octets[1:].split(CUT))
    messages = [HandshakeMessage(part[0], part[1:]) for part in parts if part]
    is_follower, is_opened = how[0] & TO_FOLLOWER, how[0] & OPENED
    lawful = _lawful()[1::2] if is_follower else _lawful()[0::2]
    taken = lawful[:1] if is_opened else []
    steps = _follower_steps() if is_follower else _leader_steps()
    for message in taken:
        steps[0](message)
    for message in messages:
        for number, step in enumerate(steps):
            with declared(HandshakeError):
                step(message)
                taken.append(message)
                expect(number == 1 or len(taken) == 1, "a first message was taken twice")
                expect(number == 0 or taken == lawful, f"a peer without the secret is let in: {taken}")


def _leader_steps() -> list[Callable[[HandshakeMessage], Any]]:
    leader = leader_side()
    return [leader.answer_hello, leader.take_proof]


def _follower_steps() -> list[Callable[[HandshakeMessage], Any]]:
    follower = follower_side()
    return [lambda message: prove(follower, message), follower.take_welcome]


def link_handshake_seeds() -> Iterator[bytes]:
    parts = [bytes((message.type,)) + message.payload for message in _lawful()]
    refused = refusal("the secrets differ")
    for is_follower in (0, TO_FOLLOWER):
        own = parts[1::2] if is_follower else parts[0::2]
        yield bytes((is_follower,)) + CUT.join(own)
        yield bytes((is_follower | OPENED,)) + own[1]
        yield bytes((is_follower,)) + CUT.join([bytes((refused.type,)) + refused.payload, *own])


REPLICATION: Final = (Target("link-handshake", link_handshake, link_handshake_seeds, 1024),)
