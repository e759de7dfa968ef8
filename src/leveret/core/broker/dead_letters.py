"""The route of messages that expired, were dropped or were rejected, and what is published of them again.

RabbitMQ's rules apply: a message that returns to a queue in which it died before is dropped there, unless a consumer
rejected the message on the way (`deaths`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from itertools import groupby
from typing import Any, NamedTuple

from leveret.core.broker.broker import Broker
from leveret.core.broker.deaths import DeadMessage, Death
from leveret.core.broker.routing import MessageHeaders, TooManyPatterns
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.dead_lettering import NOT_STORED, DeadLetters
from leveret.core.queues.head import head_of_octets
from leveret.core.queues.messages import Messages, Run, alike
from leveret.core.queues.queue import UNBOUNDED, Queue
from leveret.core.rules.validation import queue_type
from leveret.wire.properties import SyntaxFault


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
    death = Death(name, letters.reason, now_s, exchange, settings.dead_letter_routing_key)
    targets, publishing = _Targets(broker, vhost, exchange), _Publishing(broker, letters.done)
    kind = queue_type(queue.definition.arguments)
    index = 0
    for run in letters.runs:
        broker.dead_lettered[kind, letters.reason] += len(run)
        for route, header, bodies in run.taken().by_route():
            dead = death.of(route, header)
            for target in targets.of(dead):
                if target.key[1].encode() not in dead.ended_in:
                    publishing.add(target, dead, bodies, index, run.messages.priority)
            index += len(bodies)
    return RoutedLetters(queue, letters, publishing.takers())


class _Targets:
    """The target queues of dead messages; they are looked for once for messages that differ in nothing but headers."""

    def __init__(self, broker: Broker, vhost: str, exchange: str) -> None:
        self._broker = broker
        self._vhost = vhost
        self._exchange = exchange
        self._known: dict[bytes, list[Queue]] = {}

    def of(self, dead: DeadMessage) -> list[Queue]:
        """The target queues by a message's routing key and its carbon copies."""
        if not dead.copies and (known := self._known.get(dead.route)) is not None:
            return known
        headers = MessageHeaders(dead.header)

        def readable(names: Container[bytes]) -> dict[str, Any]:
            try:
                return headers.read(names)
            except SyntaxFault:
                return {}

        # A key may be no text: then it equals no binding's key, but patterns and fanouts may match.
        octets = (dead.route[2 + dead.route[0] :], *dead.copies)
        key, *others = [each.decode(errors="surrogateescape") for each in octets]
        try:
            found = self._broker.route(self._vhost, self._exchange, key, readable, others)
        except TooManyPatterns:
            # Nobody can be told. Whoever publishes with such a key is refused.
            found = []
        if not (dead.copies or headers.asked):
            self._known[dead.route] = found
        return found


class _Column:
    """Adjacent letters for one target that differ from each other, from index `start` on."""

    __slots__ = ("bodies", "headers", "priority", "routes", "start")

    def __init__(self, start: int, priority: int) -> None:
        self.start = start
        self.priority = priority
        self.routes: list[bytes] = []
        self.headers: list[bytes] = []
        self.bodies: list[bytes] = []


class _Publishing:
    """The publishing of letters: those that differ are gathered in columns, because each part costs."""

    def __init__(self, broker: Broker, done: Set[DeliverySource]) -> None:
        self._broker = broker
        self._done = done
        self._columns: dict[Queue, _Column] = {}
        self._takers: dict[Queue, list[Taken]] = {}

    def add(self, target: Queue, dead: DeadMessage, bodies: list[bytes], index: int, priority: int) -> None:
        """Publish a group of like letters, from index `index` on, to one of its targets, as far as it has room."""
        if target in self._done:
            return
        room = target.room(len(bodies[0]))
        if len(bodies) > 1 or room < UNBOUNDED:
            self._end(target)
            if taken := bodies[:room]:
                self._publish(target, index, alike(head_of_octets(dead.route, dead.header), taken))
            return
        column = self._columns.get(target)
        if column is None or (column.start + len(column.bodies), column.priority) != (index, priority):
            self._end(target)
            column = self._columns[target] = _Column(index, priority)
        column.routes.append(dead.route)
        column.headers.append(len(dead.header).to_bytes(4, "big") + dead.header)
        column.bodies += bodies

    def takers(self) -> dict[Queue, list[Taken]]:
        """What each target got of all letters; there are no further ones."""
        for target in [*self._columns]:
            self._end(target)
        return self._takers

    def _end(self, target: Queue) -> None:
        column = self._columns.pop(target, None)
        if column is not None:
            messages = Messages(column.routes, column.headers, column.bodies, priority=column.priority)
            self._publish(target, column.start, messages)

    def _publish(self, target: Queue, start: int, messages: Messages) -> None:
        target.gathered.add(messages)
        self._takers.setdefault(target, []).append(Taken(start, len(messages), target.place))
        self._broker.dirty[target] = None
