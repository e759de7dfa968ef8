"""The end of a socket whose session has said its last words.

A socket that is closed with octets unread resets the connection, and what its peer was sent last is lost with it: the
peer's next write fails, and it never reads the answer to its close. So nothing is closed at first: what still comes
is read and dropped until the peer closes, for a bounded time and a bounded number of octets.
"""

from __future__ import annotations

import asyncio
from typing import Final

from leveret.session.amqp091.connection import CLOSING_TIMEOUT_MS, DROPPED_BYTES_MAX

HALF_CLOSED_TIMEOUT_S: Final = 10.0
"""For a peer that has seen our end of the stream to end its own."""
UNTOLD_TIMEOUT_S: Final = 1.0
"""The same where the end of one direction cannot be told, as over TLS: some peers wait for ours before theirs."""


class Parting:
    """A socket from which nothing is wanted any more."""

    def __init__(self, transport: asyncio.Transport, *, peer_closes: bool) -> None:
        """Everything was written to `transport`; `peer_closes` if its protocol has the peer close the socket."""
        self._transport = transport
        self._left_bytes = DROPPED_BYTES_MAX
        give_up = transport.abort
        if peer_closes:
            timeout_s = CLOSING_TIMEOUT_MS / 1000
        elif transport.can_write_eof():
            transport.write_eof()
            timeout_s = HALF_CLOSED_TIMEOUT_S
        else:
            timeout_s, give_up = UNTOLD_TIMEOUT_S, transport.close
        self._deadline = asyncio.get_running_loop().call_later(timeout_s, give_up)

    def drop(self, octets: int) -> None:
        """So many octets came."""
        self._left_bytes -= octets
        if self._left_bytes < 0:
            self._transport.abort()

    def over(self) -> None:
        """The socket is gone."""
        self._deadline.cancel()
