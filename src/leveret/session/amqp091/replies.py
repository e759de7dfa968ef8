"""Maps refusals and protocol errors to AMQP's reply codes, texts and scopes (spec 1.2, RabbitMQ's words)."""

from __future__ import annotations

from typing import Final

from leveret.core.rules.erlang_terms import binary
from leveret.model import errors
from leveret.wire.amqp091 import QUOTED_BYTES_MAX, FrameError, UnknownMethod
from leveret.wire.properties import SyntaxFault

NAMES: Final = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}

REPLY: Final[dict[type[errors.LeveretError], int]] = {
    errors.NotFound: 404,
    errors.AccessRefused: 403,
    errors.AuthenticationFailed: 403,
    errors.ResourceLocked: 405,
    errors.PreconditionFailed: 406,
    errors.NotAllowed: 530,
    errors.Unsupported: 540,
    errors.InvalidCommand: 503,
    errors.StorageError: 541,
    FrameError: 501,
    SyntaxFault: 501,
    UnknownMethod: 540,
}


class Fault(errors.LeveretError):
    """A violation of the protocol; `code` is AMQP's."""

    def __init__(self, code: int, text: str) -> None:
        """`text` comes without the code's name."""
        super().__init__(text)
        self.code = code


def broken_frame(kind: int, octets: bytes, why: str) -> Fault:
    """The error for an impossible frame, in RabbitMQ's words (501)."""
    return Fault(501, f"type {kind}, all octets = {binary(octets[:QUOTED_BYTES_MAX])}: {why}")


def code_of(error: errors.LeveretError) -> int:
    """The reply code of any error of Leveret."""
    if isinstance(error, Fault):
        return error.code
    for kind in type(error).__mro__:
        if kind in REPLY:
            return REPLY[kind]
    return 541


def reply_text(code: int, text: str) -> str:
    """The reply text as RabbitMQ writes it: the code's name, a dash, the reason."""
    return f"{NAMES[code]} - {text}"
