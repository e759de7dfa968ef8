"""Converts octets by their layout: the form that many messages have in common, learned from one of them.

An application's messages differ in their values, and mostly have the same fields in the same order. A **layout** is
the octets that such messages have in common, and the **slots** between them, which differ. It holds templates, too:
how a conversion puts the octets of the slots together. So octets of a known layout are converted without a look at
their types and names: each step compares octets that are in common and cuts out a slot, whatever its length.

    source of a layout        | in common | slot | in common | slot | in common | ...
    template of an output     | constant  | slot | constant  | ...

A layout is used only where all octets outside its slots are the same. The converter gives a slot for octets that it
copies as they are, or by a function of these octets alone; all others are in common. Then the result is the one that
the converter would have given. (`content_header` knows headers by their lengths, too: that costs less, and is enough
to know that a header is well-formed.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

SHORT: Final = -1
"""The extent of a slot of octets behind their number in one octet."""
LONG: Final = -4
"""The extent of a slot of octets behind their number in four octets, if there are LONG_MIN or more."""
LONG_MIN: Final = 256
LAYOUTS_MAX: Final = 8
"""The most layouts that are known: each that does not fit costs a part of a conversion."""
SOURCE_BYTES_MAX: Final = 4096
"""The longest octets that a layout is learned from; a bound on memory."""
_SIZE: Final = -16
"""The extent of a size in four octets, of all octets up to an end."""
_SMALL_SIZE: Final = -17
"""The extent of such a size in one octet."""
_END: Final = -18
_U32: Final = struct.Struct(">I")


class Slot(NamedTuple):
    """Octets of a source that differ from message to message.

    Attributes:
        begin, end: their place in the source.
        extent: the number of octets, SHORT or LONG; of the latter two the number is a part of the slot.
        is_text: whether the octets have to be UTF-8.
        convert: gives the octets of an output; None where the converter has to look at the whole source.
    """

    begin: int
    end: int
    extent: int
    is_text: bool = False
    convert: Callable[[bytes], bytes | None] | None = None


class Sized(NamedTuple):
    """A size in a source, in one octet or in four, and the end of the octets that it counts."""

    begin: int
    width: int
    end: int


Part: TypeAlias = bytes | Slot
Parts: TypeAlias = Sequence[Part]


def fill(parts: Iterable[Part], source: bytes) -> bytes:
    """An output made from one source alone."""
    return b"".join([part if isinstance(part, bytes) else _converted(part, source) for part in parts])


def _converted(slot: Slot, source: bytes) -> bytes:
    octets = source[slot.begin : slot.end]
    if slot.convert is None:
        return octets
    converted = slot.convert(octets)
    if converted is None:
        raise ValueError(f"the slot at octet {slot.begin} cannot be converted")
    return converted


T = TypeVar("T")


class Reading(NamedTuple, Generic[T]):
    """The outputs that a layout gave of a source, the place where the layout ends, and the converter's note."""

    outputs: list[bytes]
    end: int
    note: T


class Conversion(NamedTuple, Generic[T]):
    """How a source was converted.

    Attributes:
        source: the octets.
        place: the begin and the end of the converted octets.
        outputs: the parts of each output, constant octets and slots.
        sizes: the sizes in the source.
        note: the converter's note, which a reading of the same layout gets.
    """

    source: bytes
    place: tuple[int, int]
    outputs: Sequence[Parts]
    sizes: Sequence[Sized]
    note: T


