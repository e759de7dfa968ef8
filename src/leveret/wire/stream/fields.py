"""Types of the fields of a command: the octets that an annotation such as `U16` or `String` stands for.

    string      i16 length (-1: null), UTF-8      read as "" when null
    bytes       i32 length (-1: null), octets     read as b"" when null
    array       i32 count, items
    properties  array of (string, string)
    offset      u16 type, then u64 (type 4) or i64 ms (type 5)

All numbers are big endian. A command declares its fields once; `layout` makes encoder and decoder from them.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from leveret.model.errors import PeerError
from leveret.model.stream import OffsetSpec as OffsetSpec
from leveret.model.stream import OffsetType as OffsetType

T = TypeVar("T")


class MalformedCommand(PeerError):
    """The octets of a frame are not the fields of its command."""


class Cursor:
    """Reads a frame from left to right."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def left(self) -> int:
        """Octets not read yet."""
        return len(self.data) - self.position

    def take(self, size: int) -> bytes:
        """The next `size` octets.

        Raises:
            MalformedCommand: fewer are left.
        """
        if not 0 <= size <= self.left:
            raise MalformedCommand(f"{size} octets announced at byte {self.position}, {self.left} are left")
        self.position += size
        return self.data[self.position - size : self.position]


@dataclasses.dataclass(frozen=True, slots=True)
class FieldType(Generic[T]):
    """The encoder and decoder of one type; `absent` is the value in a response that its error code cut off."""

    pack: Callable[[T], bytes]
    unpack: Callable[[Cursor], T]
    absent: Callable[[], T]


def _number(form: str) -> FieldType[int]:
    packer = struct.Struct(form)

    def unpack(cursor: Cursor) -> int:
        (value,) = packer.unpack(cursor.take(packer.size))
        return int(value)

    return FieldType(packer.pack, unpack, int)


def _array(item: FieldType[T]) -> FieldType[list[T]]:
    def pack(values: list[T]) -> bytes:
        return _I32.pack(len(values)) + b"".join([item.pack(value) for value in values])

    def unpack(cursor: Cursor) -> list[T]:
        # A wrong count runs into the frame's end: no item is shorter than two octets.
        return [item.unpack(cursor) for _ in range(_I32.unpack(cursor))]

    return FieldType(pack, unpack, list)


def _record(make: Callable[..., T], *parts: FieldType[Any]) -> FieldType[T]:
    """A tuple of fields; `make` is a NamedTuple, or takes the same arguments."""

    def pack(value: Any) -> bytes:  # T, which is always a tuple
        return b"".join([part.pack(each) for part, each in zip(parts, value, strict=True)])

    def unpack(cursor: Cursor) -> T:
        return make(*[part.unpack(cursor) for part in parts])

    return FieldType(pack, unpack, lambda: make(*[part.absent() for part in parts]))


_U8: Final = _number(">B")
_U16: Final = _number(">H")
_U32: Final = _number(">I")
_U64: Final = _number(">Q")
_I16: Final = _number(">h")
_I32: Final = _number(">i")
_I64: Final = _number(">q")


def _pack_string(value: str) -> bytes:
    octets = value.encode()
    return _I16.pack(len(octets)) + octets


def _unpack_string(cursor: Cursor) -> str:
    size = _I16.unpack(cursor)
    try:
        return "" if size == -1 else cursor.take(size).decode()
    except UnicodeDecodeError:
        raise MalformedCommand(f"string before byte {cursor.position} is not UTF-8") from None


def _unpack_bytes(cursor: Cursor) -> bytes:
    size = _I32.unpack(cursor)
    return b"" if size == -1 else cursor.take(size)


_STRING: Final = FieldType(_pack_string, _unpack_string, str)
_BYTES: Final = FieldType(lambda octets: _I32.pack(len(octets)) + octets, _unpack_bytes, bytes)
_PAIRS: Final = _array(_record(lambda key, value: (key, value), _STRING, _STRING))
_PROPERTIES: Final[FieldType[dict[str, str]]] = FieldType(
    lambda properties: _PAIRS.pack(list(properties.items())), lambda cursor: dict(_PAIRS.unpack(cursor)), dict
)
_OPTIONAL_PROPERTIES: Final[FieldType[dict[str, str]]] = FieldType(
    lambda properties: _PROPERTIES.pack(properties) if properties else b"",
    lambda cursor: _PROPERTIES.unpack(cursor) if cursor.left else {},
    dict,
)


