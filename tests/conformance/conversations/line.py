"""One connection of a conversation to one broker: sends a method, and reads until it is answered."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final, Self

from pamqp import base, body, commands, frame, header

from tests.conformance.conversations.chance import QUEUES
from tests.conformance.conversations.witness import ChannelView, Unsettled, Witness
from tests.conformance.rawclient import PATIENCE_S, Closed, Peer

PUBLISHED_AT: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
AT_ONCE_S: Final = 0.0005
PROBES: Final = 100
"""Channels from here on ask for the states of queues."""


class Line:
    """A connection, its channels and what is expected on them."""

    def __init__(self, port: int, vhost: str, number: int, user: str, witness: Witness) -> None:
        """Connect; what the broker says instead of open-ok is noted, and the line is closed."""
        self.number = number
        self.channels: dict[int, ChannelView] = {}
        self.is_open = True
        self.step = 0
        self._witness = witness
        self._peer = Peer(port)
        self._answered = False
        self._quiet = False
        self._is_flow_ours = False
        self._takes_no_ack = False
        self._awaited: tuple[int, tuple[type[base.Frame], ...]] = (0, ())
        self._content: dict[int, tuple[base.Frame, header.ContentHeader | None, bytes]] = {}
        self._probed: dict[int, Any] = {}
        self._peer.authenticate(user, user)
        self._peer.tune()
        self.call(0, commands.Connection.Open(virtual_host=vhost), quiet=True)

    @classmethod
    def opened(cls, port: int, vhost: str, number: int, user: str, witness: Witness) -> Self | None:
        """A line, or None if the broker refuses it."""
        line = cls(port, vhost, number, user, witness)
        return line if line.is_open else None

    # Sending

    def channel(self, number: int) -> ChannelView | None:
        """The view of an open channel, which is opened if it is not; None if that ends the connection."""
        if number not in self.channels:
            self.channels[number] = ChannelView()
            self.call(number, commands.Channel.Open(), quiet=True)
        return self.channels.get(number)

    def send(
        self, channel: int, *frames: frame.FrameTypes, awaits: tuple[type[base.Frame], ...] = ()
    ) -> None:
        """Send frames. Without an answer to wait for, a harmless question follows that has one."""
        if not awaits:
            frames, awaits = (*frames, commands.Channel.Flow(active=True)), (commands.Channel.FlowOk,)
            self._is_flow_ours = True
        else:
            self._is_flow_ours = False
        self._takes_no_ack = getattr(frames[0], "no_ack", False)
        self._awaited, self._answered = (channel, awaits), False
        try:
            self._peer.send(channel, *frames)
        except ConnectionError:
            self._end("reset")

    def call(self, channel: int, method: base.Frame, *, quiet: bool = False) -> None:
        """Send a method and read until it is answered; a good answer of a quiet call is not noted."""
        self._quiet = quiet
        self.send(channel, method, awaits=answers_of(method))
        self.finish()
        self._quiet = False

    def probe(self, queues: Sequence[str]) -> None:
        """Ask for the states of queues: for each on a channel of its own, as a missing queue closes the channel."""
        self._probed = {}
        frames = b""
        for queue in queues:
            number = PROBES + QUEUES.index(queue)
            if number not in self.channels:
                self.channels[number] = ChannelView()
                frames += frame.marshal(commands.Channel.Open(), number)
            frames += frame.marshal(commands.Queue.Declare(queue=queue, passive=True), number)
        try:
            self._peer.send_octets(frames)
        except ConnectionError:
            self._end("reset")

    def probed(self, queues: Sequence[str]) -> list[Any]:
        """The answers of the last probe, and all that came before them."""
        while self.is_open and len(self._probed) < len(queues):
            self._read()
        return [self._probed.get(PROBES + QUEUES.index(queue), "no connection") for queue in queues]

    def take(self) -> None:
        """Read what is there."""
        while self.is_open and self._read(AT_ONCE_S):
            pass

    def leave(self, *, abrupt: bool) -> None:
        """End the connection.

        RabbitMQ ends the channels of a connection in any order, so what one of them gives back may go to another one,
        and be lost there if that needs no acknowledgement: docs/deviations.md. Such channels are closed first.
        """
        holding = [number for number, view in self.channels.items() if view.unsettled]
        takers = [
            number for number, view in self.channels.items() if view.no_ack and holding not in ([], [number])
        ]
        for number in takers:
            self.call(number, commands.Channel.Close(200, "", 0, 0), quiet=True)
            self.channels.pop(number, None)
        if not abrupt:
            self.send(0, commands.Connection.Close(200, "", 0, 0), awaits=(commands.Connection.CloseOk,))
            self.finish()
        self.is_open = False
        self._peer.abort()

    # Receiving

    def finish(self) -> None:
        """Read until what was sent last is answered, or the channel or the connection is closed."""
        while self.is_open and not self._answered:
            self._read()

    def _read(self, patience_s: float = PATIENCE_S) -> bool:
        """Take the next frame; return whether there was one."""
        try:
            channel, received = self._peer.receive(patience_s)
        except (Closed, ConnectionError):
            self._end("closed without a word")
            return False
        except TimeoutError:
            if patience_s == PATIENCE_S:
                self._end("no answer")
            return False
        if isinstance(received, header.ContentHeader):
            self._content[channel] = (self._content[channel][0], received, b"")
            self._end_of_content(channel)
        elif isinstance(received, body.ContentBody):
            method, properties, octets = self._content[channel]
            self._content[channel] = (method, properties, octets + received.value)
            self._end_of_content(channel)
        elif isinstance(received, commands.Basic.Deliver | commands.Basic.GetOk | commands.Basic.Return):
            self._content[channel] = (received, None, b"")
        else:
            assert isinstance(received, base.Frame)
            self._method(channel, received)
        return True

    def _end_of_content(self, channel: int) -> None:
        method, head, octets = self._content[channel]
        assert head is not None
        if len(octets) < head.body_size:
            return
        del self._content[channel]
        names = self._witness.names
        message = (names.plain(octets.decode()), names.properties(head.properties))
        if isinstance(method, commands.Basic.Return):
            where = (method.exchange, names.plain(method.routing_key))
            self._note(channel, "returns", method.reply_code, method.reply_text, *where, *message)
        elif isinstance(method, commands.Basic.GetOk):
            got = (method.redelivered, method.exchange, names.plain(method.routing_key))
            # Its number of messages may count expired ones (docs/deviations.md); the queue's state is asked for anyway.
            self._note(channel, "answers", "GetOk", *got, *message)
            self._delivered(channel, method.delivery_tag or 0, None if self._takes_no_ack else "")
            self._answered = True
        elif isinstance(method, commands.Basic.Deliver):
            consumer = names.plain(method.consumer_tag)
            came = (method.redelivered, method.exchange, names.plain(method.routing_key))
            self._note(channel, f"consumer {consumer}", *came, *message)
            is_settled = method.consumer_tag in self.channels[channel].no_ack
            self._delivered(channel, method.delivery_tag or 0, None if is_settled else consumer)

    def _delivered(self, channel: int, tag: int, consumer: str | None) -> None:
        """Note a delivery; `consumer` is None if it needs no acknowledgement, and empty for an answer to a get."""
        view = self.channels[channel]
        if tag != view.last_tag + 1:
            self._note(channel, "tags", view.last_tag, tag)
        view.last_tag = tag
        if consumer is not None:
            view.unsettled.append(Unsettled(self.step, consumer, tag))

    def _method(self, channel: int, method: base.Frame) -> None:
        view = self.channels.get(channel)
        if isinstance(method, commands.Connection.Close):
            self._note(0, "answers", "Connection.Close", *self._fields(method))
            self._peer.send(0, commands.Connection.CloseOk())
            self._end("")
        elif isinstance(method, commands.Channel.Close):
            self._peer.send(channel, commands.Channel.CloseOk())
            self.channels.pop(channel, None)
            if channel >= PROBES:
                self._probed[channel] = method.reply_code
                return
            self._note(channel, "answers", "Channel.Close", *self._fields(method))
            self._answered |= channel == self._awaited[0]
        elif channel >= PROBES:
            if isinstance(method, commands.Queue.DeclareOk):
                self._probed[channel] = self._counts(method)
        elif isinstance(method, commands.Basic.Ack | commands.Basic.Nack):
            assert view is not None
            kind = type(method).__name__
            for one in view.confirmed(method.delivery_tag, multiple=method.multiple):
                self._note(channel, "confirms", one, kind)
        elif isinstance(method, commands.Basic.Cancel):
            self._note(channel, f"consumer {self._witness.names.plain(method.consumer_tag)}", "cancelled")
        else:
            self._answer(channel, method)

    def _answer(self, channel: int, method: base.Frame) -> None:
        awaited, kinds = self._awaited
        self._take_effect(channel, method)
        if channel == awaited and isinstance(method, kinds):
            self._answered = True
            if self._quiet or (self._is_flow_ours and isinstance(method, commands.Channel.FlowOk)):
                return
        if isinstance(method, commands.Queue.DeclareOk):
            self._note(
                channel, "answers", method.name, self._witness.names.plain(method.queue), self._counts(method)
            )
        elif isinstance(method, commands.Queue.DeleteOk) and self._witness.streams:
            # RabbitMQ counts no messages that go with a stream.
            self._note(channel, "answers", method.name)
        else:
            self._note(channel, "answers", method.name, *self._fields(method))

    def _counts(self, method: commands.Queue.DeclareOk) -> tuple[int | None, ...]:
        witness = self._witness
        messages = () if method.queue in witness.streams else (method.message_count,)
        return messages if method.queue in witness.uncounted else (*messages, method.consumer_count)

    def _take_effect(self, channel: int, method: base.Frame) -> None:
        view = self.channels.get(channel)
        if view is None:
            return
        if isinstance(method, commands.Basic.ConsumeOk):
            (view.no_ack.add if self._takes_no_ack else view.no_ack.discard)(method.consumer_tag or "")
        elif isinstance(method, commands.Confirm.SelectOk) and view.published is None:
            view.published = 0
        elif isinstance(method, commands.Tx.SelectOk):
            view.in_transaction = True
        elif isinstance(method, commands.Tx.CommitOk):
            view.settled_in_transaction = []
        elif isinstance(method, commands.Tx.RollbackOk):
            view.roll_back()

    def _fields(self, method: base.Frame) -> list[Any]:
        return [self._witness.names.value(value) for _, value in method]

    def _note(self, channel: int, kind: str, *what: Any) -> None:
        self._witness.note(self.number, channel, kind, *what)

    def _end(self, how: str) -> None:
        if how:
            self._note(0, "answers", how)
        self.is_open = False
        self._answered = True
        self._peer.abort()


def answers_of(method: base.Frame) -> tuple[type[base.Frame], ...]:
    """The answers that a method may have besides a close; none if it has no answer."""
    if not method.synchronous or getattr(method, "nowait", False):
        return ()
    names = [name.split(".") for name in method.valid_responses]
    return tuple(getattr(getattr(commands, klass), kind) for klass, kind in names)
