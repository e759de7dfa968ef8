"""The steps of a conversation: what one of its clients does next, on both brokers alike.

A step names everything by its place in the conversation (the second connection, the third delivery that waits for its
acknowledgement), and never by what one broker chose: both play the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

REPLY: Final = "$reply"
"""As a routing key: the newest reply name (`amq.rabbitmq.reply-to.*`) that any consumer of the conversation saw."""
VHOST: Final = "$vhost"
"""In the path of a request: the conversation's virtual host."""


@dataclass(frozen=True, slots=True)
class Call:
    """A method on a channel, which is opened first if it is closed."""

    connection: int
    channel: int
    method: str
    """As pamqp names it: `Queue.Declare`."""
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Publish:
    """A message."""

    connection: int
    channel: int
    exchange: str
    routing_key: str
    body: str
    mandatory: bool = False
    immediate: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settle:
    """An answer to a delivery, or to a tag that was never delivered."""

    connection: int
    channel: int
    how: Literal["Ack", "Nack", "Reject"]
    nth: int
    """Of the channel's unsettled deliveries, the oldest first and the last if there are fewer; without any, nothing is
    settled. -1 is tag 0, and -2 an unknown tag."""
    multiple: bool = False
    requeue: bool = True


@dataclass(frozen=True, slots=True)
class Leave:
    """The end of a connection, in order or without a word."""

    connection: int
    abrupt: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the management API; the path is relative to `/api/`."""

    method: str
    path: str
    body: Any = None
    user: str = "guest"


@dataclass(frozen=True, slots=True)
class Drain:
    """All that is ready in a queue is taken."""

    queue: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Time passes: what expires soon expires."""

    milliseconds: int


Step = Call | Publish | Settle | Leave | Request | Drain | Wait
