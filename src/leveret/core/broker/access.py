"""Logins and permissions of users.

Password hashes are RabbitMQ's: base64 of 4 octets of salt and SHA-256 of salt and password
(facts of `rabbit_password.erl`), so that users travel between brokers without their passwords.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final, Literal

from leveret.model.definitions import Definitions, Permission, TopicPermission, User
from leveret.model.errors import InvalidCommand
from leveret.model.patterns import PatternError, compiled, stored

SALT_BYTES: Final = 4
_DIGESTS: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}

Operation = Literal["configure", "write", "read"]


def hash_password(password: str, salt: bytes, algorithm: str = "rabbit_password_hashing_sha256") -> str:
    """The stored form of a password; `salt` has 4 random octets."""
    digest = hashlib.new(_DIGESTS[algorithm], salt + password.encode()).digest()
    return base64.b64encode(salt + digest).decode()


def check_password(user: User, password: str) -> bool:
    """Tell whether `password` is the user's; a user without a hash never logs in by password."""
    if user.hashing_algorithm not in _DIGESTS or not user.password_hash or not password:
        return False
    try:
        salt = base64.b64decode(user.password_hash, validate=True)[:SALT_BYTES]
    except ValueError:  # also what a hash with letters beyond ASCII gives
        return False
    return hmac.compare_digest(hash_password(password, salt, user.hashing_algorithm), user.password_hash)


def permission_of(definitions: Definitions, user: str, vhost: str) -> Permission | None:
    """The user's permissions in the vhost, None for no access at all."""
    found = definitions.by_kind["permissions"].get((vhost, user))
    return found if isinstance(found, Permission) else None


def is_allowed(permission: Permission | None, operation: Operation, name: str) -> bool:
    """Tell whether the user may configure, write or read the exchange or queue `name`.

    The default exchange is named `amq.default` for this purpose, as in RabbitMQ. An empty pattern
    matches nothing but the empty name.
    """
    if permission is None:
        return False
    return matches(getattr(permission, operation), name or "amq.default")


def matches(pattern: str, name: str) -> bool:
    """Tell whether a permission's pattern covers `name`; an empty pattern covers only the empty name."""
    return stored(pattern or "^$").covers(name)


def check_patterns(permission: Permission | TopicPermission) -> None:
    """Refuse permissions with patterns that are no regular expressions.

    Raises:
        InvalidCommand: names the field and the faulty pattern.
    """
    for field in ("configure", "write", "read"):
        pattern = getattr(permission, field, "")
        try:
            compiled(pattern)
        except PatternError:
            raise InvalidCommand(f"'{field}' is not a regular expression: {pattern!r}") from None


def topic_pattern(pattern: str, user: str, vhost: str) -> str:
    """A topic permission's pattern with `{username}` and `{vhost}` replaced by their values."""
    for variable, value in (("{username}", user), ("{vhost}", vhost)):
        pattern = pattern.replace(variable, re.escape(value))
    return pattern
