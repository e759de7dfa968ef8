"""The default user and virtual host, and the addresses from which users may log in."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.kinds import Choice, Flag, Regex, TextKind
from leveret.config.sections.collect import chosen, in_order
from leveret.config.settings import family, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """The default user and virtual host, and the addresses from which users may log in."""

    default_user: str = setting(
        "default_user",
        TextKind(),
        "guest",
        "User that the first start makes, unless imported definitions have users.",
    )
    default_pass: str = setting(
        "default_pass",
        TextKind(secret=True),
        "guest",
        "Password of the default user. `$(<FILE)` reads it from a file.",
    )
    default_vhost: str = setting("default_vhost", TextKind(), "/", "Virtual host that the first start makes.")
    default_configure: str = setting(
        "default_permissions.configure",
        Regex(),
        ".*",
        "Names that the default user may configure in the default virtual host: a regular expression.",
    )
    default_read: str = setting(
        "default_permissions.read",
        Regex(),
        ".*",
        "Names that the default user may read from in the default virtual host: a regular expression.",
    )
    default_write: str = setting(
        "default_permissions.write",
        Regex(),
        ".*",
        "Names that the default user may write to in the default virtual host: a regular expression.",
    )
    default_tags: frozenset[str] = family(
        "default_user_tags",
        Flag(),
        {"administrator": "true"},
        "Tags of the default user. `default_user_tags = none` for none.",
        collect=chosen,
    )
    backends: tuple[str, ...] = family(
        "auth_backends",
        Choice(("internal", "rabbit_auth_backend_internal")),
        {"1": "internal"},
        "Backend for users and permissions. The node itself is the only one.",
        collect=in_order,
    )
    loopback_users: frozenset[str] = family(
        "loopback_users",
        Flag(),
        {"guest": "true"},
        "Users who may connect from this machine only. With `loopback_users = none` all users "
        "may connect from anywhere.",
        collect=chosen,
    )
