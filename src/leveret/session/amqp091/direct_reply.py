"""`amq.rabbitmq.reply-to`: replies to a client without a queue in between.

A client consumes from the pseudo-queue, without acknowledgements, and publishes requests with its name as `reply-to`;
the node replaces it by a name that leads back to the channel. A reply to that name on the default exchange is
delivered at once, or never: no reply is stored. Its sender does not wait for the client, which other clients of the
sender would have to pay for; so replies that a client does not read are dropped once they take too much memory.
"""

from __future__ import annotations

from typing import Final

from leveret.core.queues.messages import Messages
from leveret.model.errors import PreconditionFailed
from leveret.session.amqp091.delivery import DeliverHeads, DeliveryChannel, delivery_frames
from leveret.wire import properties as props

REPLY_TO: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = f"{REPLY_TO}."
_REPLY_TO: Final = REPLY_TO.encode()
UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""A connection whose socket has taken nothing for so many octets of replies gets no further one before it does."""
NODE_MAX: Final = 200
"""The longest name of a node to which other nodes find the way."""


class ReplyConsumer:
    """One channel's consumer of replies; `name` is the routing key of replies to it."""

    def __init__(self, channel: DeliveryChannel, tag: bytes) -> None:
        """Register the consumer for publishers."""
        self.channel = channel
        self.tag = tag
        self._is_closed = False
        host = channel.connection.host
        # Other nodes of the cluster send replies to this one. A name has 255 octets at most.
        self.name = f"{PREFIX}{host.node_name[:NODE_MAX]}.{host.unique_id()}"
        self._heads = DeliverHeads(channel.number, tag)
        channel.connection.broker.direct_replies[self.name] = self

    def take_reply(self, messages: Messages) -> None:
        """See core.broker.direct_reply.DirectReply."""
        channel = self.channel
        if self._is_closed:
            # A transaction may end long after the requester left.
            return
        connection = channel.connection
        if connection.unread_replies_bytes >= UNREAD_BYTES_MAX:
            self._drop(messages)
            return
        first = channel.next_tag
        channel.next_tag += len(messages)
        channel.counters.deliver_no_ack += len(messages)
        connection.counters.deliver_no_ack += len(messages)
        frames = delivery_frames(channel, self._heads, messages, first, False)
        if connection.is_paused:
            connection.unread_replies_bytes += sum(map(len, frames))
        connection.send_pieces(frames)

    def _drop(self, messages: Messages) -> None:
        """Drop replies; the log names the client once, until its socket takes octets again."""
        connection = self.channel.connection
        connection.counters.drop_unroutable += len(messages)
        if not connection.drops_replies:
            connection.drops_replies = True
            connection.host.replies_dropped(connection.peer, connection.user or "")

    def close(self) -> None:
        """Unregister the consumer."""
        broker = self.channel.connection.broker
        broker.direct_replies.pop(self.name, None)
        broker.version += 1
        self._is_closed = True


def node_of(name: str) -> str:
    """The node of the client with this name for replies; empty for another name."""
    return name.removeprefix(PREFIX).rpartition(".")[0] if name.startswith(PREFIX) else ""


def with_reply_name(consumer: ReplyConsumer | None, header: bytes) -> bytes:
    """The whole content header of a request, with the pseudo-queue's name replaced by that of the channel's consumer.

    Raises:
        PreconditionFailed: the request asks for replies, and the channel does not consume them.
    """
    if consumer is not None:
        return props.with_text(header, props.REPLY_TO, _REPLY_TO, consumer.name.encode())
    if props.split(header).get(props.REPLY_TO) == _REPLY_TO:
        raise PreconditionFailed("fast reply consumer does not exist")
    return header
