"""`/api/vhost-limits`, `/api/user-limits`: the largest numbers of connections, channels and queues.

A vhost's limits are its runtime parameter `vhost-limits`, a user's are part of the user.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from leveret.core.broker.limits import LIMITS_NAME, VHOST_LIMITS
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import done
from leveret.model.definitions import Parameter, Put, User
from leveret.model.errors import InvalidCommand, NotFound


class LimitBody(msgspec.Struct):
    """The body of a PUT; the broker checks the value."""

    value: object


async def show_vhosts(call: Call) -> Response:
    """The limits of all vhosts that the caller may see and that have any."""
    return await call.plain_list(_vhost_rows(call, call.seen_vhosts()), "vhost")


async def show_vhost(call: Call) -> Response:
    """The limits of one vhost."""
    return await call.plain_list(_vhost_rows(call, [call.vhost()]), "vhost")


async def put_vhost(call: Call) -> Response:
    """Set a limit of a vhost."""
    vhost, name = call.vhost(), call.path("name")
    wanted = await call.body(LimitBody)
    await _set_vhost(call, vhost, {**_of_vhost(call, vhost), name: wanted.value})
    return done()


async def delete_vhost(call: Call) -> Response:
    """Lift a limit of a vhost; as in RabbitMQ, a missing one is no error."""
    vhost, name = call.vhost(), call.path("name")
    existing = _of_vhost(call, vhost)
    if name in existing:
        await _set_vhost(call, vhost, {key: value for key, value in existing.items() if key != name})
    return done()


async def show_users(call: Call) -> Response:
    """The limits of all users who have any."""
    users = [each for each in call.definitions["users"].values() if isinstance(each, User)]
    return await call.plain_list(_user_rows(users), "user")


async def show_user(call: Call) -> Response:
    """The limits of one user."""
    user = _user(call)
    if user is None:
        raise NotFound(f"user '{call.path('user')}' does not exist")
    return await call.plain_list(_user_rows([user]), "user")


async def put_user(call: Call) -> Response:
    """Set a limit of a user."""
    wanted = await call.body(LimitBody)
    # Only now: the user may have got another password, or been deleted, before the body was here.
    user = _known_user(call)
    limits: Any = {**user.limits, call.path("name"): wanted.value}
    await call.apply(Put(msgspec.structs.replace(user, limits=limits)))
    return done()


async def delete_user(call: Call) -> Response:
    """Lift a limit of a user; as in RabbitMQ, a missing one is no error."""
    user = _known_user(call)
    limits = {key: value for key, value in user.limits.items() if key != call.path("name")}
    await call.apply(Put(msgspec.structs.replace(user, limits=limits)))
    return done()


def _vhost_rows(call: Call, vhosts: list[str]) -> list[dict[str, Any]]:
    existing = ((vhost, _of_vhost(call, vhost)) for vhost in vhosts)
    return [{"vhost": vhost, "value": limits} for vhost, limits in existing if limits]


def _of_vhost(call: Call, vhost: str) -> dict[str, Any]:
    existing = call.definitions["parameters"].get((vhost, VHOST_LIMITS, LIMITS_NAME))
    return existing.value if isinstance(existing, Parameter) and isinstance(existing.value, dict) else {}


async def _set_vhost(call: Call, vhost: str, limits: dict[str, Any]) -> None:
    await call.apply(Put(Parameter(vhost=vhost, component=VHOST_LIMITS, name=LIMITS_NAME, value=limits)))


def _user_rows(users: list[User]) -> list[dict[str, Any]]:
    return [{"user": user.name, "value": user.limits} for user in users if user.limits]


def _user(call: Call) -> User | None:
    existing = call.definitions["users"].get((call.path("user"),))
    return existing if isinstance(existing, User) else None


def _known_user(call: Call) -> User:
    user = _user(call)
    if user is None:
        raise InvalidCommand(f"no_such_user: user '{call.path('user')}' does not exist")
    return user


_ADMIN: Final = Requirement.ADMINISTRATOR
ROUTES = [
    resource("/api/vhost-limits", GET=show_vhosts),
    resource("/api/vhost-limits/{vhost}", GET=show_vhost),
    resource(
        "/api/vhost-limits/{vhost}/{name}",
        need=_ADMIN,
        PUT=put_vhost,
        DELETE=delete_vhost,
    ),
    resource("/api/user-limits", GET=show_users),
    resource("/api/user-limits/{user}", GET=show_user),
    resource("/api/user-limits/{user}/{name}", need=_ADMIN, PUT=put_user, DELETE=delete_user),
]
