"""runtime.clients.stream_peer: one socket of the stream listener."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from leveret.runtime.clients.stream_peer import StreamPeer
from leveret.session.stream.types import StreamConnectionState
from leveret.testing.sites.stream_host import FakeStreamHost


class _Gone(asyncio.Transport):
    """The transport of a socket whose peer has gone, so that it has no name."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__({"socket": connected})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


async def test_a_peer_that_has_gone_before_it_is_served_leaves_nothing() -> None:
    register: dict[StreamPeer, None] = {}
    host: Any = FakeStreamHost(streams={})
    peer = StreamPeer(host, 1 << 20, 60, register)
    with socket.socket() as connected:
        peer.connection_made(_Gone(connected))
        assert register == {peer: None}
        peer.connection_lost(None)
    assert register == {}
    assert peer.closed.done()


@pytest.mark.uvloop
async def test_a_deadline_may_change_while_one_is_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's handle of a call that is due within half a millisecond does not tell its time."""
    host: Any = FakeStreamHost(streams={})
    peer = StreamPeer(host, 1 << 20, 60, {})
    with socket.socket() as connected:
        peer.connection_made(_Gone(connected))
        monkeypatch.setattr(type(peer._session), "next_deadline_ms", lambda session: 0)
        peer._arm()
        peer._arm()
        peer.connection_lost(None)
    assert peer.closed.done()


class _Full(_Gone):
    """The transport of a peer that does not read."""

    unsent_bytes = 2_000_000
    is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.is_aborted

    def writelines(self, octets: Any) -> None:
        self.unsent_bytes += sum(map(len, octets))

    def pause_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize(("taken_bytes", "is_dropped"), [(0, True), (100, False)])
async def test_a_peer_that_takes_nothing_for_two_heartbeats_is_dropped(
    monkeypatch: pytest.MonkeyPatch, taken_bytes: int, is_dropped: bool
) -> None:
    """It is not read from, so its heartbeats show nothing; and a group would wait for this consumer for ever."""

    now_ms = 1_000_000
    monkeypatch.setattr(StreamPeer, "_now_ms", lambda peer: now_ms)
    host: Any = FakeStreamHost(streams={})
    peer = StreamPeer(host, 1 << 20, 60, {})
    with socket.socket() as connected:
        transport = _Full(connected)
        peer.connection_made(transport)
        peer._session.state = StreamConnectionState.OPEN
        peer.pause_writing()
        for _ in range(5):
            now_ms += 60_001
            transport.unsent_bytes -= taken_bytes
            if not transport.is_aborted:
                peer._tick()
        peer.connection_lost(None)
    assert transport.is_aborted is is_dropped
