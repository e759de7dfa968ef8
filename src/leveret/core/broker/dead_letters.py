"""Dead letters: the headers and the route of a message that expired, was dropped or was rejected.

RabbitMQ's rules apply. The first entry of the header `x-death` names the reason and the queue of the last death; there
is one entry for each queue and reason, with a count. `x-first-death-*` never change after the first death. A message
that returns to a queue in which it died before is dropped there, unless a consumer rejected the message on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from leveret.core.broker.broker import Broker
from leveret.core.queues.dead_lettering import NOT_STORED, DeadLetters
from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import Run, alike
from leveret.core.queues.queue import Queue
from leveret.core.queues.quorum_queue import DELIVERY_COUNT
from leveret.core.rules.validation import queue_type
from leveret.wire import properties as props
from leveret.wire import tables

_DEATHS: Final = b"x-death"
_CARBON_COPIES: Final = b"CC"
_TEXT_BEGINS: Final = 5
"""Where a long string value has its octets."""
_COUNT_MAX: Final = 2**63 - 1
_SHORT_STRING_MAX: Final = 255


def dead_letter(
    head: Head, queue: str, reason: str, now_s: int, exchange: str, routing_key: str | None
) -> tuple[Head, list[bytes]]:
    """The head of a dead-lettered message published to `exchange`, and the keys of its carbon copies.

    `routing_key` None keeps the message's own key. The keys are taken apart once, because there may be 20,000.
    """
    properties = props.split(head.header)
    headers = _table(properties.get(props.HEADERS, b""))
    texts = [value for value in _array(headers.get(_CARBON_COPIES, b"")) if value[:1] == b"S"]
    death = {
        b"count": tables.long_integer(1),
        b"reason": tables.long_string(reason.encode()),
        b"queue": tables.long_string(queue.encode()),
        b"time": tables.timestamp(now_s),
        b"exchange": tables.long_string(head.exchange),
        b"routing-keys": tables.array([tables.long_string(head.routing_key), *texts]),
    }
    expiration = properties.pop(props.EXPIRATION, None)
    if expiration is not None:
        death[b"original-expiration"] = tables.long_string(expiration)
    _note_death(headers, death)
    headers.pop(DELIVERY_COUNT, None)
    key = head.routing_key
    if routing_key is not None:
        # A policy's key may be longer than a message's can be.
        key = routing_key.encode()[:_SHORT_STRING_MAX]
        headers.pop(_CARBON_COPIES, None)
        texts = []
    properties[props.HEADERS] = tables.join(headers)
    dead = make_head(exchange.encode(), key, props.join(properties, head.body_bytes))
    return dead, [text[_TEXT_BEGINS:] for text in texts]


def _note_death(headers: dict[bytes, bytes], death: dict[bytes, bytes]) -> None:
    """Put a death first in `x-death`, or count up the entry of the same queue and reason."""
    others: list[bytes] = []
    if _DEATHS not in headers:
        headers.update({b"x-first-death-" + name: death[name] for name in (b"exchange", b"queue", b"reason")})
    for value in _deaths(headers):
        entry = _table(tables.table_of(value) or b"")
        if entry.get(b"queue") == death[b"queue"] and entry.get(b"reason") == death[b"reason"]:
            count = tables.integer_of(entry.get(b"count", b"")) or 0
            death = entry | {b"count": tables.long_integer(min(count + 1, _COUNT_MAX))}
        else:
            others.append(value)
    headers[_DEATHS] = tables.array([tables.table(death), *others])


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


def _deaths(headers: dict[bytes, bytes]) -> list[bytes]:
    return [value for value in _array(headers.get(_DEATHS, b"")) if value[:1] == b"F"]


def carbon_copies(headers: dict[bytes, bytes]) -> list[bytes]:
    """The routing keys in the header CC."""
    return tables.texts_of(_array(headers.get(_CARBON_COPIES, b"")))


def is_cycle(head: Head, queue: str) -> bool:
    """Whether the messages died in `queue` before, and no consumer has rejected them since."""
    for value in _deaths(header_entries(head)):
        entry = _table(tables.table_of(value) or b"")
        if tables.text_of(entry.get(b"reason", b"")) == b"rejected":
            return False
        if tables.text_of(entry.get(b"queue", b"")) == queue.encode():
            return True
    return False


class Taken(NamedTuple):
    """What a target got of some letters: `many` of them, from the `start`th on; `place` is that of the last one."""

    start: int
    many: int
    place: int


class RoutedLetters(NamedTuple):
    """Dead letters of a queue, and by target what was published of them; no target has them for sure yet."""

    queue: Queue
    letters: DeadLetters
    takers: dict[Queue, list[Taken]]

    def parted(
        self, refused: Mapping[Queue, Iterable[tuple[int, int]]]
    ) -> tuple[list[Run], list[DeadLetters]]:
        """Part the letters by what their targets did not take.

        A letter that a target has must not be published there again: it would be there twice.

        Args:
            refused: by target, what it did not take, as ranges of places: behind the first, up to the second.

        Returns:
            The messages that all targets have, and letters to publish again, for the targets that miss them.
        """
        runs = self.letters.runs
        missing: list[set[Queue]] = [set() for run in runs for _ in range(len(run))]
        for target, ranges in refused.items():
            for start, many, place in self.takers.get(target, ()):
                before = place - many
                for since, last in ranges:
                    for number in range(max(before, since), min(place, last)):
                        missing[start + number - before].add(target)
        taken: list[Run] = []
        again: list[DeadLetters] = []
        at = 0
        for run in runs:
            end = at + len(run)
            for targets, group in groupby(range(at, end), missing.__getitem__):
                indices = list(group)
                part = _part(run, indices[0] - at, indices[-1] + 1 - at)
                if targets:
                    done = self.letters.done | (self.takers.keys() - targets)
                    again.append(self.letters._replace(runs=[part], done=done))
                else:
                    taken.append(part)
            at = end
        return taken, again


def _part(run: Run, start: int, stop: int) -> Run:
    """A part of a run by indices; one that was never in a log stays so."""
    part = run.cut(run.first + start, run.first + stop)
    return Run(NOT_STORED, part.taken()) if run.first == NOT_STORED else part


def route_dead_letters(broker: Broker, queue: Queue, letters: DeadLetters, now_s: int) -> RoutedLetters:
    """Publish dead letters by the queue's settings.

    The messages are dropped if there is no dead letter exchange, if it routes them nowhere, or if a target that
    rejects publishes is full (RabbitMQ's rules).
    """
    settings, (vhost, name) = queue.settings, queue.key
    exchange = settings.dead_letter_exchange
    # To look for an exchange that is being deleted may delete it.
    if exchange is None or vhost not in broker.topologies or broker.find_exchange(vhost, exchange) is None:
        return RoutedLetters(queue, letters, {})
    takers: dict[Queue, list[Taken]] = {}
    index = 0
    kind = queue_type(queue.definition.arguments)
    for run in letters.runs:
        broker.dead_lettered[kind, letters.reason] += len(run)
        for each, bodies in run.taken().by_head():
            head, copies = dead_letter(
                each, name, letters.reason, now_s, exchange, settings.dead_letter_routing_key
            )
            for target in _targets(broker, vhost, exchange, head, copies):
                if letters.reason != "rejected" and is_cycle(head, target.key[1]):
                    continue
                taken = bodies[: target.room(head.body_bytes)]
                if taken and target not in letters.done:
                    target.gathered.add(alike(head, taken))
                    takers.setdefault(target, []).append(Taken(index, len(taken), target.place))
                    broker.dirty[target] = None
            index += len(bodies)
    return RoutedLetters(queue, letters, takers)


def _targets(broker: Broker, vhost: str, exchange: str, head: Head, copies: list[bytes]) -> list[Queue]:
    """The target queues by the message's routing key and its carbon copies."""
    # A key may be no text: then it equals no binding's key, but patterns and fanouts may match.
    key, *others = [each.decode(errors="surrogateescape") for each in (head.routing_key, *copies)]
    return broker.route(vhost, exchange, key, lambda: _readable_headers(head.header), others)


def header_entries(head: Head) -> dict[bytes, bytes]:
    """The headers by octets, as from tables.split; none if they are no table."""
    return _table(props.split(head.header).get(props.HEADERS, b""))


def _readable_headers(header: bytes) -> dict[str, Any]:
    try:
        return props.headers_of(header)
    except props.SyntaxFault:
        return {}
