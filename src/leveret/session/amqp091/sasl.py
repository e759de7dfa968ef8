"""SASL: the name and password in a mechanism's response (RFC 4616; AMQPLAIN is RabbitMQ's)."""

from __future__ import annotations

from typing import Final

from leveret.session.amqp091.replies import Fault
from leveret.wire import tables

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"


def plain(response: bytes) -> tuple[str, str]:
    """Name and password of a PLAIN response; a separate identity is refused.

    Raises:
        Fault: 502, the response is malformed.
    """
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise Fault(502, "response to PLAIN is not an empty identity, user and password")
    return _text(parts[1]), _text(parts[2])


def amqplain(response: bytes) -> tuple[str, str]:
    """Name and password of an AMQPLAIN response: a field table without its length.

    Raises:
        Fault: 502, the response is malformed.
    """
    table = tables.split(response)
    user, password = (tables.text_of(table.get(key, b"")) for key in (b"LOGIN", b"PASSWORD"))
    if user is None or password is None:
        raise Fault(502, "response to AMQPLAIN is missing LOGIN or PASSWORD as a long string")
    return _text(user), _text(password)


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        raise Fault(502, "user or password is not UTF-8") from None
