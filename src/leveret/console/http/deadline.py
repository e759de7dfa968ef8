"""One connection of a browser: uvicorn's, with a deadline for each request, and one for reading what it is answered.

A connection that sends nothing, or its request in drops, or does not read, would hold one of the places of browsers for
ever, and a stranger could hold all of them. Requests have at most some kilobytes, so all of them have the same time.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 10.0
"""The time for a request, with its headers and its body, from the begin of the wait for it."""
READ_S: Final = 60.0
"""The time for reading, from when the sockets take no more."""


class BrowserPeer(H11Protocol):
    """A connection with a deadline; see the module."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make uvicorn's connection."""
        super().__init__(*arguments, **options)
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request."""
        super().connection_made(transport)
        # Any octet that is not read counts: also a connection that is to close waits for its last ones, without end.
        # With a limit of 0 TLS would be paused for ever.
        transport.set_write_buffer_limits(high=1, low=0)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Take octets; a whole request ends the wait."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for another request."""
        self._stop()
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Wait for the browser to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """End that wait: the browser has read all."""
        super().resume_writing()
        self._stop_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the waits."""
        super().connection_lost(exc)
        self._stop()
        self._stop_reading()

    def _look(self) -> None:
        is_awaited = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing()
        if not is_awaited:
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _stop_reading(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
