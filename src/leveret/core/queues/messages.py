"""Messages by columns: the form in which queues gather messages, logs store them, and consumers receive them.

A message is a *route* (exchange and routing key, as two short strings), a *header* (the content header's payload,
preceded by its length) and a *body*. Only properties that a broker needs are decoded: the time to live and the
priority, which all messages of one `Messages` share, and whether any of the messages is persistent. Everything else
stays opaque octets, as received.

Clients that send messages of one kind repeat route and header. Then one `Head` stands for all of the messages, and the
columns are the bodies alone. This case costs a third of the general one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from operator import add, attrgetter
from struct import Struct
from typing import Final

from leveret.core.queues.head import Head, head_of_octets
from leveret.wire.chunk import PIECE_BYTES_MIN
from leveret.wire.properties import is_persistent

_ALIKE_MIN: Final = 8
"""The number from which on like messages are cheaper as a group of their own."""
MESSAGE_OVERHEAD_BYTES: Final = 64
"""The memory of a message beside its octets, about."""
RUN_COSTS: Final = 32
"""The cost of delivering a run beside its messages, in like messages."""
DIFFERENT_COSTS: Final = 4
"""The cost of delivering a message of a run without a common head, in like messages."""
_LARGE_BYTES: Final = 2 * PIECE_BYTES_MIN
"""The average size from which bodies are pieces of a chunk: the octets before each body are another one."""
_pack_size = Struct(">I").pack
_SIZE_BYTES: Final = 4


class Messages:
    """Messages with one time to live and one priority, in order.

    The lists belong to the object and never change, so that queues, logs and deliveries may share them.

    Attributes:
        head: the head of all of them; None if they differ. routes, headers: one a message if they differ, else empty.
        bodies: one a message.
        body_bytes: the octets of all bodies.
        expiration_ms: their own time to live, None for none.
        priority: the priority of each message.
    """

    __slots__ = (
        "_header_bytes",
        "_is_persistent",
        "bodies",
        "body_bytes",
        "expiration_ms",
        "head",
        "headers",
        "priority",
        "routes",
    )

    def __init__(
        self,
        routes: list[bytes],
        headers: list[bytes],
        bodies: list[bytes],
        *,
        head: Head | None = None,
        body_bytes: int | None = None,
        expiration_ms: int | None = None,
        priority: int = 0,
        is_persistent: bool | None = None,
    ) -> None:
        """Take columns of one length; `is_persistent` None means unknown."""
        self.routes = routes
        self.headers = headers
        self.bodies = bodies
        self.head = head
        self.body_bytes = sum(map(len, bodies)) if body_bytes is None else body_bytes
        self.expiration_ms = expiration_ms
        self.priority = priority
        self._is_persistent = is_persistent
        self._header_bytes = -1

    def __len__(self) -> int:
        """The number of messages."""
        return len(self.bodies)

    @property
    def is_persistent(self) -> bool:
        """Whether any message is persistent."""
        if self._is_persistent is None:
            self._is_persistent = any(is_persistent(header[_SIZE_BYTES:]) for header in self.headers)
        return self._is_persistent

    # -- parts --------------------------------------------------------------------------------

    def cut(self, start: int, stop: int) -> Messages:
        """The messages from index `start` up to, not including, `stop`."""
        if stop - start == len(self.bodies):
            return self
        head, bodies = self.head, self.bodies[start:stop]
        return Messages(
            self.routes[start:stop],
            self.headers[start:stop],
            bodies,
            head=head,
            body_bytes=None if head is None else len(bodies) * head.body_bytes,
            expiration_ms=self.expiration_ms,
            priority=self.priority,
            is_persistent=self._is_persistent,
        )

    def header_bytes_between(self, start: int, stop: int) -> int:
        """Octets of their headers from index `start` up to `stop`; a publisher may write 128 KiB in each."""
        if self.head is not None:
            return (stop - start) * len(self.head.header)
        if stop - start < len(self.headers):
            return sum(map(len, self.headers[start:stop]))
        if self._header_bytes < 0:
            self._header_bytes = sum(map(len, self.headers))
        return self._header_bytes

    def bytes_between(self, start: int, stop: int) -> int:
        """The octets of the bodies from index `start` up to `stop`."""
        if stop - start == len(self.bodies):
            return self.body_bytes
        if self.head is not None:
            return (stop - start) * self.head.body_bytes
        return sum(map(len, self.bodies[start:stop]))

    def fitting(self, start: int, stop: int, octets: int) -> int:
        """The number of messages from index `start` on that fit into `octets` with their headers; one at least."""
        if self.head is not None:
            return min(stop - start, max(1, octets // (self.head.body_bytes + len(self.head.header))))
        if self.bytes_between(start, stop) + self.header_bytes_between(start, stop) <= octets:
            return stop - start
        headers, bodies = self.headers[start:stop], self.bodies[start:stop]
        totals = accumulate(map(add, map(len, headers), map(len, bodies)))
        return max(1, next((count for count, total in enumerate(totals) if total > octets), stop - start))

    def parts(self, count_max: int, octets_max: int) -> Iterator[Messages]:
        """The messages in parts of limited count and octets; a larger single message is a part of its own."""
        if len(self) <= count_max and self.entry_bytes <= octets_max:
            yield self
            return
        start = 0
        while start < len(self):
            part = self.cut(start, min(len(self), start + count_max))
            while len(part) > 1 and part.entry_bytes > octets_max:
                part = part.cut(0, len(part) // 2)
            yield part
            start += len(part)

    def head_at(self, index: int) -> Head:
        """The head of one message."""
        if self.head is not None:
            return self.head
        return head_of_octets(self.routes[index], self.headers[index][_SIZE_BYTES:])

    def prelude_at(self, index: int) -> tuple[bytes, bytes]:
        """Route and header of one message."""
        if self.head is not None:
            return self.head.route, self.head.sized_header
        return self.routes[index], self.headers[index]

    def groups(self) -> Iterable[tuple[bytes, bytes, Sequence[bytes]]]:
        """Groups of like messages by route, header, and bodies: all of them, or each message alone if they differ."""
        if self.head is not None:
            return ((self.head.route, self.head.sized_header, self.bodies),)
        return zip(self.routes, self.headers, zip(self.bodies, strict=True), strict=True)

    def by_head(self) -> Iterator[tuple[Head, list[bytes]]]:
        """Groups of like messages with their head, for callers that need each head."""
        if self.head is not None:
            yield self.head, self.bodies
            return
        for route, header, bodies in self.by_route():
            yield head_of_octets(route, header), bodies

    def by_route(self) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
        """Groups of like messages by route, content header's payload, and bodies."""
        if self.head is not None:
            yield self.head.route, self.head.header, self.bodies
            return
        routes, headers, bodies = self.routes, self.headers, self.bodies
        start, count = 0, len(bodies)
        while start < count:
            route, header, stop = routes[start], headers[start], start + 1
            while stop < count and headers[stop] == header and routes[stop] == route:
                stop += 1
            yield route, header[_SIZE_BYTES:], bodies[start:stop]
            start = stop

    # -- as they stand in a log ---------------------------------------------------------------

    @property
    def entry_bytes(self) -> int:
        """The octets of `entries`."""
        count = len(self.bodies)
        if self.head is not None:
            return count * len(self.head.entry) + self.body_bytes
        return (
            count * _SIZE_BYTES + sum(map(len, self.routes)) + sum(map(len, self.headers)) + self.body_bytes
        )

    def entries(self) -> bytes:
        """The entries of a chunk (wire.chunk), each a stored message (wire.record)."""
        if self.head is not None:
            return self.head.entry.join([b"", *self.bodies])
        routes, headers, bodies = self.routes, self.headers, self.bodies
        sizes = map(add, map(add, map(len, routes), map(len, headers)), map(len, bodies))
        return b"".join(
            chain.from_iterable(zip(map(_pack_size, sizes), routes, headers, bodies, strict=True))
        )

    def pieces(self) -> list[bytes]:
        """The octets of `entries` in pieces: bodies that are large on average are not copied."""
        count = len(self.bodies)
        if self.body_bytes < _LARGE_BYTES * count:
            return [self.entries()]
        befores = (
            _pack_size(len(route) + len(header) + len(body)) + route + header
            for (route, header), body in zip(map(self.prelude_at, range(count)), self.bodies, strict=True)
        )
        return list(chain.from_iterable(zip(befores, self.bodies, strict=True)))


