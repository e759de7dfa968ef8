"""`/api/topic-permissions`: the routing keys that users may write and read at a topic exchange."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import done, put_reply
from leveret.model.definitions import AnyEntity, Delete, Put, TopicPermission
from leveret.model.errors import NotFound


class TopicPermissionBody(msgspec.Struct):
    """The body of a PUT."""

    exchange: str
    write: str
    read: str


async def show_all(call: Call) -> Response:
    """All topic permissions."""
    return await call.list_entities(call.definitions["topic_permissions"].values())


async def show(call: Call) -> Response:
    """A user's topic permissions in a vhost."""
    return await call.list_entities(_existing(call))


async def put(call: Call) -> Response:
    """Set a user's topic permission on one exchange."""
    wanted = await call.body(TopicPermissionBody)
    vhost, user = call.vhost_and_user()
    permission = TopicPermission(
        user=user,
        vhost=vhost,
        exchange=wanted.exchange,
        write=wanted.write,
        read=wanted.read,
    )
    existed = permission.key in call.definitions["topic_permissions"]
    await call.apply(Put(permission))
    return put_reply(existed=existed)


async def delete(call: Call) -> Response:
    """Take a user's topic permissions in a vhost."""
    await call.apply(*(Delete("topic_permissions", each.key) for each in _existing(call)))
    return done()


async def delete_one(call: Call) -> Response:
    """Take a user's topic permission on one exchange."""
    exchange = call.exchange_name("exchange")
    found = [each.key for each in _existing(call) if each.key[2] == exchange]
    if not found:
        raise NotFound(f"user '{call.path('user')}' has no topic permission on exchange '{exchange}'")
    await call.apply(*(Delete("topic_permissions", key) for key in found))
    return done()


def _existing(call: Call) -> list[AnyEntity]:
    vhost, user = call.path("vhost"), call.path("user")
    existing = [
        each for each in call.definitions["topic_permissions"].values() if each.key[:2] == (vhost, user)
    ]
    if not existing:
        raise NotFound(f"user '{user}' has no topic permissions in vhost '{vhost}'")
    return existing


ROUTES = [
    resource("/api/topic-permissions", need=Requirement.ADMINISTRATOR, GET=show_all),
    resource(
        "/api/topic-permissions/{vhost}/{user}",
        need=Requirement.ADMINISTRATOR,
        GET=show,
        PUT=put,
        DELETE=delete,
    ),
    resource(
        "/api/topic-permissions/{vhost}/{user}/{exchange}", need=Requirement.ADMINISTRATOR, DELETE=delete_one
    ),
]
