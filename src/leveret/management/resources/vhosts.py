"""`/api/vhosts`: virtual hosts, with their tags and totals."""

from __future__ import annotations

import logging
from typing import Any, Final, TypeAlias

import msgspec
from starlette.responses import Response

from leveret.management.rates.rates import LENGTHS, OCTETS
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import sums_of, with_sum
from leveret.management.request.paged_lists import Listing
from leveret.management.request.replies import done, put_reply
from leveret.model.definitions import Delete, Permission, Put, Vhost
from leveret.model.errors import InvalidCommand, NotFound
from leveret.model.tags import tags_of

logger = logging.getLogger(__name__)

Tags: TypeAlias = str | list[str]
_SUMMED: Final = (
    "message_stats",
    *(f"{name}{end}" for name in (*LENGTHS, *OCTETS) for end in ("", "_details")),
)
"""The fields that are summed: each node counts its own queues and connections of a vhost."""


class VhostBody(msgspec.Struct):
    """The body of a PUT; missing fields stay, or get their defaults."""

    description: str | None = None
    tags: Tags | None = None
    default_queue_type: str | None = None
    tracing: bool | None = None


async def show_all(call: Call) -> Response:
    """The vhosts that the caller may see."""
    others = await sums_of(call, ("name",))
    # As they stand now: a vhost may be deleted while the rows are made.
    found = [vhost for vhost in _vhosts(call) if call.caller.knows(vhost.name)]
    listing = Listing(
        found,
        lambda vhost: with_sum(vhost_json(call, vhost), others.get((vhost.name,), ()), _SUMMED),
        order=lambda vhost: vhost.name,
        name=lambda vhost: vhost.name,
    )
    return await call.list(listing, in_pages=True)


async def show(call: Call) -> Response:
    """One vhost."""
    name = call.vhost()
    vhost = next(each for each in _vhosts(call) if each.name == name)
    others = await sums_of(call, ("name",))
    return call.show(with_sum(vhost_json(call, vhost), others.get((name,), ()), _SUMMED))


async def put(call: Call) -> Response:
    """Make a vhost, or change its description and tags; its maker gets all permissions."""
    name = call.new_name("vhost")
    if not name:
        raise InvalidCommand("a vhost needs a name")
    wanted = await call.body(VhostBody)
    existing = call.definitions["vhosts"].get((name,))
    new = Vhost(name=name, default_queue_type=call.broker.default_queue_type)
    before = existing if isinstance(existing, Vhost) else new
    vhost = Vhost(
        name=name,
        description=before.description if wanted.description is None else wanted.description,
        tags=before.tags if wanted.tags is None else tags_of(wanted.tags),
        default_queue_type=_chosen_type(wanted) or before.default_queue_type,
    )
    changes = [Put(vhost)]
    if existing is None and not call.caller.is_operator:
        everything = Permission(user=call.caller.name, vhost=name, configure=".*", write=".*", read=".*")
        changes.append(Put(everything))
    await call.apply(*changes)
    if wanted.tracing is not None:
        _trace(call, name, on=wanted.tracing)
    return put_reply(existed=existing is not None)


async def delete(call: Call) -> Response:
    """Delete a vhost with its content."""
    name = call.path("vhost")
    if (name,) not in call.definitions["vhosts"]:
        raise NotFound(f"vhost '{name}' does not exist")
    # One after the other, because all at once would hold up the clients of other vhosts.
    bindings = [Delete("bindings", binding.key) for binding in call.broker.topology(name).bindings()]
    queues = [Delete("queues", queue.key) for queue in call.broker.vhost_queues(name)]
    await call.apply(*bindings, *queues, Delete("vhosts", (name,)))
    return done()


async def start(call: Call) -> Response:
    """Start a vhost on a node, where it always runs while the node does."""
    vhost, node = call.path("vhost"), call.path("node")
    if node not in call.cluster.members():
        raise InvalidCommand(f"node '{node}' is not part of this cluster")
    if (vhost,) not in call.definitions["vhosts"]:
        raise InvalidCommand(f"no_such_vhost: vhost '{vhost}' does not exist")
    return done()


async def show_permissions(call: Call) -> Response:
    """The permissions in the vhost."""
    return await _list_of(call, "permissions")


async def show_topic_permissions(call: Call) -> Response:
    """The topic permissions in the vhost."""
    return await _list_of(call, "topic_permissions")


def _vhosts(call: Call) -> list[Vhost]:
    return [each for each in call.definitions["vhosts"].values() if isinstance(each, Vhost)]


def vhost_json(call: Call, vhost: Vhost) -> dict[str, Any]:
    """A vhost as RabbitMQ shows it."""
    name = vhost.name
    shown = {
        "description": vhost.description,
        "tags": vhost.tags,
        "default_queue_type": vhost.default_queue_type,
    }
    return {
        "name": name,
        **shown,
        "metadata": shown,
        "tracing": name in call.broker.traced_vhosts,
        "cluster_state": {
            node: "running" if node in call.cluster.alive() else "stopped" for node in call.cluster.members()
        },
        **call.rates.vhost(name, call.ranges()),
    }


async def _list_of(call: Call, kind: str) -> Response:
    vhost = call.vhost()
    return await call.list_entities(each for each in call.definitions[kind].values() if each.key[0] == vhost)


def _trace(call: Call, vhost: str, *, on: bool) -> None:
    """Begin to copy the vhost's messages to amq.rabbitmq.trace until the node stops, or end it."""
    traced = call.broker.traced_vhosts
    if on is not (vhost in traced):
        logger.info("tracing_%s vhost=%s user=%s", "enabled" if on else "disabled", vhost, call.caller.name)
    (traced.add if on else traced.discard)(vhost)


def _chosen_type(wanted: VhostBody) -> str | None:
    # RabbitMQ 3.10 and 3.11 show "undefined" if none was chosen.
    return None if wanted.default_queue_type == "undefined" else wanted.default_queue_type


_ADMIN: Final = Requirement.ADMINISTRATOR
ROUTES = [
    resource("/api/vhosts", GET=show_all),
    resource("/api/vhosts/{vhost}", need=_ADMIN, GET=show, PUT=put, DELETE=delete),
    resource("/api/vhosts/{vhost}/start/{node}", need=_ADMIN, defines=False, POST=start),
    resource("/api/vhosts/{vhost}/permissions", need=_ADMIN, GET=show_permissions),
    resource("/api/vhosts/{vhost}/topic-permissions", need=_ADMIN, GET=show_topic_permissions),
]
