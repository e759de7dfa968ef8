"""Heartbeats: who sends them, and what their absence means.

The interval is one second, the shortest there is. Tests listen to several peers at a time, so
that waiting is not added up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.brokers import Broker
from tests.conformance.rawclient import FRAME_HEARTBEAT, HEARTBEAT, Closed, Peer


def heartbeats_until_the_end(silent: Peer, at_each: Callable[[], object] = lambda: None) -> int:
    """Send nothing until the broker ends the connection; return how many heartbeats it sent before."""
    beats = 0
    try:
        while True:
            assert silent.receive_frame() == (FRAME_HEARTBEAT, 0, HEARTBEAT)
            beats += 1
            at_each()
    except (Closed, ConnectionError):
        return beats


@pytest.fixture
def silent(broker: Broker) -> Iterator[Peer]:
    """A peer that agreed on heartbeats, and will send none."""
    with broker.peer() as one:
        one.login(heartbeat_s=1)
        yield one


def test_the_broker_sends_heartbeats_and_gives_up_a_silent_peer(silent: Peer) -> None:
    began = time.monotonic()
    assert heartbeats_until_the_end(silent) >= 1
    assert time.monotonic() - began >= 1.0


def test_a_peer_that_sends_heartbeats_stays(broker: Broker, silent: Peer) -> None:
    with broker.peer() as beating:
        beating.login(heartbeat_s=1)
        heartbeats_until_the_end(silent, lambda: beating.send_octets(HEARTBEAT))
        beating.open_channel(1)


def test_any_traffic_counts_as_a_heartbeat(broker: Broker, silent: Peer) -> None:
    with broker.peer() as talking:
        talking.login(heartbeat_s=1)
        talking.open_channel(1)
        heartbeats_until_the_end(silent, lambda: talking.expect_silence(1))
        talking.expect_silence(1)


def test_a_peer_without_heartbeats_may_be_silent(broker: Broker, silent: Peer) -> None:
    with broker.peer() as quiet:
        quiet.login(heartbeat_s=0)
        heartbeats_until_the_end(silent)
        quiet.open_channel(1)


def test_a_stray_heartbeat_is_welcome_where_none_was_agreed(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.login(heartbeat_s=0)
        peer.send_octets(HEARTBEAT)
        peer.open_channel(1)
