"""The headers of a message that died in a queue, by octets: all that its publisher wrote stays as it was.

The first entry of the header `x-death` names the reason and the queue of the last death; there is one entry for each
queue and reason, with a count. `x-first-death-*` never change after the first death.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from leveret.core.queues.quorum_queue import DELIVERY_COUNT
from leveret.wire import properties as props
from leveret.wire import tables

_DEATHS: Final = b"x-death"
_CARBON_COPIES: Final = b"CC"
_COUNT: Final = b"count"
_QUEUE: Final = b"queue"
_REASON: Final = b"reason"
_EXCHANGE: Final = b"exchange"
_FIRST: Final = {b"x-first-death-" + name: name for name in (_EXCHANGE, _QUEUE, _REASON)}
_CHANGED: Final = frozenset({_DEATHS, _CARBON_COPIES, DELIVERY_COUNT, *_FIRST})
"""The headers that a death changes, or that decide where the message goes."""
_DEATH_MARK: Final = b"-de"
_COPIES_MARK: Final = props.shortstr(_CARBON_COPIES)
"""Each of these headers has one of the marks in its octets: most messages have neither mark, and no such header."""
_EXPIRATION: Final = props.EXPIRATION >> 8
_REJECTED: Final = tables.long_string(b"rejected")
_CONTENT_AT: Final = 5
"""Where a value that is a long string or a table has its octets."""
_COUNT_MAX: Final = 2**63 - 1
_SHORT_STRING_MAX: Final = 255


class DeadMessage(NamedTuple):
    """A dead message as it is published again, without its body.

    Attributes:
        route: exchange and routing key as two short strings.
        header: its content header behind its length.
        copies: the routing keys of its carbon copies.
        ended_in: the queues in which it died, since a consumer rejected it last: it must not come back to them.
    """

    route: bytes
    header: bytes
    copies: Sequence[bytes]
    ended_in: tuple[bytes, ...]


class Death:
    """The death of messages of one queue, for one reason, at one time.

    Args:
        exchange, routing_key: where they are published; `routing_key` None keeps the key of each.
    """

    def __init__(self, queue: str, reason: str, now_s: int, exchange: str, routing_key: str | None) -> None:
        self._queue = tables.long_string(queue.encode())
        self._reason = tables.long_string(reason.encode())
        self._time = tables.timestamp(now_s)
        self._exchange = props.shortstr(exchange.encode())
        # A policy's key may be longer than a message's can be.
        self._key = None if routing_key is None else props.shortstr(routing_key.encode()[:_SHORT_STRING_MAX])
        self._ended_in = _ended_in([{_QUEUE: self._queue, _REASON: self._reason}])
        self._firsts: dict[tuple[bytes, bytes | None], tuple[bytes, bytes]] = {}
        """Route and headers of a first death, by route and expiration, which repeat where messages differ."""

    def of(self, route: bytes, header: bytes) -> DeadMessage:
        """A message that dies; `route` and `header` are as in DeadMessage.

        A time to live of its own is in the entry of `x-death`, and no longer a property.
        """
        expiration = None
        if header[props.FLAGS_AT] & _EXPIRATION:
            header, expiration = _without_expiration(header)
        if header.find(_DEATH_MARK) >= 0 or header.find(_COPIES_MARK) >= 0:
            return self._changed(route, header, expiration)
        first = self._firsts.get((route, expiration)) or self._first(route, expiration)
        return DeadMessage(first[0], props.with_more_headers(header, first[1]), (), self._ended_in)

    def _first(self, route: bytes, expiration: bytes | None) -> tuple[bytes, bytes]:
        found = self._route(route), self._first_death(self._entry(route, [], expiration))
        self._firsts[route, expiration] = found
        return found

    def _route(self, route: bytes) -> bytes:
        return self._exchange + (self._key or route[1 + route[0] :])

    def _changed(self, route: bytes, header: bytes, expiration: bytes | None) -> DeadMessage:
        """As `of`, of a message that may have headers that change."""
        payload = header[4:]
        place = props.place_of(payload, props.HEADERS)
        table, changed = _without(payload[place[0] + 4 : place[1]])
        texts: list[bytes] = []
        if carbon := changed.get(_CARBON_COPIES):
            texts = [value for value in _array(carbon) if value[:1] == b"S"]
        earlier = changed.get(_DEATHS)
        entry = self._entry(route, texts, expiration)
        if earlier is None:
            added, ended_in = self._first_death(entry), self._ended_in
        else:
            kept = {name: changed[name] for name in _FIRST if name in changed}
            deaths, octets = self._deaths(entry, earlier)
            added = tables.join(kept | {_DEATHS: tables.array(octets)})
            ended_in = _ended_in(deaths)
        if self._key is None and carbon:
            table += tables.join({_CARBON_COPIES: carbon})
        dead = props.with_headers(payload, place, table + added)
        # The keys are taken apart once, because there may be 20,000.
        copies = [text[_CONTENT_AT:] for text in texts] if self._key is None else []
        return DeadMessage(self._route(route), props.sized(dead), copies, ended_in)

    @staticmethod
    def _first_death(entry: dict[bytes, bytes]) -> bytes:
        """The headers of a message that never died before."""
        headers = {name: entry[of] for name, of in _FIRST.items()}
        return tables.join(headers | {_DEATHS: tables.array([tables.table(entry)])})

    def _entry(self, route: bytes, texts: list[bytes], expiration: bytes | None) -> dict[bytes, bytes]:
        """This death as an entry of `x-death`."""
        behind = 1 + route[0]
        entry = {
            _COUNT: tables.long_integer(1),
            _REASON: self._reason,
            _QUEUE: self._queue,
            b"time": self._time,
            _EXCHANGE: tables.long_string(route[1:behind]),
            b"routing-keys": tables.array([tables.long_string(route[behind + 1 :]), *texts]),
        }
        if expiration is not None:
            entry[b"original-expiration"] = tables.long_string(expiration)
        return entry

    def _deaths(
        self, death: dict[bytes, bytes], earlier: bytes
    ) -> tuple[list[dict[bytes, bytes]], list[bytes]]:
        """All deaths of a message, and their octets; this one first. One of the same queue and reason counts again."""
        others: list[dict[bytes, bytes]] = []
        octets: list[bytes] = []
        for value in _array(earlier):
            if value[:1] == b"F":
                entry = _table(value[_CONTENT_AT:])
                if entry.get(_QUEUE) == self._queue and entry.get(_REASON) == self._reason:
                    count = tables.integer_of(entry.get(_COUNT, b"")) or 0
                    death = entry | {_COUNT: tables.long_integer(min(count + 1, _COUNT_MAX))}
                else:
                    others.append(entry)
                    octets.append(value)
        return [death, *others], [tables.table(death), *octets]


def _ended_in(deaths: list[dict[bytes, bytes]]) -> tuple[bytes, ...]:
    """See DeadMessage; `deaths` are the entries of `x-death`."""
    queues: list[bytes] = []
    for entry in deaths:
        if entry.get(_REASON) == _REJECTED:
            break
        queues.append(tables.text_of(entry.get(_QUEUE, b"")) or b"")
    return tuple(queues)


def _without_expiration(header: bytes) -> tuple[bytes, bytes]:
    """A content header behind its length without its expiration, and that."""
    payload = header[4:]
    start, stop = props.place_of(payload, props.EXPIRATION)
    return props.sized(props.without(payload, props.EXPIRATION)), payload[start + 1 : stop]


def carbon_copies(headers: dict[bytes, bytes]) -> list[bytes]:
    """The routing keys in the header CC."""
    return tables.texts_of(_array(headers.get(_CARBON_COPIES, b"")))


def header_entries(header: bytes) -> dict[bytes, bytes]:
    """The headers of a content header by octets, as from tables.split; none if they are no table."""
    return _table(props.split(header).get(props.HEADERS, b""))


def _without(table: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """The headers that a death leaves as they are, and the others; none of octets that are no table."""
    try:
        return tables.without(table, _CHANGED)
    except props.SyntaxFault:
        return b"", {}


def _table(octets: bytes) -> dict[bytes, bytes]:
    """A table's entries; none if the octets are no table, because publishers may send anything."""
    try:
        return tables.split(octets)
    except props.SyntaxFault:
        return {}


def _array(value: bytes) -> list[bytes]:
    """An array's values; none if the octets are no array."""
    try:
        return tables.split_array(value)
    except props.SyntaxFault:
        return []
