"""The end of a socket whose session has written its last octets.

Closing a socket with unread octets resets the connection, and loses the octets sent last: the peer's next write
fails, and the peer never reads the answer to its close. So the socket is not closed at first: further octets are read
and dropped until the peer closes, for a bounded time and up to a bounded size.
"""

from __future__ import annotations

import asyncio
from typing import Final

from leveret.session.amqp091.connection import CLOSING_TIMEOUT_MS, DROPPED_BYTES_MAX

HALF_CLOSED_TIMEOUT_S: Final = 10.0
"""The time for a peer to end its side of the stream after ours."""
NO_HALF_CLOSE_TIMEOUT_S: Final = 1.0
"""The same if one direction cannot be ended alone, as over TLS: some peers wait for our close before theirs."""


class LingeringClose:
    """A socket from which no more input is needed."""

    def __init__(self, transport: asyncio.Transport, *, peer_closes: bool) -> None:
        """All output is written to `transport`; `peer_closes` if in its protocol the peer closes the socket."""
        self._transport = transport
        self._left_bytes = DROPPED_BYTES_MAX
        give_up = transport.abort
        if peer_closes:
            timeout_s = CLOSING_TIMEOUT_MS / 1000
        elif transport.can_write_eof():
            transport.write_eof()
            timeout_s = HALF_CLOSED_TIMEOUT_S
        else:
            timeout_s, give_up = NO_HALF_CLOSE_TIMEOUT_S, transport.close
        self._deadline = asyncio.get_running_loop().call_later(timeout_s, give_up)

    def drop(self, octets: int) -> None:
        """Drop arrived octets, and abort when they are too many."""
        self._left_bytes -= octets
        if self._left_bytes < 0:
            self._transport.abort()

    def over(self) -> None:
        """Note that the socket is gone."""
        self._deadline.cancel()
