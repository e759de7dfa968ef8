"""`/api/queues`: queues with their counts; declare, purge, delete."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from leveret.core.access import Operation
from leveret.core.queue import Queue
from leveret.core.validation import queue_type
from leveret.management.call import Call, resource
from leveret.management.consumer_view import consumers_of
from leveret.management.replies import done, json_reply, list_reply, put_reply
from leveret.management.resources.bindings import binding_json
from leveret.model.definitions import Binding, Policy, Put
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import AccessRefused, ResourceLocked


class Wanted(msgspec.Struct):
    """The body of a PUT."""

    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] = {}


async def show_all(call: Call) -> Response:
    """The queues of all vhosts the caller sees."""
    seen = {name for name in call.broker.topologies if call.caller.sees(name)}
    queues = [queue for key, queue in call.broker.queues.items() if key[0] in seen]
    return list_reply([queue_json(call, queue) for queue in queues], call.request.query_params)


async def show_vhost(call: Call) -> Response:
    """The queues of one vhost."""
    queues = call.broker.vhost_queues(call.vhost())
    return list_reply([queue_json(call, queue) for queue in queues], call.request.query_params)


async def show(call: Call) -> Response:
    """One queue, with its consumers."""
    queue = _queue(call)
    consumers = [each for each in consumers_of(call.node) if each["queue"] == _place(queue)]
    return json_reply({**queue_json(call, queue), "consumer_details": consumers})


async def put(call: Call) -> Response:
    """Declare a queue, or check that the one there is equivalent."""
    vhost, name = call.vhost(), call.path("name")
    wanted = await call.body(Wanted)
    existed = (vhost, name) in call.broker.queues
    if not existed and (not name or name.startswith("amq.")):
        raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    call.caller.may("configure", vhost, name, "queue")
    queue = QueueDefinition(
        name=name,
        vhost=vhost,
        durable=wanted.durable,
        auto_delete=wanted.auto_delete,
        arguments=wanted.arguments,
    )
    await call.apply(Put(queue))
    return put_reply(existed=existed)


async def delete(call: Call) -> Response:
    """Delete a queue; `if-unused`, `if-empty` on these conditions only."""
    queue = _unlocked_queue(call, "configure")
    call.broker.delete_queue(queue, if_unused=call.flag("if-unused"), if_empty=call.flag("if-empty"))
    await call.node.commit()
    return done()


async def purge(call: Call) -> Response:
    """Drop all ready messages."""
    vhost, name = _unlocked_queue(call, "read").key
    call.node.purge(vhost, name)
    await call.node.commit()
    return done()


async def show_bindings(call: Call) -> Response:
    """What the queue is bound to, the default exchange first."""
    queue = _queue(call)
    vhost, name = queue.key
    implicit = Binding(source="", vhost=vhost, destination=name, routing_key=name)
    explicit = call.broker.topology(vhost).bindings_into("queue", name)
    return json_reply([binding_json(each) for each in [implicit, *explicit]])


def queue_json(call: Call, queue: Queue) -> dict[str, Any]:
    """A queue as RabbitMQ shows it; only what is known is told."""
    definition = queue.definition
    vhost, name = queue.key
    policy = call.definitions["policies"].get((vhost, queue.policy)) if queue.policy else None
    return {
        "name": name,
        "vhost": vhost,
        "durable": definition.durable,
        "auto_delete": definition.auto_delete,
        "exclusive": queue.owner is not None,
        "arguments": definition.arguments,
        "type": queue_type(definition.arguments),
        "node": call.node.config.node_name,
        "state": "running" if queue.damage is None else "crashed",
        "policy": queue.policy,
        "effective_policy_definition": policy.definition if isinstance(policy, Policy) else {},
        "consumers": queue.consumer_count,
        "messages": queue.ready_count + queue.unacked_count,
        "messages_ready": queue.ready_count,
        "messages_unacknowledged": queue.unacked_count,
        "message_stats": {"publish": queue.published_total},
    }


def _queue(call: Call) -> Queue:
    """The queue, also one that is down: an operator looks at it and may delete it."""
    key = call.vhost(), call.path("name")
    return call.broker.queues.get(key) or call.broker.queue(*key)


def _unlocked_queue(call: Call, operation: Operation) -> Queue:
    queue = _queue(call)
    vhost, name = queue.key
    call.caller.may(operation, vhost, name, "queue")
    if queue.owner is not None:
        raise ResourceLocked(f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'")
    return queue


def _place(queue: Queue) -> dict[str, str]:
    vhost, name = queue.key
    return {"name": name, "vhost": vhost}


ROUTES = [
    resource("/api/queues", GET=show_all),
    resource("/api/queues/{vhost}", GET=show_vhost),
    resource("/api/queues/{vhost}/{name}", GET=show, PUT=put, DELETE=delete),
    resource("/api/queues/{vhost}/{name}/contents", DELETE=purge),
    resource("/api/queues/{vhost}/{name}/bindings", GET=show_bindings),
]
