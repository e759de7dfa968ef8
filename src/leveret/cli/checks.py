"""Checks before a command, and its end when the node refuses.

RabbitMQ's tools tell an unknown user (67), an unknown virtual host (65) and other refusals (69 for most)
apart by exit status; HTTP answers all of them with 400 or 404.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from leveret.cli import exits
from leveret.cli.api import CtlError, NotFoundByApi
from leveret.cli.command import Session
from leveret.cli.secrets import text_of
from leveret.model.foreign_json import decode_json


def need_vhost(ctl: Session, name: str | None = None) -> dict[str, Any]:
    """The virtual host of that name, or of `-p`.

    Raises:
        CtlError: it does not exist.
    """
    name = ctl.vhost if name is None else name
    existing: dict[str, Any] | None = ctl.api.get_or_none("vhosts", name)
    if existing is None:
        raise CtlError(exits.DATA, f"Virtual host '{name}' does not exist")
    return existing


def listed(ctl: Session, *path: str) -> list[dict[str, Any]]:
    """The list at a path of the API for the virtual host of `-p`.

    Raises:
        CtlError: there is no such virtual host.
    """
    try:
        found: list[dict[str, Any]] = ctl.api.get(*path, ctl.vhost)
    except NotFoundByApi:
        raise CtlError(exits.DATA, f"Virtual host '{ctl.vhost}' does not exist") from None
    return found


def need_user(ctl: Session, name: str, status: int = exits.NO_USER) -> dict[str, Any]:
    """The user of that name.

    Raises:
        CtlError: the user does not exist.
    """
    existing: dict[str, Any] | None = ctl.api.get_or_none("users", name)
    if existing is None:
        raise CtlError(status, f'User "{name}" does not exist')
    return existing


@contextmanager
def refused_as(status: int) -> Iterator[None]:
    """End with this exit status if the node refuses a call in the block."""
    try:
        yield
    except CtlError as error:
        raise CtlError(status if error.status == exits.DATA else error.status, str(error)) from None


def json_of(argument: str) -> Any:
    """A JSON argument; `-` reads it from standard input.

    Raises:
        CtlError: it is not.
    """
    try:
        return decode_json(text_of(argument).encode(errors="surrogateescape"), Any)
    except msgspec.DecodeError as error:
        raise CtlError(exits.UNAVAILABLE, f"JSON decoding error: {error}") from None


def json_text(value: object) -> str:
    """A value as compact JSON, as RabbitMQ shows it in a column."""
    return msgspec.json.encode(value).decode()
