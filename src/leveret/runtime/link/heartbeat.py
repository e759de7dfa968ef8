"""Heartbeats on a cluster's links, so that a dead peer is noticed."""

from __future__ import annotations

import asyncio
from typing import Final

from leveret.runtime.link.peer import LinkPeer
from leveret.wire.link import LinkError, Type, message

BEAT_S: Final = 1.0
SILENT_BEATS_MAX: Final = 4
"""Counted in this side's own beats: if its loop stood still, the other side was not silent."""
_BEAT: Final = message(Type.BEAT)


class Heart:
    """Beats until the link ends; any octets that come are a sign of life."""

    def __init__(self, peer: LinkPeer) -> None:
        """Begin; both sides have proven themselves."""
        self._peer = peer
        self._received_bytes = peer.received_bytes
        self._silent_beats = 0
        self._plan()

    def _plan(self) -> None:
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        peer = self._peer
        if peer.is_closed:
            return
        is_silent = peer.received_bytes == self._received_bytes
        self._silent_beats = self._silent_beats + 1 if is_silent else 0
        self._received_bytes = peer.received_bytes
        if self._silent_beats >= SILENT_BEATS_MAX:
            silent_s = self._silent_beats * BEAT_S
            peer.abort(LinkError(f"nothing was heard of {peer.address} for {silent_s:.0f} s"))
            return
        peer.write(_BEAT)
        self._plan()
