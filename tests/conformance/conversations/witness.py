"""What one client connection sees, in words that do not differ between two brokers that behave alike.

Names that a broker chooses become their number in the conversation, times are left out, and frames are sorted into
streams whose order the protocol states: one for each consumer, one for answers, returns and confirms each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from pamqp import commands

Stream = tuple[int, int, str]
"""Connection, channel and kind of what comes."""
Events = dict[Stream, list[Any]]

_CHOSEN: Final = re.compile(r"amq\.(?:gen|ctag)-[\w-]+")
_REPLY_NAME: Final = re.compile(r"amq\.rabbitmq\.reply-to\.[\w.=+/@-]+")
_NUMBER_TYPES: Final = re.compile(
    r"(type '|field type |acceptable_type,|integer, got )"
    r"(?:byte|short|signedint|long|unsignedbyte|unsignedshort|unsignedint|float|double)"
)
"""The type of a number in a refusal is that of the client's encoding, or not: docs/deviations.md."""
TIMES: Final = frozenset({"time"})


@dataclass(slots=True)
class Names:
    """The names that a broker chose in a conversation, by the order of their appearance."""

    chosen: dict[str, str] = field(default_factory=dict)
    reply_name: str = "amq.rabbitmq.reply-to.none"

    def plain(self, text: str | None) -> str:
        """A text without chosen names."""
        text = text or ""
        replies = _REPLY_NAME.findall(text)
        if replies:
            self.reply_name = replies[-1]
            text = _REPLY_NAME.sub("$reply", text)
        text = _NUMBER_TYPES.sub(r"\1number", text)
        return _CHOSEN.sub(lambda found: self.chosen.setdefault(found[0], f"$name{len(self.chosen)}"), text)

    def value(self, value: Any) -> Any:
        """A field's value without chosen names and times."""
        if isinstance(value, str):
            return self.plain(value)
        if isinstance(value, dict):
            return {key: self.value(each) for key, each in sorted(value.items()) if key not in TIMES}
        if isinstance(value, list):
            return [self.value(each) for each in value]
        return value

    def properties(self, properties: commands.Basic.Properties) -> dict[str, Any]:
        """The properties that are there."""
        shown = {name: self.value(value) for name, value in properties if value not in (None, "")}
        headers = shown.get("headers")
        # 3.10 counts from the second delivery on (docs/deviations.md), and there may be no other header.
        if isinstance(headers, dict) and headers.get("x-delivery-count") == 0:
            del headers["x-delivery-count"]
        if headers == {}:
            del shown["headers"]
        return shown


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A delivery that waits for its acknowledgement."""

    step: int
    consumer: str
    tag: int


@dataclass(slots=True)
class ChannelView:
    """What a client knows of its channel."""

    last_tag: int = 0
    unsettled: list[Unsettled] = field(default_factory=list)
    settled_in_transaction: list[Unsettled] = field(default_factory=list)
    in_transaction: bool = False
    no_ack: set[str] = field(default_factory=set)
    published: int | None = None
    """How many since confirm.select."""
    unconfirmed: set[int] = field(default_factory=set)

    def in_order(self) -> list[Unsettled]:
        """The unsettled deliveries in an order that does not depend on how the broker mixed its consumers."""
        return sorted(self.unsettled, key=lambda one: (one.step, one.consumer, one.tag))

    def settle(self, tag: int, *, multiple: bool) -> None:
        """Note what a settlement takes."""
        up_to = tag if tag else self.last_tag
        taken = [one for one in self.unsettled if (one.tag <= up_to if multiple else one.tag == tag)]
        self.unsettled = [one for one in self.unsettled if one not in taken]
        if self.in_transaction:
            self.settled_in_transaction += taken

    def roll_back(self) -> None:
        """What was settled in the transaction is unsettled again."""
        self.unsettled += self.settled_in_transaction
        self.settled_in_transaction = []

    def confirmed(self, tag: int, *, multiple: bool) -> list[int]:
        """The publishes that a confirm is for."""
        of_it = sorted(one for one in self.unconfirmed if (one <= tag if multiple else one == tag))
        self.unconfirmed.difference_update(of_it)
        return of_it or [-tag]


class Witness:
    """Gathers what was seen on one side since both sides agreed last."""

    def __init__(self) -> None:
        self.names = Names()
        self.uncounted: set[str] = set()
        """Queues whose consumers the two brokers count differently."""
        self.streams: set[str] = set()
        self._events: Events = defaultdict(list)

    def note(self, connection: int, channel: int, kind: str, *what: Any) -> None:
        """Note an event at the end of its stream."""
        self._events[connection, channel, kind].append(what)

    def events(self) -> Events:
        """What was seen, sorted where the protocol leaves the order open.

        What still came on a connection that the broker ends depends on its timing.
        """
        ended = {connection for connection, channel, _ in self._events if not channel}
        return {
            stream: sorted(events) if stream[2] == "confirms" else list(events)
            for stream, events in self._events.items()
            if stream[0] not in ended or not stream[1]
        }

    def agreed(self) -> None:
        """Both sides have seen the same: begin anew."""
        self._events.clear()
