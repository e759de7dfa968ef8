"""Converts a user from the form of the API and of definitions files to the stored form."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from leveret.core.broker.access import SALT_BYTES, hash_password
from leveret.model.definitions import User
from leveret.model.errors import InvalidCommand
from leveret.model.tags import tags_of

ALGORITHMS: Final = (
    "rabbit_password_hashing_sha256",
    "rabbit_password_hashing_sha512",
    "rabbit_password_hashing_md5",
)


class WantedUser(msgspec.Struct):
    """A user as RabbitMQ accepts one: with a password, with a password hash, or with neither and unable to log in."""

    tags: str | list[str]
    name: str = ""
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str = ALGORITHMS[0]
    limits: dict[str, int] | None = None


def user_of(name: str, wanted: WantedUser, existing_limits: Mapping[str, int] = MappingProxyType({})) -> User:
    """Return the user to store.

    A password is hashed with a new salt. A user without new limits keeps the existing ones.

    Raises:
        InvalidCommand: with RabbitMQ's text.
    """
    if not name:
        raise InvalidCommand("a user needs a name")
    if wanted.password is not None and wanted.password_hash is not None:
        raise InvalidCommand("both_password_and_password_hash_are_provided")
    if wanted.hashing_algorithm not in ALGORITHMS:
        raise InvalidCommand(
            f"hashing_algorithm '{wanted.hashing_algorithm}' is not one of {', '.join(ALGORITHMS)}"
        )
    stored = wanted.password_hash or ""
    if wanted.password:  # with an empty hash no log-in succeeds, as without a hash
        stored = hash_password(wanted.password, os.urandom(SALT_BYTES), wanted.hashing_algorithm)
    _check_base64(stored)
    return User(
        name=name,
        password_hash=stored,
        hashing_algorithm=wanted.hashing_algorithm,
        tags=tags_of(wanted.tags),
        limits=dict(existing_limits) if wanted.limits is None else wanted.limits,
    )


def _check_base64(text: str) -> None:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:  # as for letters beyond ASCII
        raise InvalidCommand("password_hash is not base64") from None
