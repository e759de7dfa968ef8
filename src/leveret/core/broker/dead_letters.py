"""The route of messages that expired, were dropped or were rejected, and what is published of them again.

RabbitMQ's rules apply: a message that returns to a queue in which it died before is dropped there, unless a consumer
rejected the message on the way (`deaths`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from itertools import groupby
from typing import Any, NamedTuple

from leveret.core.broker.broker import Broker
from leveret.core.broker.deaths import DeadMessage, Death
from leveret.core.broker.routing import MessageHeaders, TooManyPatterns
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.dead_lettering import NOT_STORED, DeadLetters
from leveret.core.queues.head import head_of_octets
from leveret.core.queues.messages import Messages, Run, alike, count_of
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import UNBOUNDED
from leveret.core.rules.queue_arguments import AT_LEAST_ONCE, AT_MOST_ONCE
from leveret.core.rules.validation import queue_type
from leveret.wire.properties import SyntaxFault


class Taken(NamedTuple):
    """What a target got together of some letters, as indices; `place` is that of the last one."""

    indices: Sequence[int]
    place: int

    @property
    def before(self) -> int:
        """The place before the first one."""
        return self.place - len(self.indices)


class RoutedLetters(NamedTuple):
    """Dead letters of a queue, and by target what was published of them; no target has them for sure yet.

    Attributes:
        keeps: whether the queue keeps letters until every target has them, and at least one has.
        lost: the letters that have no target, as indices.
        no_room: by target, the letters that it had no room for, as ranges of indices.
    """

    queue: Queue
    letters: DeadLetters
    takers: dict[Queue, list[Taken]]
    keeps: bool = False
    lost: Sequence[int] = ()
    no_room: Mapping[Queue, list[tuple[int, int]]] = {}

    @property
    def needs_repeat(self) -> bool:
        """Whether letters have to be published again, whatever their targets do."""
        return bool(self.lost or self.no_room)

    @property
    def why_repeated(self) -> str:
        """The words for that in a log; empty if it is not so."""
        exchange = self.queue.settings.dead_letter_exchange or ""
        if self.lost:
            return f"exchange '{exchange}' does not exist, or has no queue for them that they may go to"
        if self.no_room:
            return f"queue '{next(iter(self.no_room)).key[1]}' is full"
        return ""

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
        taken: list[Run] = []
        again: list[DeadLetters] = []
        fates = self._fates(refused)
        at = 0
        for run in self.letters.runs:
            end = at + len(run)
            for (is_missing, has), group in groupby(range(at, end), lambda index: fates[index].key):
                indices = list(group)
                part = _part(run, indices[0] - at, indices[-1] + 1 - at)
                if is_missing:
                    done = self.letters.done | has
                    again.append(self.letters._replace(runs=[part], done=done, is_again=True))
                else:
                    taken.append(part)
            at = end
        return taken, again

    def _fates(self, refused: Mapping[Queue, Iterable[tuple[int, int]]]) -> list[_Fate]:
        fates = [_Fate() for run in self.letters.runs for _ in range(len(run))]
        for target, parts in self.takers.items():
            ranges = list(refused.get(target, ()))
            for part in parts:
                for index in part.indices:
                    fates[index].has.add(target)
                for since, last in ranges:
                    for number in range(max(part.before, since), min(part.place, last)):
                        fates[part.indices[number - part.before]].misses(target)
        for target, refusals in self.no_room.items():
            for first, last in refusals:
                for fate in fates[first:last]:
                    fate.misses(target)
        # RabbitMQ's rule: a letter whose routes are gone meanwhile, and that one target has, is done.
        if not self.letters.done:
            for index in self.lost:
                fates[index].is_missing = True
        return fates


class _Fate:
    """What became of one letter: the targets that have it, and whether another one does not."""

    __slots__ = ("has", "is_missing")

    def __init__(self) -> None:
        self.has: set[Queue] = set()
        self.is_missing = False

    def misses(self, target: Queue) -> None:
        """Note a target that does not have it."""
        self.has.discard(target)
        self.is_missing = True

    @property
    def key(self) -> tuple[bool, frozenset[Queue]]:
        """Adjacent letters of one key are handled together; what has all is so, whoever has it."""
        return self.is_missing, frozenset(self.has) if self.is_missing else frozenset()


def _part(run: Run, start: int, stop: int) -> Run:
    """A part of a run by indices; one that was never in a log stays so."""
    part = run.cut(run.first + start, run.first + stop)
    return Run(NOT_STORED, part.taken()) if run.first == NOT_STORED else part


def route_dead_letters(broker: Broker, queue: Queue, letters: DeadLetters, now_s: int) -> RoutedLetters:
    """Publish dead letters by the queue's settings.

    With at-most-once the messages are dropped if there is no dead letter exchange, if it routes them nowhere, or if a
    target that rejects publishes is full (RabbitMQ's rules). With at-least-once the queue keeps them.
    """
    settings, (vhost, name) = queue.settings, queue.key
    exchange, keeps = settings.dead_letter_exchange, queue.dead_lettering.keeps
    # To look for an exchange that is being deleted may delete it.
    is_missing = vhost not in broker.topologies or broker.find_exchange(vhost, exchange or "") is None
    if exchange is None or (is_missing and not keeps):
        return RoutedLetters(queue, letters, {})
    if not letters.is_again:
        strategy = AT_LEAST_ONCE if keeps else AT_MOST_ONCE
        kind = queue_type(queue.definition.arguments)
        broker.dead_lettered[kind, strategy, letters.reason] += count_of(letters.runs)
    if is_missing:
        return RoutedLetters(queue, letters, {}, keeps, range(count_of(letters.runs)))
    death = Death(name, letters.reason, now_s, exchange, settings.dead_letter_routing_key)
    targets, publishing = _Targets(broker, vhost, exchange), _Publishing(broker, letters.done)
    lost: list[int] = []
    index = 0
    for run in letters.runs:
        publishing.turn_to(run.messages.priority)
        for route, header, bodies in run.taken().groups():
            dead = death.of(route, header)
            found = targets.of(dead)
            publishing.add(found, dead, bodies, index)
            if keeps and not found:
                lost += range(index, index + len(bodies))
            index += len(bodies)
    takers = publishing.takers()
    return RoutedLetters(queue, letters, takers, keeps, tuple(lost), publishing.no_room if keeps else {})


class _Targets:
    """The target queues of dead messages; they are looked for once for messages that differ in nothing but headers."""

    def __init__(self, broker: Broker, vhost: str, exchange: str) -> None:
        self._broker = broker
        self._vhost = vhost
        self._exchange = exchange
        self._known: dict[tuple[bytes, tuple[bytes, ...]], list[Queue]] = {}

    def of(self, dead: DeadMessage) -> list[Queue]:
        """The target queues by a message's routing key and its carbon copies, but those that it must not come back to.

        The same list for all messages that differ in nothing but headers.
        """
        found = None if dead.copies else self._known.get((dead.route, dead.ended_in))
        return self._find(dead) if found is None else found

    def _find(self, dead: DeadMessage) -> list[Queue]:
        headers = MessageHeaders(dead.header[4:])

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
        found = [queue for queue in found if queue.key[1].encode() not in dead.ended_in]
        if not (dead.copies or headers.asked):
            self._known[dead.route, dead.ended_in] = found
        return found


class _Columns:
    """Letters that differ, for the same targets, and their indices."""

    __slots__ = ("bodies", "headers", "indices", "routes")

    def __init__(self) -> None:
        self.routes: list[bytes] = []
        self.headers: list[bytes] = []
        self.bodies: list[bytes] = []
        self.indices: list[int] = []

    def extend(self, others: _Columns) -> None:
        """Add letters behind these."""
        self.routes += others.routes
        self.headers += others.headers
        self.bodies += others.bodies
        self.indices += others.indices


class _Publishing:
    """The publishing of letters: those that differ are gathered in columns for each target, because each part costs.

    Attributes:
        no_room: see RoutedLetters.
    """

    def __init__(self, broker: Broker, done: Set[DeliverySource]) -> None:
        self._broker = broker
        self._done = done
        self._priority = 0
        self._targets: list[Queue] = []
        self._last = _Columns()
        """The last letters, which have these targets."""
        self._columns: dict[Queue, _Columns] = {}
        self.no_room: dict[Queue, list[tuple[int, int]]] = {}
        self._takers: dict[Queue, list[Taken]] = {}

    def turn_to(self, priority: int) -> None:
        """Take letters of another priority from now on."""
        if priority != self._priority:
            self._end_all()
            self._priority = priority

    def add(self, targets: list[Queue], dead: DeadMessage, bodies: Sequence[bytes], index: int) -> None:
        """Publish a group of like letters, from index `index` on, to their targets."""
        if targets is not self._targets:
            self._deal()
            self._targets = targets
        last = self._last
        if len(bodies) > 1:
            self._deal()
            for target in targets:
                self._add_alike(target, dead.route, dead.header, bodies, index)
            return
        last.routes.append(dead.route)
        last.headers.append(dead.header)
        last.bodies += bodies
        last.indices.append(index)

    def _deal(self) -> None:
        """Give the last letters to their targets."""
        last = self._last
        if not last.indices:
            return
        self._last = _Columns()
        for target in self._targets:
            # Without a limit there is room for any number of bodies, be they as long as they are.
            if target.room(1) >= UNBOUNDED:
                if target not in self._done:
                    self._columns.setdefault(target, _Columns()).extend(last)
                continue
            for at, index in enumerate(last.indices):
                self._add_alike(target, last.routes[at], last.headers[at], last.bodies[at : at + 1], index)

    def _add_alike(
        self, target: Queue, route: bytes, header: bytes, bodies: Sequence[bytes], index: int
    ) -> None:
        """Publish like letters to a target, as far as it has room."""
        if target in self._done:
            return
        self._end(target)
        taken = list(bodies[: target.room(len(bodies[0]))])
        if taken:
            end = index + len(taken)
            self._publish(target, range(index, end), alike(head_of_octets(route, header[4:]), taken))
        if len(taken) < len(bodies):
            self.no_room.setdefault(target, []).append((index + len(taken), index + len(bodies)))

    def takers(self) -> dict[Queue, list[Taken]]:
        """What each target got of all letters; there are no further ones."""
        self._end_all()
        return self._takers

    def _end_all(self) -> None:
        self._deal()
        for target in [*self._columns]:
            self._end(target)

    def _end(self, target: Queue) -> None:
        columns = self._columns.pop(target, None)
        if columns is not None:
            messages = Messages(columns.routes, columns.headers, columns.bodies, priority=self._priority)
            self._publish(target, columns.indices, messages)

    def _publish(self, target: Queue, indices: Sequence[int], messages: Messages) -> None:
        target.gathered.add(messages)
        self._takers.setdefault(target, []).append(Taken(indices, target.place))
        self._broker.dirty[target] = None
