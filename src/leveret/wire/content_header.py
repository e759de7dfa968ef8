"""The properties that a broker reads when a message is published; the rest of its content header is opaque.

    +-------+--------+-----------+-------+--------------------------------------------------------+
    | class | weight | body size | flags | the properties whose flag is set, highest flag first   |
    | u16   | u16    | u64       | u16   | (spec 4.2.6.1, wire.properties)                        |
    +-------+--------+-----------+-------+--------------------------------------------------------+

The messages of an application differ in their properties, so each header is read: one walk over the lengths, without
copies.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.properties import SyntaxFault

KINDS_MAX: Final = 4096
"""The most kinds of headers of a reader; a bound on memory for headers whose lengths never repeat."""
LAYOUTS_MAX: Final = 4
"""The most layouts of one kind."""
PLACES_MAX: Final = 128
"""The most places of one layout: comparing more of them takes as long as a walk."""
PLACES_OF_ALL_MAX: Final = 65_536
"""The most places in all layouts of a reader; each takes 16 octets."""
_SHORT_STRINGS_FIRST: Final = (props.CONTENT_TYPE, props.CONTENT_ENCODING)
_AFTER_PRIORITY: Final = (
    props.CORRELATION_ID,
    props.REPLY_TO,
    props.EXPIRATION,
    props.MESSAGE_ID,
    props.TIMESTAMP,
    props.TYPE,
    props.USER_ID,
    props.APP_ID,
    props.CLUSTER_ID,
)
PERSISTENT: Final = 2
"""The delivery mode of messages that outlast a restart."""
DELIVERY_MODES: Final = (1, PERSISTENT)
NO_TERMS: Final = (b"", 0)
_REPEATED_BYTES_MAX: Final = 256
"""The most octets of a table that is decoded once for all messages that have it: 1,024 of them are known."""


class Traits(NamedTuple):
    """The properties that matter to a broker.

    `terms` are the expiration, as the publisher wrote it and empty for none, and the priority.
    """

    is_persistent: bool
    terms: tuple[bytes, int]


TRANSIENT: Final = Traits(False, NO_TERMS)
_PERSISTENT_ALONE: Final = Traits(True, NO_TERMS)


class HeaderReader:
    """Reads the headers of a node's publishers; a header of a known layout by one comparison.

    An application's headers differ in their values, and mostly have the same lengths and types in the same places. A
    **layout** is the octets at these places of a header that was walked through. A header with the same octets there is
    as well-formed, and has the same traits. The **kind** of a header is its length, the flags, and the octet behind
    the flags. That octet mostly is the length of the first property, in which headers of one length may differ.
    """

    __slots__ = ("_kinds", "_places")

    def __init__(self) -> None:
        """No layout is known yet."""
        self._kinds: dict[int, _Kind] = {}
        self._places = 0

    def read(self, header: bytes, position: int, flags: int) -> Traits:
        """See `read_traits`."""
        if not flags and len(header) == position:
            return TRANSIENT
        try:
            number = len(header) << 24 | header[position] << 16 | flags
        except IndexError:
            return read_traits(header, position, flags)
        kind = self._kinds.get(number)
        if kind is not None:
            for layout in kind.layouts:
                if layout.at_places(header) == layout.octets:
                    return layout.traits
        traits = read_traits(header, position, flags)
        if kind is None:
            if len(self._kinds) >= KINDS_MAX or self._places >= PLACES_OF_ALL_MAX:
                self._kinds.clear()
                self._places = 0
            kind = self._kinds[number] = _Kind()
        self._places += kind.learn(header, position, flags, traits)
        return traits


class _Layout(NamedTuple):
    """The octets at some places; the octet at a single one."""

    at_places: Callable[[bytes], tuple[int, ...] | int]
    octets: tuple[int, ...] | int
    places: int
    traits: Traits


class _Kind:
    """The layouts of one kind of headers, the oldest first; where there are many, each is worth little."""

    __slots__ = ("_walks", "layouts")

    def __init__(self) -> None:
        """No layout is known yet."""
        self.layouts: list[_Layout] = []
        self._walks = 0

    def learn(self, header: bytes, position: int, flags: int, traits: Traits) -> int:
        """Learn the layout of a header that was walked through, but not of every such header.

        Returns:
            The number of places that the layouts gained.
        """
        self._walks += 1
        is_full = len(self.layouts) >= LAYOUTS_MAX
        if traits.terms[0] or (is_full and self._walks & (self._walks - 1)):
            return 0
        places = list(_places(header, position, flags))
        if len(places) > PLACES_MAX:
            return 0
        # A header may have no place; the flags before it are the same in all headers of a kind.
        places = places or [position - 1]
        more = len(places)
        if is_full:
            more -= self.layouts.pop(0).places
        at_places = itemgetter(*places)
        self.layouts.append(_Layout(at_places, at_places(header), more, traits))
        return more


def _places(header: bytes, position: int, flags: int) -> Iterator[int]:
    """The places of lengths, types, delivery mode and priority in a header."""
    for flag in _SHORT_STRINGS_FIRST:
        if flags & flag:
            yield position
            position += 1 + header[position]
    if flags & props.HEADERS:
        end = position + 4 + int.from_bytes(header[position : position + 4], "big")
        yield from range(position, position + 4)
        yield from tables.places(header, position + 4, end)
        position = end
    for flag in (props.DELIVERY_MODE, props.PRIORITY):
        if flags & flag:
            yield position
            position += 1
    for flag in _AFTER_PRIORITY:
        if flags & flag:
            if flag == props.TIMESTAMP:
                position += 8
            else:
                yield position
                position += 1 + header[position]


def read_traits(header: bytes, position: int, flags: int) -> Traits:
    """Read the properties from `position` to the end of the octets; `flags` names the properties that are set.

    The code is written out flag by flag, for speed: it runs for each message of an unknown layout.

    Raises:
        SyntaxFault: the octets end inside a property, or go on after the last, or the headers are no table, or the
            delivery mode is unknown.
    """
    mode, expiration, priority = 0, b"", 0
    try:
        if flags & props.CONTENT_TYPE:
            position += 1 + header[position]
        if flags & props.CONTENT_ENCODING:
            position += 1 + header[position]
        if flags & props.HEADERS:
            start = position + 4
            position = start + int.from_bytes(header[position:start], "big")
            tables.check_within(header, start, position)
        if flags & props.DELIVERY_MODE:
            mode = header[position]
            if mode not in DELIVERY_MODES:
                raise SyntaxFault(f"delivery mode {mode}")
            position += 1
        if flags & props.PRIORITY:
            priority = header[position]
            position += 1
        if flags & props.CORRELATION_ID:
            position += 1 + header[position]
        if flags & props.REPLY_TO:
            position += 1 + header[position]
        if flags & props.EXPIRATION:
            start = position + 1
            position = start + header[position]
            expiration = header[start:position]
        if flags & props.MESSAGE_ID:
            position += 1 + header[position]
        if flags & props.TIMESTAMP:
            position += 8
        if flags & props.TYPE:
            position += 1 + header[position]
        if flags & props.USER_ID:
            position += 1 + header[position]
        if flags & props.APP_ID:
            position += 1 + header[position]
        if flags & props.CLUSTER_ID:
            position += 1 + header[position]
    except IndexError:
        raise SyntaxFault("content header ends inside its properties") from None
    if position != len(header):
        raise SyntaxFault("content header does not end where its properties do")
    if flags & props.TERMS:
        return Traits(mode == PERSISTENT, (expiration, priority))
    return _PERSISTENT_ALONE if mode == PERSISTENT else TRANSIENT


def named_octets(header: bytes, names: Container[bytes]) -> bytes:
    """The octets of those entries of a content header's table that have one of these names.

    Raises:
        SyntaxFault: the table does not parse.
    """
    start, stop = props.place_of(header, props.HEADERS)
    return tables.only(header[start + 4 : stop], names)


def named_headers(header: bytes, names: Container[bytes]) -> dict[str, Any]:
    """Those headers of a content header that have one of these names; not to be changed.

    Raises:
        SyntaxFault: they do not parse.
    """
    named = named_octets(header, names)
    return _repeated(named) if len(named) <= _REPEATED_BYTES_MAX else _decoded(named)


def _decoded(table: bytes) -> dict[str, Any]:
    return props.headers_of(props.join({props.HEADERS: table}, 0))


_repeated = lru_cache(maxsize=1024)(_decoded)