def alike(head: Head, bodies: list[bytes]) -> Messages:
    """Make messages of one head, which take over the list."""
    return Messages(
        [],
        [],
        bodies,
        head=head,
        body_bytes=len(bodies) * head.body_bytes,
        expiration_ms=head.expiration_ms,
        priority=head.priority,
        is_persistent=head.persistent,
    )


def joined(parts: Sequence[Messages]) -> list[Messages]:
    """The same messages in order, with neighbours joined if possible; large groups of like ones stay by themselves."""
    if len(parts) < 2:
        return list(parts)
    if not any(map(_head_of, parts)) and len(set(map(_terms_of, parts))) == 1:
        return [_one_of(list(parts))]
    found: list[Messages] = []
    group: list[Messages] = []
    alike_count = 0
    for part in parts:
        before = group[-1] if group else part
        if alike_count and part.head is before.head:
            alike_count += len(part)
        elif group and (
            alike_count >= _ALIKE_MIN
            or (part.head is not None and len(part) >= _ALIKE_MIN)
            or (part.expiration_ms, part.priority) != (before.expiration_ms, before.priority)
        ):
            found.append(_one_of(group))
            group, alike_count = [], _count_of_alike(part)
        else:
            alike_count = 0 if group else _count_of_alike(part)
        group.append(part)
    found.append(_one_of(group))
    return found


