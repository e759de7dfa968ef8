"""AMQP 1.0 before the frames of a connection: protocol headers and the SASL exchange, server's side.

    0        4    5       6       7          8
    +--------+----+-------+-------+----------+
    | "AMQP" | id | major | minor | revision |     id 0: AMQP, 3: SASL
    +--------+----+-------+-------+----------+

    0        4        5        6         8          size
    +--------+--------+--------+---------+----------+
    | size   | doff   | type 1 | ignored | list     |     a SASL frame
    | u32    | u8     | u8     | u16     |          |
    +--------+--------+--------+---------+----------+

Both sides send the SASL header. The server sends `sasl-mechanisms`, the client `sasl-init`, the server
`sasl-outcome`. Then both start again with the AMQP header, and the transport follows. Of the type system, this module
reads only the types that a `sasl-init` can hold: null, binary, string, symbol in a list.

Spec: AMQP 1.0 sections 1.6, 2.2, 5.3.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from leveret.model.errors import PeerError

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
PROTOCOL_HEADERS: Final = (SASL_HEADER, AMQP_HEADER)
"""The protocol headers with which a client that speaks AMQP 1.0 begins."""
HEADER_BYTES: Final = 8
SASL_FRAME_BYTES_MAX: Final = 4096
"""The specification says 512; tokens as passwords are longer."""
_FRAME: Final = struct.Struct(">IBBH")
_U32: Final = struct.Struct(">I")
_SASL_TYPE: Final = 1
_MECHANISMS: Final = 0x40
_INIT: Final = 0x41
_OUTCOME: Final = 0x44
_NULL: Final = 0x40
_SYMBOL8: Final = 0xA3
_SYMBOL_WIDTH: Final = {0xA3: 1, 0xB3: 4}
_BINARY_WIDTH: Final = {0xA0: 1, 0xB0: 4}
_STRING_WIDTH: Final = {0xA1: 1, 0xB1: 4}


class SaslError(PeerError):
    """The client's frame is not a SASL frame, or not the one that is due."""


class SaslOutcome(IntEnum):
    """Codes of a `sasl-outcome` (section 5.3.3.6)."""

    OK = 0
    """The client is logged in."""
    AUTH = 1
    """The credentials, or the mechanism, are refused."""
    SYS_PERM = 3
    """The client broke the rules of the exchange."""


class SaslInit(NamedTuple):
    """A client's choice of a mechanism, with its initial response."""

    mechanism: str
    initial_response: bytes
    hostname: str


def encode_mechanisms(*names: str) -> bytes:
    """The frame `sasl-mechanisms`: an array of symbols in a list of one."""
    symbols = b"".join(bytes((len(name),)) + name.encode("ascii") for name in names)
    array = b"\xe0" + bytes((len(symbols) + 2, len(names), _SYMBOL8)) + symbols
    return _frame(_MECHANISMS, b"\xc0" + bytes((len(array) + 1, 1)) + array)


def encode_outcome(code: SaslOutcome) -> bytes:
    """The frame `sasl-outcome`."""
    return _frame(_OUTCOME, b"\xc0\x03\x01\x50" + bytes((code,)))


def sasl_frame_bytes(buffer: bytes | bytearray) -> int:
    """Length of the SASL frame at the start of `buffer`; 0 while its header is not whole.

    Raises:
        SaslError: not a SASL frame, or one over the limit.
    """
    if len(buffer) < _FRAME.size:
        return 0
    size, doff, kind, _ = _FRAME.unpack_from(buffer)
    if kind != _SASL_TYPE or doff < 2 or size < doff * 4:
        raise SaslError(
            f"frame of type {kind} with data offset {doff} and size {size} where a SASL frame was due"
        )
    if size > SASL_FRAME_BYTES_MAX:
        raise SaslError(f"SASL frame of {size} octets, more than {SASL_FRAME_BYTES_MAX}")
    return int(size)


def decode_init(frame: bytes) -> SaslInit:
    """Read a whole frame that must be `sasl-init`.

    Raises:
        SaslError: another performative, a field of the wrong type or past the frame's end.
    """
    reader = _Reader(frame, frame[4] * 4)
    reader.performative(_INIT)
    fields = reader.list_head()
    mechanism = reader.variable(_SYMBOL_WIDTH, "mechanism") if fields > 0 else None
    if mechanism is None:
        raise SaslError("sasl-init names no mechanism")
    response = reader.variable(_BINARY_WIDTH, "initial-response") if fields > 1 else None
    hostname = reader.variable(_STRING_WIDTH, "hostname") if fields > 2 else None
    try:
        return SaslInit(mechanism.decode("ascii"), response or b"", (hostname or b"").decode())
    except UnicodeDecodeError:
        raise SaslError("sasl-init holds text that is not text") from None


def decode_plain(response: bytes) -> tuple[str, str]:
    """User and password of a PLAIN response (RFC 4616): authorization id, user, password, by zeros apart.

    Raises:
        SaslError: not three parts of UTF-8, or no user.
    """
    parts = response.split(b"\x00")
    if len(parts) != 3 or not parts[1]:
        raise SaslError("the PLAIN response is not \\0 user \\0 password")
    try:
        return parts[1].decode(), parts[2].decode()
    except UnicodeDecodeError:
        raise SaslError("user or password of the PLAIN response is not UTF-8") from None


class _Reader:
    """A cursor over the encoded values of one frame; past its end is a `SaslError`."""

    def __init__(self, octets: bytes, start: int) -> None:
        self._octets = octets
        self._at = start

    def take(self, count: int) -> bytes:
        """The next `count` octets."""
        taken = self._octets[self._at : self._at + count]
        if len(taken) != count:
            raise SaslError("SASL frame ends within a value")
        self._at += count
        return taken

    def byte(self) -> int:
        """The next octet."""
        return self.take(1)[0]

    def length(self, width: int) -> int:
        """A length or count of 1 or 4 octets."""
        return self.byte() if width == 1 else int(_U32.unpack(self.take(4))[0])

    def performative(self, due: int) -> None:
        """The described type's descriptor: a ulong in any of its widths, or its symbol."""
        if self.byte() != 0:
            raise SaslError("SASL frame without a performative")
        code = self.byte()
        match code:
            case 0x53:
                found: object = self.byte()
            case 0x80:
                found = int.from_bytes(self.take(8), "big")
            case 0xA3 | 0xB3:
                found = (
                    due
                    if self.take(self.length(_SYMBOL_WIDTH[code])) == b"amqp:sasl-init:list"
                    else "another"
                )
            case _:
                raise SaslError(f"SASL performative described by a value of type 0x{code:02x}")
        if found != due:
            raise SaslError(f"SASL performative {found} where {due} was due")

    def list_head(self) -> int:
        """Enter a list: the count of its fields."""
        code = self.byte()
        if code == 0x45:
            return 0
        if code not in (0xC0, 0xD0):
            raise SaslError(f"SASL performative is no list but of type 0x{code:02x}")
        width = 1 if code == 0xC0 else 4
        self.length(width)
        return self.length(width)

    def variable(self, widths: dict[int, int], field: str) -> bytes | None:
        """A field of one of the types in `widths` (code to width of its length), or None for null."""
        code = self.byte()
        if code == _NULL:
            return None
        if code not in widths:
            raise SaslError(f"sasl-init: {field} is of type 0x{code:02x}")
        return self.take(self.length(widths[code]))


def _frame(performative: int, fields: bytes) -> bytes:
    body = b"\x00\x53" + bytes((performative,)) + fields
    return _FRAME.pack(_FRAME.size + len(body), 2, _SASL_TYPE, 0) + body
