"""The answers of the API: JSON, and RabbitMQ's error objects.

The one table from refusals to HTTP statuses is here; a test keeps it complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    InvalidCommand,
    LedElsewhere,
    LeveretError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    Refusal,
    ResourceLocked,
    Unsupported,
)

REALM: Final = 'Basic realm="RabbitMQ Management"'

RETRY_AFTER_S: Final = "1"
READS: Final = ("GET", "HEAD")
"""The methods that change nothing."""

STATUS: Final[dict[type[LeveretError], tuple[HTTPStatus, str]]] = {
    NotFound: (HTTPStatus.NOT_FOUND, "Object Not Found"),
    AccessRefused: (HTTPStatus.UNAUTHORIZED, "not_authorised"),
    AuthenticationFailed: (HTTPStatus.UNAUTHORIZED, "not_authorized"),
    ResourceLocked: (HTTPStatus.BAD_REQUEST, "bad_request"),
    PreconditionFailed: (HTTPStatus.BAD_REQUEST, "bad_request"),
    NotAllowed: (HTTPStatus.BAD_REQUEST, "bad_request"),
    InvalidCommand: (HTTPStatus.BAD_REQUEST, "bad_request"),
    Unsupported: (HTTPStatus.BAD_REQUEST, "bad_request"),
    LedElsewhere: (HTTPStatus.SERVICE_UNAVAILABLE, "led_elsewhere"),
    Refusal: (HTTPStatus.BAD_REQUEST, "bad_request"),
    LeveretError: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
}
_MISSING_IN_CHANGE: Final = "not_found"
"""RabbitMQ's word for a PUT or POST that names a missing object."""


class BadRequest(InvalidCommand):
    """A request that RabbitMQ answers with an error word of its own."""

    def __init__(self, error: str, reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(reason)
        self.error = error
        self.status = status


def json_reply(value: object, status: int = HTTPStatus.OK) -> Response:
    """A JSON document; never cached, because it may be outdated at once."""
    return octets_reply(msgspec.json.encode(value), status)


def octets_reply(document: bytes, status: int = HTTPStatus.OK) -> Response:
    """A JSON document that is encoded already."""
    headers = {"cache-control": "no-cache", "vary": "accept, accept-encoding, origin"}
    return Response(document, status, headers, "application/json")


def error_reply(status: int, error: str, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """RabbitMQ's error object; a client that is to try again is told after how many seconds."""
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers = {"retry-after": RETRY_AFTER_S, **(headers or {})}
    body = msgspec.json.encode({"error": error, "reason": reason})
    return Response(body, status, headers, "application/json")


def refusal_reply(refusal: LeveretError, *, to_change: bool = False) -> Response:
    """The answer to a refused request, by the table; `to_change` for a PUT or POST."""
    if isinstance(refusal, BadRequest):
        return error_reply(refusal.status, refusal.error, str(refusal))
    status, error = next(STATUS[kind] for kind in type(refusal).__mro__ if kind in STATUS)
    if to_change and status is HTTPStatus.NOT_FOUND:
        error = _MISSING_IN_CHANGE
    headers = {"www-authenticate": REALM} if isinstance(refusal, AuthenticationFailed) else None
    return error_reply(status, error, str(refusal), headers)


def created() -> Response:
    """The answer for a new object."""
    return Response(status_code=HTTPStatus.CREATED)


def done() -> Response:
    """The answer for an existing or deleted object."""
    return Response(status_code=HTTPStatus.NO_CONTENT)


def put_reply(*, existed: bool) -> Response:
    """The answer of a PUT."""
    return done() if existed else created()
