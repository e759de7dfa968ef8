"""Who exists after the first start, and from where they may log in."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.collect import chosen, in_order
from leveret.config.kinds import Choice, Flag, Regex, TextKind
from leveret.config.settings import family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who exists after the first start, and from where they may log in."""

    default_user: str = setting(
        "default_user",
        TextKind(),
        "guest",
        "User made on the first start, unless definitions that are imported then have users.",
    )
    default_pass: str = setting(
        "default_pass",
        TextKind(secret=True),
        "guest",
        "Password of that user. `$(<FILE)` takes it from a file.",
    )
    default_vhost: str = setting("default_vhost", TextKind(), "/", "Virtual host made on the first start.")
    default_configure: str = setting(
        "default_permissions.configure", Regex(), ".*", "What that user may configure in that virtual host."
    )
    default_read: str = setting(
        "default_permissions.read", Regex(), ".*", "What that user may read from in that virtual host."
    )
    default_write: str = setting(
        "default_permissions.write", Regex(), ".*", "What that user may write to in that virtual host."
    )
    default_tags: frozenset[str] = family(
        "default_user_tags",
        Flag(),
        {"administrator": "true"},
        "Tags of that user. `default_user_tags = none` for none.",
        collect=chosen,
    )
    backends: tuple[str, ...] = family(
        "auth_backends",
        Choice(("internal", "rabbit_auth_backend_internal")),
        {"1": "internal"},
        "Where users and their permissions are kept; there is only the node itself.",
        collect=in_order,
    )
    loopback_users: frozenset[str] = family(
        "loopback_users",
        Flag(),
        {"guest": "true"},
        "Users who may log in from this machine only. `loopback_users = none` lets all in from anywhere.",
        collect=chosen,
    )