_OFFSET_VALUE: Final = {OffsetType.OFFSET: _U64, OffsetType.TIMESTAMP: _I64}


def _pack_offset(spec: OffsetSpec) -> bytes:
    value = _OFFSET_VALUE.get(OffsetType(spec.kind))
    return _U16.pack(spec.kind) + (value.pack(spec.value) if value else b"")


def _unpack_offset(cursor: Cursor) -> OffsetSpec:
    number = _U16.unpack(cursor)
    try:
        kind = OffsetType(number)
    except ValueError:
        raise MalformedCommand(f"offset type {number} is none of 1 to 5") from None
    value = _OFFSET_VALUE.get(kind)
    return OffsetSpec(kind, value.unpack(cursor) if value else 0)


def _unpack_optional_offset(cursor: Cursor) -> OffsetSpec | None:
    """The last field of its command: clients write type 0 for none, and some a value where none belongs."""
    none = cursor.data[cursor.position : cursor.position + 2] == b"\0\0"
    spec = None if none else _unpack_offset(cursor)
    cursor.position = len(cursor.data)
    return spec


class BrokerNode(NamedTuple):
    """A node in a Metadata response; streams refer to it by `reference`."""

    reference: int
    host: str
    port: int


class StreamMetadata(NamedTuple):
    """The place of a stream, or the `code` that says why it has none (its leader is then `NO_LEADER`)."""

    stream: str
    code: int
    leader: int
    replicas: list[int]


class CommandVersions(NamedTuple):
    """The versions of a command that a side serves."""

    key: int
    lowest: int
    highest: int


class FailedPublish(NamedTuple):
    """A message that was not stored, and the reason."""

    publishing_id: int
    code: int


NO_LEADER: Final = 0xFFFF

_PAIR_OF_NUMBER: Final = _array(_record(lambda key, value: (key, value), _STRING, _I64))
_NUMBERS: Final[FieldType[dict[str, int]]] = FieldType(
    lambda numbers: _PAIR_OF_NUMBER.pack(list(numbers.items())),
    lambda cursor: dict(_PAIR_OF_NUMBER.unpack(cursor)),
    dict,
)
_OFFSET: Final = FieldType(_pack_offset, _unpack_offset, lambda: OffsetSpec(OffsetType.FIRST))
_OPTIONAL_OFFSET: Final[FieldType[OffsetSpec | None]] = FieldType(
    lambda spec: _pack_offset(spec) if spec else b"",
    lambda cursor: _unpack_optional_offset(cursor) if cursor.left else None,
    lambda: None,
)
_BROKER: Final = _record(BrokerNode, _U16, _STRING, _U32)
_STREAM: Final = _record(StreamMetadata, _STRING, _U16, _U16, _array(_U16))

U8: TypeAlias = Annotated[int, _U8]
U16: TypeAlias = Annotated[int, _U16]
U32: TypeAlias = Annotated[int, _U32]
U64: TypeAlias = Annotated[int, _U64]
String: TypeAlias = Annotated[str, _STRING]
Strings: TypeAlias = Annotated[list[str], _array(_STRING)]
Octets: TypeAlias = Annotated[bytes, _BYTES]
Properties: TypeAlias = Annotated[dict[str, str], _PROPERTIES]
OptionalProperties: TypeAlias = Annotated[dict[str, str], _OPTIONAL_PROPERTIES]
Offset: TypeAlias = Annotated[OffsetSpec, _OFFSET]
OptionalOffset: TypeAlias = Annotated[OffsetSpec | None, _OPTIONAL_OFFSET]
Brokers: TypeAlias = Annotated[list[BrokerNode], _array(_BROKER)]
Streams: TypeAlias = Annotated[list[StreamMetadata], _array(_STREAM)]
Versions: TypeAlias = Annotated[list[CommandVersions], _array(_record(CommandVersions, _U16, _U16, _U16))]
Failures: TypeAlias = Annotated[list[FailedPublish], _array(_record(FailedPublish, _U64, _U16))]
Statistics: TypeAlias = Annotated[dict[str, int], _NUMBERS]
Layout: TypeAlias = tuple[tuple[str, FieldType[Any]], ...]


def layout(command: type) -> Layout:
    """Names and types of a dataclass's fields in the order of the octets, those without a type left out."""
    hints = get_type_hints(command, include_extras=True)
    names = [field.name for field in dataclasses.fields(command)]
    return tuple((name, get_args(hints[name])[1]) for name in names if get_origin(hints[name]) is Annotated)
