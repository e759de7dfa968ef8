"""`/api/queues`: queues with their counts; declare, purge, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import msgspec
from starlette.responses import Response

from leveret.core.queues.queue import Queue
from leveret.core.rules.validation import declared_name
from leveret.management.peers import consumers_of_queue
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import ReportedObjects, whole_list_of
from leveret.management.request.paged_lists import Listing
from leveret.management.request.places import at_leader, need_led_here
from leveret.management.request.replies import done, put_reply
from leveret.management.resources.bindings import binding_json, default_binding
from leveret.management.views.peer_view import consumer_json
from leveret.management.views.queue_view import owner_json, queue_json
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.definitions import WrittenArguments
from leveret.model.errors import AccessRefused, InvalidCommand, PreconditionFailed
from leveret.runtime.process.work_slices import in_slices

_ACTIONS: Final = ("sync", "cancel_sync")


class QueueBody(msgspec.Struct):
    """The body of a PUT."""

    durable: bool = False
    auto_delete: bool = False
    arguments: WrittenArguments = {}
    node: str | None = None


class QueueActionBody(msgspec.Struct):
    """The body that asks for an action."""

    action: str


async def show_all(call: Call) -> Response:
    """The queues of all vhosts that the caller may see."""
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
        consumers = list(consumers_of_queue(queue))
        shown["consumer_details"] = [consumer_json(call.node, each) async for each in in_slices(consumers)]
        shown |= {"deliveries": [], "incoming": []}
        if call.cluster.is_member:
            shown["mirror_details"] = call.cluster.mirror_states(queue.key)
    return call.show(shown)


async def put(call: Call) -> Response:
    """Declare a queue, or check that an existing one is equivalent."""
    vhost, name = call.vhost(), declared_name(call.new_name())
    wanted = await call.body(QueueBody)
    existing = call.broker.queues.get((vhost, name))
    if existing is not None:
        need_led_here(call, existing)
    call.check_conditions(existing.definition if existing is not None else None)
    if not name:
        raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    if wanted.node not in (None, call.node.config.node_name):
        raise InvalidCommand(f"Node {wanted.node} could not be contacted")
    call.caller.in_vhost(vhost).declare_queue(
        QueueDefinition(
            name=name,
            vhost=vhost,
            durable=wanted.durable,
            auto_delete=wanted.auto_delete,
            arguments=wanted.arguments or {},
        )
    )
    await call.node.commit()
    return put_reply(existed=existing is not None)


async def _at_wanted(call: Call) -> str | None:
    """The node that declares a queue: the leader of an existing one, else the node in the body."""
    if call.request.method != "PUT" or (call.path("vhost"), call.path("name")) in call.broker.queues:
        return await at_leader(call)
    node, cluster = (await call.body(QueueBody)).node, call.cluster
    return node if node != cluster.name and node in cluster.alive() else None


async def delete(call: Call) -> Response:
    """Delete a queue; `if-unused`, `if-empty` only under these conditions.

    A queue without a running leader can be deleted without conditions.
    """
    await call.returned(queue_of(call))
    queue, actor = queue_of(call), call.caller.in_vhost(call.vhost())
    actor.require("configure", "queue", queue.key[1])
    if queue.is_remote and (call.flag("if-unused") or call.flag("if-empty") or call.passed is not None):
        need_led_here(call, queue)
    conditions = {"if_unused": call.flag("if-unused"), "if_empty": call.flag("if-empty")}
    await call.in_turns(lambda then: actor.delete_queue_in_turns(queue, then, **conditions))
    return done()


async def purge(call: Call) -> Response:
    """Drop all ready messages."""
    await call.returned(queue_of(call))
    queue = queue_of(call)
    need_led_here(call, queue)
    purged: asyncio.Future[PreconditionFailed | None] = asyncio.get_running_loop().create_future()

    def note(_: int, refused: PreconditionFailed | None) -> None:
        # The request is cancelled when the node stops serving, and the purge ends all the same.
        if not purged.done():
            purged.set_result(refused)

    call.caller.in_vhost(queue.key[0]).purge_safely(queue, note)
    await call.node.messages_durable()
    if (refused := await purged) is not None:
        raise refused
    return done()


async def act(call: Call) -> Response:
    """Begin or stop to synchronise mirrors, without reporting the end, or that there was nothing to do."""
    queue = queue_of(call)
    wanted = await call.body(QueueActionBody)
    if wanted.action not in _ACTIONS:
        raise InvalidCommand(f"unknown action '{wanted.action}': use {' or '.join(_ACTIONS)}")
    need_led_here(call, queue)
    cluster = call.cluster
    with suppress(PreconditionFailed):
        await (cluster.sync_queue if wanted.action == "sync" else cluster.cancel_sync_queue)(*queue.key)
    return done()


async def show_bindings(call: Call) -> Response:
    """The queue's bindings, the default exchange's first."""
    queue = queue_of(call)
    vhost, name = queue.key
    explicit = call.broker.topology(vhost).bindings_into("queue", name)
    return await call.plain_list(
        [binding_json(each) for each in [default_binding(vhost, name), *explicit]], "source", "routing_key"
    )


def queue_of(call: Call) -> Queue:
    """The queue of the path, also one that is down, for inspection and deletion.

    Raises:
        NotFound: there is none.
    """
    key = call.vhost(), call.path("name")
    return call.broker.queues.get(key) or call.broker.queue(*key)


async def _list(call: Call, queues: Collection[Queue]) -> Response:
    return await whole_list_of(
        call, lambda reported: _listing(call, queues, reported), in_pages=True, key=("vhost", "name")
    )


def _listing(call: Call, queues: Collection[Queue], reported: ReportedObjects) -> Listing[Queue]:
    """The queues that this node leads and, in an answer for all nodes, those that no node reports.

    During a change of leader, a queue may be reported by no node for a moment.
    """
    cluster = call.cluster
    if cluster.is_member:
        answer = set(cluster.alive()).difference(reported.unreachable) - {cluster.name}

        def is_shown(queue: Queue) -> bool:
            if call.is_part or not queue.is_remote:
                return not queue.is_remote
            has = reported.has(queue.key)
            return cluster.placement(queue.key).leader not in answer if has is None else not has

        queues = list(filter(is_shown, queues))
    return Listing(
        list(queues),
        lambda queue: queue_json(call, queue),
        order=lambda queue: queue.key,
        name=lambda queue: queue.key[1],
        columns={
            "name": lambda queue: queue.key[1],
            "vhost": lambda queue: queue.key[0],
            "messages": lambda queue: queue.unsettled_count,
            "messages_ready": lambda queue: queue.ready_count,
            "messages_unacknowledged": lambda queue: queue.delivered_count,
            "consumers": lambda queue: queue.consumer_count,
        },
        row_order=("vhost", "name"),
    )


ROUTES = [
    resource("/api/queues", GET=show_all),
    resource("/api/queues/{vhost}", GET=show_vhost),
    resource("/api/queues/{vhost}/{name}", place=_at_wanted, GET=show, PUT=put, DELETE=delete),
    resource("/api/queues/{vhost}/{name}/contents", defines=False, place=at_leader, DELETE=purge),
    resource(
        "/api/queues/{vhost}/{name}/actions",
        need=Requirement.ADMINISTRATOR,
        defines=False,
        place=at_leader,
        POST=act,
    ),
    resource("/api/queues/{vhost}/{name}/bindings", GET=show_bindings),
]
