"""`/api/queues/VHOST/NAME/restart`: a queue whose log cannot be read, or is missing, begins anew without it.

GET   the losses of a restart: {"damage": ..., "copies": [{"node", "role", "state", "messages", ...}]}
PUT   restart, with `?give_up=true`; the same document, of just before. Copies on nodes that run are quarantined
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.responses import Response

from leveret.core.queues.queue import Queue
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.places import at_leader, need_led_here
from leveret.management.request.replies import json_reply
from leveret.management.resources.queues import queue_of
from leveret.model.errors import PreconditionFailed
from leveret.runtime.logs.log_store import log_name

logger = logging.getLogger(__name__)


async def show(call: Call) -> Response:
    """The losses of a restart."""
    return call.show(await _lost(call, _crashed(call)))


async def restart(call: Call) -> Response:
    """Restart the queue empty: it keeps its name, arguments, policies and bindings, and none of its messages.

    Copies are quarantined before the definition changes, and deleted behind it. If a node dies in between, the queue
    stays down, and the copies exist twice.
    """
    queue = _crashed(call)
    lost = await _lost(call, queue)
    if not call.flag("give_up"):
        raise PreconditionFailed(
            f"{_sentence(queue, lost)}; with give_up=true the queue begins anew without them"
        )
    vhost, name = queue.key
    await call.node.commits.all_durable()
    await call.cluster.quarantine_copies(vhost, name)
    await call.node.replication.inspection.quarantine_log(log_name(queue))
    if _crashed(call) is not queue:
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' was declared anew meanwhile")
    logger.warning(
        "queue_restarted vhost=%s queue=%s gives_up=%s", vhost, name, msgspec.json.encode(lost).decode()
    )
    call.broker.restart_queue(queue)
    await call.node.commit()
    return json_reply(lost)


def _crashed(call: Call) -> Queue:
    """The queue of the path.

    Raises:
        PreconditionFailed: the queue is not down.
    """
    queue = queue_of(call)
    need_led_here(call, queue)
    if queue.damage is None:
        vhost, name = queue.key
        raise PreconditionFailed(
            f"queue '{name}' in vhost '{vhost}' is not crashed: there is nothing to restart"
        )
    return queue


async def _lost(call: Call, queue: Queue) -> dict[str, Any]:
    copies = [
        *await call.node.replication.inspection.copies(log_name(queue)),
        *await call.cluster.copies(queue.key[0], queue.key[1]),
    ]
    return {"damage": queue.damage, "copies": msgspec.to_builtins(copies)}


def _sentence(queue: Queue, lost: dict[str, Any]) -> str:
    copies = [
        f"{copy['node']} has {'an unknown number of' if copy['messages'] is None else copy['messages']} messages"
        for copy in lost["copies"]
        if copy["state"] != "missing"
    ]
    found = "; ".join(copies) or "no copy of its log was found"
    vhost, name = queue.key
    return f"queue '{name}' in vhost '{vhost}' is crashed ({lost['damage']}). Given up would be: {found}"


ROUTES = [
    resource(
        "/api/queues/{vhost}/{name}/restart",
        need=Requirement.ADMINISTRATOR,
        place=at_leader,
        GET=show,
        PUT=restart,
    )
]
