"""Heartbeats: who sends them, and what their absence means.

The interval is one second, the shortest there is. Tests listen to several peers at a time, so
that waiting is not added up.
"""

from __future__ import annotations

import time

import pytest

from tests.conformance.brokers import Broker
from tests.conformance.rawclient import FRAME_HEARTBEAT, Closed, raw_frame

HEARTBEAT = raw_frame(FRAME_HEARTBEAT, 0, b"")


def test_the_broker_sends_heartbeats_and_gives_up_a_silent_peer(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.login(heartbeat_s=1)
        began = time.monotonic()
        beats = 0
        with pytest.raises((Closed, ConnectionError)):
            while True:
                kind, channel, octets = peer.receive_frame()
                assert (kind, channel, octets) == (FRAME_HEARTBEAT, 0, HEARTBEAT)
                beats += 1
        assert beats >= 1
        assert 1.0 <= time.monotonic() - began <= 6.0


def test_a_peer_that_sends_heartbeats_stays(broker: Broker) -> None:
    with broker.peer() as beating, broker.peer() as silent:
        silent.login(heartbeat_s=1)
        beating.login(heartbeat_s=1)
        with pytest.raises((Closed, ConnectionError)):
            while True:
                silent.receive_frame()
                beating.send_octets(HEARTBEAT)
        beating.open_channel(1)


def test_any_traffic_counts_as_a_heartbeat(broker: Broker) -> None:
    with broker.peer() as talking, broker.peer() as silent:
        silent.login(heartbeat_s=1)
        talking.login(heartbeat_s=1)
        talking.open_channel(1)
        with pytest.raises((Closed, ConnectionError)):
            while True:
                silent.receive_frame()
                talking.expect_silence(1)
        talking.expect_silence(1)


def test_a_peer_without_heartbeats_may_be_silent(broker: Broker) -> None:
    with broker.peer() as quiet, broker.peer() as silent:
        quiet.login(heartbeat_s=0)
        silent.login(heartbeat_s=1)
        with pytest.raises((Closed, ConnectionError)):
            while True:
                silent.receive_frame()
        quiet.open_channel(1)


def test_a_stray_heartbeat_is_welcome_where_none_was_agreed(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.login(heartbeat_s=0)
        peer.send_octets(HEARTBEAT)
        peer.open_channel(1)
