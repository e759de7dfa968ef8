"""Heartbeats on links between nodes, so that a dead peer is noticed.

A whole, valid message is a sign of life. A part of a message is one only if much of it came: a message of 512 MB takes
long on a slow link, and a peer that drips octets of a message that never ends is not alive. A peer whose messages this
side holds, because its disk is slow, is not silent.
"""

from __future__ import annotations

import asyncio
from typing import Final

from leveret.runtime.link.peer import LinkPeer
from leveret.wire.link import LinkError, Type, message

BEAT_S: Final = 1.0
SILENT_BEATS_MAX: Final = 4
"""Silence is counted in this side's own beats: if its loop stood still, the other side was not silent."""
PROGRESS_BYTES_MIN: Final = 64 * 1024
"""The octets of an unfinished message that show within a beat that the other side lives."""
_BEAT: Final = message(Type.BEAT)


class LinkHeartbeat:
    """Beats until the link ends; see the module for the signs of life."""

    def __init__(
        self, peer: LinkPeer, *, silent_beats_max: int = SILENT_BEATS_MAX, says: bool = True
    ) -> None:
        """Begin; both sides have proven themselves. Without `says` this side's other messages are its heartbeats."""
        self._peer = peer
        self._silent_beats_max = silent_beats_max
        self._says = says
        self._messages, self._octets = peer.received_messages, peer.received_bytes
        self._silent_beats = 0
        self._plan()

    @property
    def silent_s(self) -> float:
        """The time without a sign of life, in whole beats."""
        return self._silent_beats * BEAT_S

    def _plan(self) -> None:
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        peer = self._peer
        if peer.is_closed:
            return
        is_alive = (
            peer.is_held
            or peer.received_messages > self._messages
            or peer.received_bytes - self._octets >= PROGRESS_BYTES_MIN
        )
        self._silent_beats = 0 if is_alive else self._silent_beats + 1
        self._messages, self._octets = peer.received_messages, peer.received_bytes
        if self._silent_beats >= self._silent_beats_max:
            peer.abort(LinkError(f"{peer.address} has sent nothing for {self.silent_s:.0f} s"))
            return
        if self._says:
            peer.write(_BEAT)
        self._plan()
