"""What the API answers: JSON, RabbitMQ's error objects, and lists cut as the query asks.

The one table from a refusal to an HTTP status stands here; a test holds it complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    InvalidCommand,
    LeveretError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    Refusal,
    ResourceLocked,
)

REALM: Final = 'Basic realm="RabbitMQ Management"'
PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 500

STATUS: Final[dict[type[LeveretError], tuple[HTTPStatus, str]]] = {
    NotFound: (HTTPStatus.NOT_FOUND, "Object Not Found"),
    AccessRefused: (HTTPStatus.FORBIDDEN, "access_refused"),
    AuthenticationFailed: (HTTPStatus.UNAUTHORIZED, "not_authorized"),
    ResourceLocked: (HTTPStatus.CONFLICT, "resource_locked"),
    PreconditionFailed: (HTTPStatus.BAD_REQUEST, "bad_request"),
    NotAllowed: (HTTPStatus.BAD_REQUEST, "bad_request"),
    InvalidCommand: (HTTPStatus.BAD_REQUEST, "bad_request"),
    Refusal: (HTTPStatus.BAD_REQUEST, "bad_request"),
    LeveretError: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
}


def json_reply(value: object, status: int = HTTPStatus.OK) -> Response:
    """A JSON document; never cached, as it is true only now."""
    headers = {"cache-control": "no-cache"}
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_reply(status: int, error: str, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """RabbitMQ's error object."""
    body = msgspec.json.encode({"error": error, "reason": reason})
    return Response(body, status, headers, "application/json")


def refusal_reply(refusal: LeveretError) -> Response:
    """The answer to a request that was declined, by the table."""
    status, error = next(STATUS[kind] for kind in type(refusal).__mro__ if kind in STATUS)
    headers = {"www-authenticate": REALM} if status is HTTPStatus.UNAUTHORIZED else None
    return error_reply(status, error, str(refusal), headers)


def created() -> Response:
    """It is new."""
    return Response(status_code=HTTPStatus.CREATED)


def done() -> Response:
    """It was there already, or is gone now."""
    return Response(status_code=HTTPStatus.NO_CONTENT)


def put_reply(*, existed: bool) -> Response:
    """What a PUT answers."""
    return done() if existed else created()


def list_reply(items: list[dict[str, Any]], query: QueryParams) -> Response:
    """A list as RabbitMQ's query parameters ask: `name`, `sort`, `sort_reverse`, `page`, `columns`.

    Raises:
        InvalidCommand: a parameter makes no sense.
    """
    wanted = query.get("columns")
    columns = wanted.split(",") if wanted else None
    chosen = _named(items, query)
    key = query.get("sort")
    if key:
        chosen = sorted(chosen, key=lambda item: _sortable(item.get(key)))
        if query.get("sort_reverse") == "true":
            chosen.reverse()
    if "page" not in query:
        return json_reply([_columns(item, columns) for item in chosen])
    return json_reply(_page(items, chosen, columns, query))


def _page(
    items: list[dict[str, Any]], chosen: list[dict[str, Any]], columns: list[str] | None, query: QueryParams
) -> dict[str, Any]:
    size = min(_number(query, "page_size", PAGE_SIZE_DEFAULT), PAGE_SIZE_MAX)
    page = _number(query, "page", 1)
    pages = max(1, -(-len(chosen) // size))
    if page > pages:
        raise InvalidCommand(f"page {page} is out of range: there are {pages}")
    shown = [_columns(item, columns) for item in chosen[(page - 1) * size : page * size]]
    return {
        "filtered_count": len(chosen),
        "item_count": len(shown),
        "items": shown,
        "page": page,
        "page_count": pages,
        "page_size": size,
        "total_count": len(items),
    }


def _named(items: list[dict[str, Any]], query: QueryParams) -> list[dict[str, Any]]:
    name = query.get("name")
    if not name:
        return items
    if query.get("use_regex") != "true":
        return [item for item in items if name in item.get("name", "")]
    try:
        pattern = re.compile(name)
    except re.error as error:
        raise InvalidCommand(f"name is not a regular expression: {error}") from None
    return [item for item in items if pattern.search(item.get("name", ""))]


def _number(query: QueryParams, name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidCommand(f"{name} should be a positive integer, got '{text}'")
    return int(text)


def _columns(item: dict[str, Any], columns: list[str] | None) -> dict[str, Any]:
    return item if columns is None else {name: item[name] for name in columns if name in item}


def _sortable(value: object) -> tuple[bool, float, str]:
    """Numbers before texts, so that a column of both can be sorted."""
    is_number = isinstance(value, (int, float))
    return (not is_number, float(value) if isinstance(value, (int, float)) else 0.0, str(value))
