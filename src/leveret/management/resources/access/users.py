"""`/api/users`: accounts, by their password hashes and tags."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.paged_lists import Listing
from leveret.management.request.replies import done, put_reply
from leveret.model.definitions import AnyEntity, Delete, Put, User
from leveret.model.errors import AuthenticationFailed, InvalidCommand, NotFound
from leveret.runtime.definitions.accounts import WantedUser, user_of


class BulkDeleteBody(msgspec.Struct):
    """The body of a bulk delete."""

    users: list[str]


class PasswordBody(msgspec.Struct):
    """The body that asks whether a password is right."""

    password: str


async def show_all(call: Call) -> Response:
    """All users."""
    users = [*call.definitions["users"].values()]
    return await call.list(Listing(users, call.entity_json, order=lambda each: each.key), in_pages=True)


async def show(call: Call) -> Response:
    """One user."""
    user = _user(call)
    return call.show(msgspec.to_builtins(user), user)


async def put(call: Call) -> Response:
    """Add a user, or replace one, except for the limits."""
    name = call.new_name("user")
    wanted = await call.body(WantedUser)
    existing = call.definitions["users"].get((name,))
    call.check_conditions(existing)
    limits = existing.limits if isinstance(existing, User) else {}
    await call.apply(Put(user_of(name, wanted, limits)))
    return put_reply(existed=existing is not None)


async def delete(call: Call) -> Response:
    """Delete a user, with permissions and connections."""
    await call.apply(Delete("users", _user(call).key))
    return done()


async def delete_some(call: Call) -> Response:
    """Delete several users, or none if one of them does not exist."""
    wanted = await call.body(BulkDeleteBody)
    for name in wanted.users:
        if (name,) not in call.definitions["users"]:
            raise InvalidCommand(f"no_such_user: user '{name}' does not exist")
    await call.apply(*(Delete("users", (name,)) for name in wanted.users))
    return done()


async def authenticate(call: Call) -> Response:
    """Whether a password is the user's, for a login from this machine."""
    wanted = await call.body(PasswordBody)
    try:
        call.node.authenticate(call.path("user"), wanted.password, True)
    except AuthenticationFailed as error:
        raise InvalidCommand(f"failed to authenticate: {error}") from None
    return done()


async def show_permissions(call: Call) -> Response:
    """The user's permissions, by vhost."""
    name = _user(call).key[0]
    return await call.list_entities(
        each for each in call.definitions["permissions"].values() if each.key[1] == name
    )


async def show_topic_permissions(call: Call) -> Response:
    """The user's routing keys, by vhost and exchange."""
    name = _user(call).key[0]
    existing = call.definitions["topic_permissions"].values()
    return await call.list_entities(each for each in existing if each.key[1] == name)


async def show_without_permissions(call: Call) -> Response:
    """The users without any permissions."""
    having = {key[1] for key in call.definitions["permissions"]}
    return await call.list_entities(
        user for (name,), user in call.definitions["users"].items() if name not in having
    )


def _user(call: Call) -> AnyEntity:
    name = call.path("user")
    try:
        return call.definitions["users"][(name,)]
    except KeyError:
        raise NotFound(f"user '{name}' does not exist") from None


ROUTES = [
    resource("/api/users", need=Requirement.ADMINISTRATOR, GET=show_all),
    resource(
        "/api/users/without-permissions",
        need=Requirement.ADMINISTRATOR,
        GET=show_without_permissions,
    ),
    resource("/api/users/bulk-delete", need=Requirement.ADMINISTRATOR, POST=delete_some),
    resource("/api/users/{user}", need=Requirement.ADMINISTRATOR, GET=show, PUT=put, DELETE=delete),
    resource(
        "/api/users/{user}/authenticate",
        need=Requirement.ADMINISTRATOR,
        on_followers=True,
        defines=False,
        POST=authenticate,
    ),
    resource("/api/users/{user}/permissions", need=Requirement.ADMINISTRATOR, GET=show_permissions),
    resource(
        "/api/users/{user}/topic-permissions",
        need=Requirement.ADMINISTRATOR,
        GET=show_topic_permissions,
    ),
]
