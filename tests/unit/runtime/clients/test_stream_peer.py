"""runtime.clients.stream_peer: one socket of the stream listener."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from leveret.runtime.clients.stream_peer import StreamPeer
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
