"""proton's AMQP 1.0 transport as octets in, events, octets out: the base of both ends of a link.

proton handles frames, flow control, large messages and heartbeats; it owns neither socket nor clock here. After every
call that may have caused output, the owner sends `output()`; if `finished` is true then, no output will follow.
Damaged input ends the transport with a condition, never with an exception.

Spec: AMQP 1.0 part 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from proton import (
    Collector,
    Condition,
    Connection,
    Delivery,
    Event,
    Link,
    Message,
    ProtonException,
    Sender,
    Transport,
)

FRAME_BYTES_MAX: Final = 64 * 1024
IDLE_TIMEOUT_S: Final = 60
CHANNEL_MAX: Final = 7
INCOMING_BYTES_MAX: Final = 4 * 1024 * 1024
"""The octets of messages that proton holds for a session until its owner reads them."""
SENDING_BYTES_MAX: Final = 4 * FRAME_BYTES_MAX
"""The octets of a message that proton holds while the peer's window is shut."""
TICK_MS_MIN: Final = 50
"""The least time between two ticks: a peer may ask for a heartbeat each millisecond."""
UNREADABLE: Final = (ProtonException, ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""What proton raises for a peer's values, which it decodes lazily: names that are no UTF-8, characters beyond Unicode,
maps with keys of any type and depth."""


class Amqp10Transport:
    """One AMQP 1.0 connection's transport, bound and not yet open."""

    def __init__(self, *, server: bool) -> None:
        """Wait for the AMQP header as a server, or send it as a client."""
        self.transport = Transport(Transport.SERVER if server else Transport.CLIENT)
        self.transport.max_frame_size = FRAME_BYTES_MAX
        self.transport.channel_max = CHANNEL_MAX
        self.transport.idle_timeout = IDLE_TIMEOUT_S
        self.connection = Connection()
        self.finished = False
        self._sending: deque[_Sending] = deque()
        self._collector = Collector()
        self.connection.collect(self._collector)

    def bind(self) -> None:
        """Bind connection and transport, after the settings of the end's role."""
        self.transport.bind(self.connection)

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take octets from the peer; the caller handles each event before it asks for the next."""
        view = memoryview(data)
        while view:
            room = self.transport.capacity()
            if room <= 0:
                break
            self.transport.push(bytes(view[:room]))
            view = view[room:]
            yield from self.events()
        yield from self.events()

    def events(self) -> Iterator[Event]:
        """Yield the events since the last call."""
        while (event := self._collector.peek()) is not None:
            # Before its handling: an unreadable event must not come again.
            self._collector.pop()
            yield event

    def send(self, sender: Sender, message: Message, *, settled: bool) -> None:
        """Send a message of any length as one delivery, as fast as the peer's window lets it go."""
        self._sending.append(_Sending(sender, memoryview(message.encode()), settled))

    @property
    def sending(self) -> int:
        """The number of messages that are not sent as a whole."""
        return len(self._sending)

    def forget(self, link: Link) -> None:
        """Send no more on a link that ends."""
        self._sending = deque(sending for sending in self._sending if sending.sender != link)

    def output(self, now_ms: int) -> bytes:
        """All octets due for the peer, heartbeats too."""
        self.transport.tick(now_ms / 1000)
        pieces: list[bytes] = []
        self._drain(pieces)
        # proton copies all that it holds of a delivery with each frame, so it gets little at a time.
        while self._sending and self._sending[0].sender.session.outgoing_bytes < SENDING_BYTES_MAX:
            if self._sending[0].step():
                self._sending.popleft()
            self._drain(pieces)
        return b"".join(pieces)

    def _drain(self, pieces: list[bytes]) -> None:
        while (pending := self.transport.pending()) > 0:
            pieces.append(self.transport.peek(pending) or b"")
            self.transport.pop(pending)
        if pending < 0:
            self.finished = True
            self._sending.clear()

    def next_tick_ms(self, now_ms: int) -> int | None:
        """The latest time for the next `output`, if no octets arrive before."""
        deadline_s = self.transport.tick(now_ms / 1000)
        return max(round(deadline_s * 1000), now_ms + TICK_MS_MIN) if deadline_s else None

    @property
    def condition(self) -> Condition | None:
        """The reason why the transport, or the peer, ended the connection; None without one that can be read."""
        try:
            return self.transport.condition or self.connection.remote_condition
        except UNREADABLE:
            return None


class _Sending:
    """A message in parts, as far as proton has it."""

    def __init__(self, sender: Sender, octets: memoryview, settled: bool) -> None:
        self.sender = sender
        self._octets = octets
        self._settled = settled
        self._delivery: Delivery | None = None

    def step(self) -> bool:
        """Pass the next part to proton; True for the last one."""
        if self._delivery is None:
            self._delivery = self.sender.delivery(self.sender.delivery_tag())
        self.sender.stream(bytes(self._octets[:FRAME_BYTES_MAX]))
        self._octets = self._octets[FRAME_BYTES_MAX:]
        if self._octets:
            return False
        self.sender.advance()
        if self._settled:
            self._delivery.settle()
        return True


def data_of(message: Message) -> bytes | None:
    """The octets of a message's body; None for a body of another type."""
    body: object = message.body
    return bytes(body) if isinstance(body, bytes | memoryview) else None
