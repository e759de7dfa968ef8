"""The common part of the stream protocol's commands: keys, codes, and the coding of their fields.

`@command(key)` makes a dataclass of a command and enters it in `COMMANDS`, under its key on the wire (a response has
the top bit set).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final, TypeVar, dataclass_transform

from leveret.wire.stream.fields import U16, U32, Cursor, Layout, layout

RESPONSE: Final = 0x8000
VERSION: Final = 1
FRAME: Final = struct.Struct(">IHH")
"""Size (without itself), key, version."""


class CommandKey(IntEnum):
    """Numbers of the commands."""

    DECLARE_PUBLISHER = 0x01
    PUBLISH = 0x02
    PUBLISH_CONFIRM = 0x03
    PUBLISH_ERROR = 0x04
    QUERY_PUBLISHER_SEQUENCE = 0x05
    DELETE_PUBLISHER = 0x06
    SUBSCRIBE = 0x07
    DELIVER = 0x08
    CREDIT = 0x09
    STORE_OFFSET = 0x0A
    QUERY_OFFSET = 0x0B
    UNSUBSCRIBE = 0x0C
    CREATE = 0x0D
    DELETE = 0x0E
    METADATA = 0x0F
    METADATA_UPDATE = 0x10
    PEER_PROPERTIES = 0x11
    SASL_HANDSHAKE = 0x12
    SASL_AUTHENTICATE = 0x13
    TUNE = 0x14
    OPEN = 0x15
    CLOSE = 0x16
    HEARTBEAT = 0x17
    ROUTE = 0x18
    PARTITIONS = 0x19
    CONSUMER_UPDATE = 0x1A
    EXCHANGE_COMMAND_VERSIONS = 0x1B
    STREAM_STATS = 0x1C
    CREATE_SUPER_STREAM = 0x1D
    DELETE_SUPER_STREAM = 0x1E


class Code(IntEnum):
    """The outcome of a request, and the reason of a Close."""

    OK = 1
    STREAM_DOES_NOT_EXIST = 2
    SUBSCRIPTION_ID_EXISTS = 3
    SUBSCRIPTION_ID_UNKNOWN = 4
    STREAM_EXISTS = 5
    STREAM_NOT_AVAILABLE = 6
    SASL_MECHANISM_UNSUPPORTED = 7
    AUTHENTICATION_FAILURE = 8
    SASL_ERROR = 9
    SASL_CHALLENGE = 10
    AUTHENTICATION_FAILURE_LOOPBACK = 11
    VHOST_ACCESS_FAILURE = 12
    UNKNOWN_FRAME = 13
    FRAME_TOO_LARGE = 14
    INTERNAL_ERROR = 15
    ACCESS_REFUSED = 16
    PRECONDITION_FAILED = 17
    PUBLISHER_UNKNOWN = 18
    NO_OFFSET = 19


class StreamCommand:
    """The base of all commands; `key` includes the top bit of a response."""

    key: ClassVar[int]
    layout: ClassVar[Layout]
    __slots__ = ()

    def encode(self) -> bytes:
        """The whole frame, size included."""
        content = b"".join([kind.pack(getattr(self, name)) for name, kind in self.layout])
        return FRAME.pack(4 + len(content), self.key, VERSION) + content

    @classmethod
    def decode(cls, cursor: Cursor) -> StreamCommand:
        """Read the fields from what follows the version.

        Raises:
            MalformedCommand: too few octets, or an impossible value of a field.
        """
        return cls(**{name: kind.unpack(cursor) for name, kind in cls.layout})


@dataclass(slots=True)
class StreamRequest(StreamCommand):
    """A command that has a response."""

    correlation: U32


@dataclass(slots=True)
class Response(StreamCommand):
    """The answer to a `StreamRequest`; fields after the code have a meaning only when it is OK."""

    correlation: U32
    code: U16

    @classmethod
    def decode(cls, cursor: Cursor) -> StreamCommand:
        """As for any command; servers omit the fields behind a code that is not OK."""
        values: dict[str, object] = {}
        for name, kind in cls.layout:
            refused = cursor.left == 0 and values.get("code", Code.OK) != Code.OK
            values[name] = kind.absent() if refused else kind.unpack(cursor)
        return cls(**values)  # type: ignore[arg-type]  # each value has its own field's type


C = TypeVar("C", bound=StreamCommand)
COMMANDS: Final[dict[int, type[StreamCommand]]] = {}


@dataclass_transform()
def command(key: int) -> Callable[[type[C]], type[C]]:
    """Make a dataclass of a command and enter it under its key."""

    def enter(cls: type[C]) -> type[C]:
        made = dataclass(slots=True)(cls)
        made.key = key
        made.layout = layout(made)
        COMMANDS[key] = made
        return made

    return enter
