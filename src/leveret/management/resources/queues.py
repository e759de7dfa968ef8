"""`/api/queues`: queues with their counts; declare, purge, delete."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from starlette.responses import Response

from leveret.core.access import Operation
from leveret.core.queue import Queue
from leveret.management.auth import Need
from leveret.management.call import Call, resource
from leveret.management.listing import Listing
from leveret.management.peer_view import consumer_json
from leveret.management.peers import consumers_of_queue
from leveret.management.queue_view import owner_json, queue_json
from leveret.management.replies import done, put_reply
from leveret.management.resources.bindings import binding_json
from leveret.model.definitions import Binding
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import AccessRefused, InvalidCommand, ResourceLocked

_ACTIONS = ("sync", "cancel_sync")


class Wanted(msgspec.Struct):
    """The body of a PUT."""

    durable: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = {}
    node: str | None = None


class Action(msgspec.Struct):
    """The body that asks for an action."""

    action: str


async def show_all(call: Call) -> Response:
    """The queues of all vhosts the caller sees."""
    seen = set(call.seen_vhosts())
    return await _list(call, [queue for key, queue in call.broker.queues.items() if key[0] in seen])


async def show_vhost(call: Call) -> Response:
    """The queues of one vhost."""
    return await _list(call, call.broker.vhost_queues(call.vhost()))


async def show(call: Call) -> Response:
    """One queue, with its consumers."""
    queue = queue_of(call)
    shown = queue_json(call, queue) | owner_json(queue)
    if not call.flag("disable_stats"):
        shown["consumer_details"] = [consumer_json(call.node, each) for each in consumers_of_queue(queue)]
        shown |= {"deliveries": [], "incoming": []}
    return call.show(shown)


async def put(call: Call) -> Response:
    """Declare a queue, or check that the one there is equivalent."""
    vhost, name = call.vhost(), call.new_name()
    wanted = await call.body(Wanted)
    held = call.broker.queues.get((vhost, name))
    if held is None and (not name or name.startswith("amq.")):
        raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    call.caller.may("configure", vhost, name, "queue")
    if wanted.node not in (None, call.node.config.node_name):
        raise InvalidCommand(f"Node {wanted.node} could not be contacted")
    if held is not None:
        _check_unlocked(held)
    call.broker.declare_queue(
        QueueDefinition(
            name=name,
            vhost=vhost,
            durable=wanted.durable,
            auto_delete=wanted.auto_delete,
            arguments=wanted.arguments,
        )
    )
    await call.node.commit()
    return put_reply(existed=held is not None)


async def delete(call: Call) -> Response:
    """Delete a queue; `if-unused`, `if-empty` on these conditions only."""
    queue = unlocked_queue(call, "configure")
    call.broker.delete_queue(queue, if_unused=call.flag("if-unused"), if_empty=call.flag("if-empty"))
    await call.node.commit()
    return done()


async def purge(call: Call) -> Response:
    """Drop all ready messages."""
    vhost, name = unlocked_queue(call, "read").key
    call.node.purge(vhost, name)
    await call.node.commit()
    return done()


async def act(call: Call) -> Response:
    """Synchronise mirrors, or stop to: done, as a queue here has no mirrors."""
    queue_of(call)
    wanted = await call.body(Action)
    if wanted.action not in _ACTIONS:
        raise InvalidCommand(f"unknown action '{wanted.action}': use {' or '.join(_ACTIONS)}")
    return done()


async def show_bindings(call: Call) -> Response:
    """What the queue is bound to, the default exchange first."""
    queue = queue_of(call)
    vhost, name = queue.key
    implicit = Binding(source="", vhost=vhost, destination=name, routing_key=name)
    explicit = call.broker.topology(vhost).bindings_into("queue", name)
    return await call.plain_list(
        [binding_json(each) for each in [implicit, *explicit]], "source", "routing_key"
    )


def queue_of(call: Call) -> Queue:
    """The queue of the path, also one that is down: an operator looks at it and may delete it.

    Raises:
        NotFound: there is none.
    """
    key = call.vhost(), call.path("name")
    return call.broker.queues.get(key) or call.broker.queue(*key)


def unlocked_queue(call: Call, operation: Operation) -> Queue:
    """The queue of the path, which belongs to no connection, for a caller who may do this to it.

    Raises:
        Refusal: there is none, it is locked, or the caller may not.
    """
    queue = queue_of(call)
    vhost, name = queue.key
    call.caller.may(operation, vhost, name, "queue")
    _check_unlocked(queue)
    return queue


def _check_unlocked(queue: Queue) -> None:
    vhost, name = queue.key
    if queue.owner is not None:
        raise ResourceLocked(f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'")


async def _list(call: Call, queues: Collection[Queue]) -> Response:
    listing = Listing(
        list(queues),
        lambda queue: queue_json(call, queue),
        order=lambda queue: queue.key,
        name=lambda queue: queue.key[1],
        columns={
            "name": lambda queue: queue.key[1],
            "vhost": lambda queue: queue.key[0],
            "messages": lambda queue: queue.message_count,
            "messages_ready": lambda queue: queue.ready_count,
            "messages_unacknowledged": lambda queue: queue.unacked_count,
            "consumers": lambda queue: queue.consumer_count,
        },
    )
    return await call.list(listing, in_pages=True)


ROUTES = [
    resource("/api/queues", GET=show_all),
    resource("/api/queues/{vhost}", GET=show_vhost),
    resource("/api/queues/{vhost}/{name}", GET=show, PUT=put, DELETE=delete),
    resource("/api/queues/{vhost}/{name}/contents", DELETE=purge),
    resource("/api/queues/{vhost}/{name}/actions", need=Need.ADMINISTRATOR, POST=act),
    resource("/api/queues/{vhost}/{name}/bindings", GET=show_bindings),
]
