"""`/api/permissions`: the objects that users may configure, write and read in a vhost."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import done, put_reply
from leveret.model.definitions import Delete, Permission, Put
from leveret.model.errors import NotFound


class PermissionBody(msgspec.Struct):
    """The body of a PUT."""

    configure: str
    write: str
    read: str


async def show_all(call: Call) -> Response:
    """All permissions."""
    return await call.list_entities(call.definitions["permissions"].values())


async def show(call: Call) -> Response:
    """One user's permissions in one vhost."""
    return call.show(msgspec.to_builtins(call.definitions["permissions"][_existing(call)]))


async def put(call: Call) -> Response:
    """Set a user's permissions in a vhost."""
    wanted = await call.body(PermissionBody)
    vhost, user = call.vhost_and_user()
    existed = (vhost, user) in call.definitions["permissions"]
    await call.apply(
        Put(
            Permission(
                user=user,
                vhost=vhost,
                configure=wanted.configure,
                write=wanted.write,
                read=wanted.read,
            )
        )
    )
    return put_reply(existed=existed)


async def delete(call: Call) -> Response:
    """Take all permissions in a vhost from a user."""
    await call.apply(Delete("permissions", _existing(call)))
    return done()


def _existing(call: Call) -> tuple[str, str]:
    key = (call.path("vhost"), call.path("user"))
    if key not in call.definitions["permissions"]:
        raise NotFound(f"user '{key[1]}' has no permissions in vhost '{key[0]}'")
    return key


ROUTES = [
    resource("/api/permissions", need=Requirement.ADMINISTRATOR, GET=show_all),
    resource(
        "/api/permissions/{vhost}/{user}",
        need=Requirement.ADMINISTRATOR,
        GET=show,
        PUT=put,
        DELETE=delete,
    ),
]