def _count_of_alike(part: Messages) -> int:
    return 0 if part.head is None else len(part)


def _one_of(group: list[Messages]) -> Messages:
    first = group[0]
    if len(group) == 1:
        return first
    bodies = list(chain.from_iterable(map(_bodies, group)))
    heads = set(map(_head_of, group))
    routes: Iterable[Iterable[bytes]] = map(_routes, group)
    headers: Iterable[Iterable[bytes]] = map(_headers, group)
    if heads != {None}:
        if len(heads) == 1 and first.head is not None:
            return alike(first.head, bodies)
        routes = [repeat(each.head.route, len(each)) if each.head else each.routes for each in group]
        headers = [repeat(each.head.sized_header, len(each)) if each.head else each.headers for each in group]
    return Messages(
        list(chain.from_iterable(routes)),
        list(chain.from_iterable(headers)),
        bodies,
        body_bytes=sum(map(_body_bytes, group)),
        expiration_ms=first.expiration_ms,
        priority=first.priority,
        is_persistent=True in map(_persistence, group) or any(map(_is_persistent, group)),
    )


_routes = attrgetter("routes")
_headers = attrgetter("headers")
_bodies = attrgetter("bodies")
_body_bytes = attrgetter("body_bytes")
_head_of = attrgetter("head")
_terms_of = attrgetter("expiration_ms", "priority")
_persistence = attrgetter("_is_persistent")
_is_persistent = attrgetter("is_persistent")


class Run:
    """Messages at consecutive offsets from `first` on, arrived in one chunk at `arrived_ms`.

    They are the messages from index `start` up to `stop` of `messages`: a run is cut without a copy.
    """

    __slots__ = ("arrived_ms", "body_bytes", "first", "messages", "start", "stop")

    def __init__(
        self,
        first: int,
        messages: Messages,
        arrived_ms: int = 0,
        start: int = 0,
        stop: int | None = None,
        body_bytes: int | None = None,
    ) -> None:
        """Take all of `messages` unless bounds are given; `body_bytes` are the octets between the bounds."""
        self.first = first
        self.messages = messages
        self.arrived_ms = arrived_ms
        self.start = start
        self.stop = len(messages) if stop is None else stop
        self.body_bytes = messages.bytes_between(start, self.stop) if body_bytes is None else body_bytes

    def __len__(self) -> int:
        """The number of messages."""
        return self.stop - self.start

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return self.first + self.stop - self.start

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the messages."""
        return self.messages.bodies[self.start : self.stop]

    @property
    def head(self) -> Head:
        """The head of the first message."""
        return self.messages.head_at(self.start)

    def holding(self, octets: int) -> int:
        """The least number of first messages whose bodies have at least `octets`; all if they have fewer."""
        sizes = accumulate(map(len, self.bodies))
        return next((count for count, total in enumerate(sizes, 1) if total >= octets), len(self))

    def taken(self) -> Messages:
        """The messages of the run alone."""
        return self.messages.cut(self.start, self.stop)

    def cut(self, first: int, end: int) -> Run:
        """The part from offset `first` up to, not including, `end`."""
        start = self.start + first - self.first
        stop = start + end - first
        if start == self.start and stop == self.stop:
            return self
        return Run(first, self.messages, self.arrived_ms, start, stop)

    def behind(self, part: Run) -> Run:
        """The rest behind `part`, which was cut from the front."""
        return Run(
            part.end, self.messages, self.arrived_ms, part.stop, self.stop, self.body_bytes - part.body_bytes
        )

    @property
    def header_bytes(self) -> int:
        """Octets of their headers."""
        return self.messages.header_bytes_between(self.start, self.stop)

    @property
    def octets(self) -> int:
        """Octets of their headers and bodies, as a consumer gets them."""
        return self.body_bytes + self.header_bytes

    @property
    def memory_bytes(self) -> int:
        """Octets that they take in memory, about: those that are alike have one header."""
        size = self.body_bytes + len(self) * MESSAGE_OVERHEAD_BYTES
        return size if self.messages.head is not None else size + self.header_bytes

    def fitting(self, octets: int) -> int:
        """The number of first messages that fit into `octets` with their headers; one at least."""
        return self.messages.fitting(self.start, self.stop, octets)


def count_of(runs: Iterable[Run]) -> int:
    """The number of messages."""
    return sum(map(len, runs))


def cost_of(run: Run) -> int:
    """The cost of delivering a run, in like messages."""
    return RUN_COSTS + (len(run) if run.messages.head is not None else len(run) * DIFFERENT_COSTS)


def bytes_of(runs: Iterable[Run]) -> int:
    """The size of all bodies, in octets."""
    return sum(map(_body_bytes, runs))
