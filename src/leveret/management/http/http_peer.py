"""One HTTP connection: uvicorn's, with a deadline for each wait of the node for the client.

A request's line and headers have `request_s` in all, however they arrive. So has a body, and more with each part that
arrives: a second for each `body_bytes_s_min` octets. So a body in drops is late as soon as headers in drops, and the
definitions of a large site may come over a slow link. From one part of a body to the next there are `idle_s`, as for a
response that the client does not read; one that is read at that rate may take longer, and meanwhile no request is
waited for. The node's own time for an answer has no limit here, and a body that the node itself does not read for now
is not late.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

_LAST_WORD_S: Final = 1.0
"""The time for the error response to a late client; then the socket is closed at once."""
_TOO_LATE: Final = b"The request did not come in time."


class HttpDeadlines(NamedTuple):
    """The deadlines; see the module."""

    request_s: float
    body_bytes_s_min: float
    idle_s: float


class HttpPeer(H11Protocol):
    """A connection with deadlines; see the module."""

    def __init__(self, *, deadlines: HttpDeadlines, **uvicorn: Any) -> None:
        """Make uvicorn's connection with these deadlines."""
        super().__init__(**uvicorn)
        self._deadlines = deadlines
        self._awaited: tuple[Any, Any] | None = None
        self._awaited_since_s = 0.0
        self._received_at_s = 0.0
        self._octets = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._unread_octets = 0
        self._goodbye: asyncio.TimerHandle | None = None

    # -- what asyncio and uvicorn call --------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request."""
        super().connection_made(transport)
        # Any octet that the client has not read is watched: also a connection that is to close waits for its last ones,
        # without end. With a limit of 0 TLS would be paused for ever.
        transport.set_write_buffer_limits(high=1, low=0)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Take octets, and check whether the wait is over."""
        self._received_at_s = self.loop.time()
        self._octets += len(data)
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for another request, or for the rest of this one's body."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Begin a deadline, because the client does not read as fast as it is answered."""
        super().pause_writing()
        if self._unread is None:
            self._await_reading()

    def resume_writing(self) -> None:
        """End that deadline: the client has read all."""
        super().resume_writing()
        self._unread = _cancelled(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all deadlines."""
        super().connection_lost(exc)
        self._timer, self._goodbye = _cancelled(self._timer), _cancelled(self._goodbye)
        self._unread = _cancelled(self._unread)

    # -- deadlines ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Begin a deadline when the wait is for something else than before."""
        state = self.conn.their_state
        # An equal state may belong to another request.
        awaited = (state, self.cycle) if state in (h11.IDLE, h11.SEND_BODY) else None
        if self.transport.is_closing():
            awaited = None
        if awaited != self._awaited:
            self._awaited, self._awaited_since_s, self._octets = awaited, self.loop.time(), 0
            self._timer = _cancelled(self._timer)
            if awaited is not None:
                self._timer = self.loop.call_at(self._due_s(), self._check)

    def _due_s(self) -> float:
        due_s = self._awaited_since_s + self._deadlines.request_s
        if self.conn.their_state is h11.IDLE:
            return due_s
        due_s += self._octets / self._deadlines.body_bytes_s_min
        return min(due_s, max(self._awaited_since_s, self._received_at_s) + self._deadlines.idle_s)

    def _check(self) -> None:
        if self.flow.read_paused or self._unread is not None:
            # Time begins anew when the node has read, or the client the response before.
            self._awaited_since_s, self._octets = self.loop.time(), 0
        due_s = self._due_s()
        if self.loop.time() < due_s:
            # A part of the body came since.
            self._timer = self.loop.call_at(due_s, self._check)
            return
        self._timer = None
        self._end("body" if self.conn.their_state is h11.SEND_BODY else "request")

    def _await_reading(self) -> None:
        self._unread_octets = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self._deadlines.idle_s, self._check_reading)

    def _check_reading(self) -> None:
        read = self._unread_octets - self.transport.get_write_buffer_size()
        if read >= self._deadlines.body_bytes_s_min * self._deadlines.idle_s:
            self._await_reading()
            return
        self._unread = None
        logger.info("http_connection_closed peer=%s reason=the response is not read", self._name())
        self.transport.abort()

    def _end(self, late: str) -> None:
        """Close the connection, with a response if the client has begun a request."""
        if self.transport.is_closing():
            return
        has_begun = late == "body" or bool(self.conn.trailing_data[0])
        if has_begun:
            logger.info("http_connection_closed peer=%s reason=its %s is late", self._name(), late)
            self._say_too_late()
        self.transport.close()
        self._goodbye = self.loop.call_later(_LAST_WORD_S, self.transport.abort)

    def _say_too_late(self) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(_TOO_LATE)).encode()),
            (b"connection", b"close"),
        ]
        said = [
            h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"),
            h11.Data(data=_TOO_LATE),
            h11.EndOfMessage(),
        ]
        for event in said:
            self.transport.write(self.conn.send(event) or b"")

    def _name(self) -> str:
        return f"{self.client[0]}:{self.client[1]}" if self.client else "the control socket"


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
