"""`amq.rabbitmq.reply-to`: replies to a client without a queue in between.

A client consumes from the pseudo-queue, without acknowledgements, and publishes requests whose `reply-to`
is its name; the node writes a name there that leads back to the channel. Whoever publishes to that name
on the default exchange is heard at once, or never: nothing is stored.
"""

from __future__ import annotations

from typing import Final

from leveret.core.queues.messages import Messages
from leveret.model.errors import PreconditionFailed
from leveret.session.amqp091.delivery import DeliverHeads, DeliveryChannel, delivery_frames
from leveret.wire import properties as props

REPLY_TO: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = f"{REPLY_TO}."


class ReplyConsumer:
    """One channel's consumer of replies; `name` is where they are published to."""

    def __init__(self, channel: DeliveryChannel, tag: bytes) -> None:
        """Be known to publishers from now on."""
        self.channel = channel
        self.tag = tag
        self._is_closed = False
        self.name = PREFIX + channel.connection.host.unique_id()
        self._heads = DeliverHeads(channel.number, tag)
        channel.connection.broker.direct_replies[self.name] = self

    def take_reply(self, messages: Messages) -> None:
        """See core.broker.broker.DirectReply."""
        channel = self.channel
        if self._is_closed:
            # A transaction may end long after the one who asked went.
            return
        first = channel.next_tag
        channel.next_tag += len(messages)
        channel.counters.deliver_no_ack += len(messages)
        channel.connection.counters.deliver_no_ack += len(messages)
        channel.connection.send(delivery_frames(channel, self._heads, messages, first, False))

    def close(self) -> None:
        """Be known no more."""
        broker = self.channel.connection.broker
        broker.direct_replies.pop(self.name, None)
        broker.version += 1
        self._is_closed = True


def with_reply_name(consumer: ReplyConsumer | None, header: bytes) -> bytes:
    """The content header of a request, with the pseudo-queue's name replaced by that of the channel's consumer.

    Raises:
        PreconditionFailed: it asks for replies, and the channel does not consume them.
    """
    properties = props.split(header)
    if properties.get(props.REPLY_TO) != REPLY_TO.encode():
        return header
    if consumer is None:
        raise PreconditionFailed("fast reply consumer does not exist")
    properties[props.REPLY_TO] = consumer.name.encode()
    return props.join(properties, props.body_bytes_of(header))