class Layout(Generic[T]):
    """What sources have in common, and the outputs that are made from their slots."""

    __slots__ = ("_constants", "_convert", "_cut_texts", "_note", "_outputs", "_steps", "_texts")

    def __init__(self, conversion: Conversion[T]) -> None:
        """Learn the layout of the octets that were converted."""
        slots = sorted({part for parts in conversion.outputs for part in parts if isinstance(part, Slot)})
        self._note = conversion.note
        self._steps = _steps(conversion, slots)
        self._texts = [(index, max(0, -slot.extent)) for index, slot in enumerate(slots) if slot.is_text]
        self._cut_texts = _cutter([index for index, _ in self._texts])
        self._convert = [(index, slot.convert) for index, slot in enumerate(slots) if slot.convert]
        # An output is a selection of all slots, in their order, and all constants behind them.
        numbers = {slot: index for index, slot in enumerate(slots)}
        self._constants: list[bytes] = []
        # The last step cuts out nothing.
        behind = len(slots) + 1
        self._outputs = [_cutter(self._template(parts, numbers, behind)) for parts in conversion.outputs]

    def _template(self, parts: Parts, numbers: dict[Slot, int], behind: int) -> list[int]:
        """The parts of an output by their numbers among the slots, and the constants behind these."""
        selected: list[int] = []
        for is_slot, group in groupby(parts, lambda part: isinstance(part, Slot)):
            if is_slot:
                selected += [numbers[slot] for slot in group if isinstance(slot, Slot)]
            else:
                selected.append(behind + len(self._constants))
                self._constants.append(b"".join([octets for octets in group if isinstance(octets, bytes)]))
        return selected

    def read(self, source: bytes, position: int) -> Reading[T] | None:
        """The outputs and the place where the layout ends; None if the source has another layout."""
        try:
            pieces, end = self._cut(source, position)
        except (IndexError, struct.error):
            return None
        if end > len(source):
            return None
        if not b"".join(self._cut_texts(pieces)).isascii() and not self._are_texts(pieces):
            return None
        for index, convert in self._convert:
            converted = convert(pieces[index])
            if converted is None:
                return None
            pieces[index] = converted
        pieces += self._constants
        return Reading([b"".join(select(pieces)) for select in self._outputs], end, self._note)

    def _cut(self, source: bytes, position: int) -> tuple[list[bytes], int]:
        """The slots of a source, and the end of the layout, which may be behind the source.

        Raises:
            IndexError: the source has another layout; the same is true of struct.error.
        """
        pieces: list[bytes] = []
        starts, keep = source.startswith, pieces.append
        end = 0
        for common, size, extent in self._steps:
            if not starts(common, position):
                raise IndexError
            position += size
            if extent == SHORT:
                stop = position + 1 + source[position]
            elif extent >= 0:
                stop = position + extent
            elif extent == _SIZE:
                end = position + 4 + _U32.unpack_from(source, position)[0]
                position += 4
                continue
            elif extent == _SMALL_SIZE:
                end = position + 1 + source[position]
                position += 1
                continue
            elif extent == _END:
                if position != end:
                    raise IndexError
                continue
            else:
                octets = _U32.unpack_from(source, position)[0]
                if octets < LONG_MIN:
                    raise IndexError
                stop = position + 4 + octets
            keep(source[position:stop])
            position = stop
        return pieces, position

    def _are_texts(self, pieces: list[bytes]) -> bool:
        """Whether the octets of all slots of text are UTF-8."""
        try:
            for index, width in self._texts:
                pieces[index][width:].decode()
        except UnicodeDecodeError:
            return False
        return True


def _steps(conversion: Conversion[T], slots: Iterable[Slot]) -> list[tuple[bytes, int, int]]:
    """Octets in common, their number, and the extent of the octets behind them that differ."""
    places: list[tuple[int, int, int]] = [(slot.begin, slot.end, slot.extent) for slot in slots]
    for size in conversion.sizes:
        places.append((size.begin, size.begin + size.width, _SIZE if size.width == 4 else _SMALL_SIZE))
        places.append((size.end, size.end, _END))
    steps: list[tuple[bytes, int, int]] = []
    position, end = conversion.place
    # Sizes do not nest: the end of one is no later than the begin of the next.
    for start, stop, extent in [*sorted(places), (end, end, 0)]:
        steps.append((conversion.source[position:start], start - position, extent))
        position = stop
    return steps


def _cutter(indices: list[int]) -> Callable[[list[bytes]], Iterable[bytes]]:
    """A function that gives the pieces at some indices."""
    if len(indices) > 1:
        return itemgetter(*indices)
    begin = indices[0] if indices else 0
    return itemgetter(slice(begin, begin + len(indices)))


class Layouts(Generic[T]):
    """The layouts of a converter's sources, those used last first.

    Attributes:
        learned: how many layouts were learned.
    """

    def __init__(self) -> None:
        """No layout is known yet."""
        self.learned = 0
        self._known: list[Layout[T]] = []
        self._unknown = 0

    def read(self, source: bytes, position: int) -> Reading[T] | None:
        """The outputs of the source from a position on; None if no known layout fits."""
        for index, layout in enumerate(self._known):
            found = layout.read(source, position)
            if found is not None:
                if index:
                    self._known = [layout, *self._known[:index], *self._known[index + 1 :]]
                return found
        return None

    def learn(self, conversion: Conversion[T]) -> None:
        """Learn the layout of a source that no layout fits, but not of every such source."""
        self._unknown += 1
        is_full = len(self._known) >= LAYOUTS_MAX
        # Where most sources differ in their layouts, learning is of no use.
        begin, end = conversion.place
        if end - begin > SOURCE_BYTES_MAX or (is_full and self._unknown & (self._unknown - 1)):
            return
        self.learned += 1
        self._known = [Layout(conversion), *self._known[: LAYOUTS_MAX - 1]]
