"""`/api/vhosts`: virtual hosts, with their tags and totals."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from starlette.responses import Response

from leveret.management.auth import Need
from leveret.management.call import Call, resource
from leveret.management.replies import done, json_reply, list_reply, put_reply
from leveret.model.definitions import Delete, Permission, Put, Vhost
from leveret.model.errors import InvalidCommand, NotFound
from leveret.model.tags import tags_of

Tags: TypeAlias = str | list[str]


class Wanted(msgspec.Struct):
    """The body of a PUT; what it does not name stays as it is, or gets its default."""

    description: str | None = None
    tags: Tags | None = None
    default_queue_type: str | None = None


async def show_all(call: Call) -> Response:
    """The vhosts the caller sees."""
    names = [name for (name,) in call.definitions["vhosts"] if call.caller.sees(name)]
    return list_reply([vhost_json(call, name) for name in names], call.request.query_params)


async def show(call: Call) -> Response:
    """One vhost."""
    return json_reply(vhost_json(call, call.vhost()))


async def put(call: Call) -> Response:
    """Make a vhost, or change its description and tags; its maker may do all in it."""
    name = call.path("vhost")
    if not name:
        raise InvalidCommand("a vhost needs a name")
    wanted = await call.body(Wanted)
    held = call.definitions["vhosts"].get((name,))
    before = held if isinstance(held, Vhost) else Vhost(name=name)
    vhost = Vhost(
        name=name,
        description=before.description if wanted.description is None else wanted.description,
        tags=before.tags if wanted.tags is None else tags_of(wanted.tags),
        default_queue_type=wanted.default_queue_type or before.default_queue_type,
    )
    changes = [Put(vhost)]
    if held is None and not call.caller.is_operator:
        everything = Permission(user=call.caller.name, vhost=name, configure=".*", write=".*", read=".*")
        changes.append(Put(everything))
    await call.apply(*changes)
    return put_reply(existed=held is not None)


async def delete(call: Call) -> Response:
    """Delete a vhost and all that is in it."""
    name = call.path("vhost")
    if (name,) not in call.definitions["vhosts"]:
        raise NotFound(f"vhost '{name}' does not exist")
    await call.apply(Delete("vhosts", (name,)))
    return done()


async def show_permissions(call: Call) -> Response:
    """Who may do what in the vhost."""
    vhost = call.vhost()
    return json_reply([each for each in call.definitions["permissions"].values() if each.key[0] == vhost])


async def show_topic_permissions(call: Call) -> Response:
    """Who may use which routing keys in the vhost."""
    vhost = call.vhost()
    return json_reply(
        [each for each in call.definitions["topic_permissions"].values() if each.key[0] == vhost]
    )


def vhost_json(call: Call, name: str) -> dict[str, Any]:
    """A vhost as RabbitMQ shows it."""
    vhost = call.definitions["vhosts"][(name,)]
    assert isinstance(vhost, Vhost)
    queues = call.broker.vhost_queues(name)
    ready = sum(queue.ready_count for queue in queues)
    unacked = sum(queue.unacked_count for queue in queues)
    shown = {
        "description": vhost.description,
        "tags": vhost.tags,
        "default_queue_type": vhost.default_queue_type,
    }
    return {
        "name": name,
        **shown,
        "metadata": shown,
        "tracing": False,
        "cluster_state": {call.node.config.node_name: "running"},
        "messages": ready + unacked,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
    }


ROUTES = [
    resource("/api/vhosts", GET=show_all),
    resource("/api/vhosts/{vhost}", change=Need.ADMINISTRATOR, GET=show, PUT=put, DELETE=delete),
    resource("/api/vhosts/{vhost}/permissions", need=Need.ADMINISTRATOR, GET=show_permissions),
    resource("/api/vhosts/{vhost}/topic-permissions", need=Need.ADMINISTRATOR, GET=show_topic_permissions),
]
