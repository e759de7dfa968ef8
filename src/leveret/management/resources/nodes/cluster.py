"""`/api/cluster`: the cluster's state, joining and leaving; `/api/rebalance/queues`.

GET    node                 see `management.node.ClusterOperations.status`
POST   join                 {"node": "rabbit@a"}; {"already_member": false}
DELETE members/NAME         forget a node that does not run; a row a queue that it led
POST   rebalance            {"kind": "all", "vhost_pattern": ".*", "queue_pattern": ".*"}; a row a node
POST   sync/VHOST/NAME      begin to synchronise a queue's mirrors; RabbitMQ's path for it gives no reasons of refusals
DELETE sync/VHOST/NAME      stop it; {"was_syncing": true}
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Final, Literal

import msgspec
from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.places import at_leader, need_led_here
from leveret.management.request.replies import done, json_reply
from leveret.management.resources.queues import queue_of
from leveret.model.errors import LeveretError

logger = logging.getLogger(__name__)

_balancing: Final[set[asyncio.Task[None]]] = set()
"""The running tasks without a waiting caller."""


class JoinBody(msgspec.Struct):
    """The body that joins."""

    node: str


class RebalanceBody(msgspec.Struct):
    """The body that spreads leaders over the nodes."""

    kind: Literal["all", "classic", "quorum", "stream"] = "all"
    vhost_pattern: str = ".*"
    queue_pattern: str = ".*"


async def show_status(call: Call) -> Response:
    """Members, definitions lock, lease and etcd."""
    return call.show(call.cluster.status())


async def join(call: Call) -> Response:
    """Become a member."""
    wanted = await call.body(JoinBody)
    joined = await call.cluster.join(wanted.node)
    return json_reply({"already_member": not joined})


async def forget(call: Call) -> Response:
    """Remove a node from the cluster that will not return."""
    return json_reply(await call.cluster.forget_node(call.path("name")))


async def rebalance(call: Call) -> Response:
    """Move leaders of mirrored queues, and wait until it is done."""
    wanted = await call.body(RebalanceBody)
    rows = await call.cluster.rebalance(wanted.kind, wanted.vhost_pattern, wanted.queue_pattern)
    return await call.plain_list(rows, "node")


async def begin_rebalance(call: Call) -> Response:
    """The same for all queues, without waiting; nothing to do for a single node."""
    if call.cluster.is_member:
        task = asyncio.create_task(_rebalance(call))
        _balancing.add(task)
        task.add_done_callback(_balancing.discard)
    return done()


async def _rebalance(call: Call) -> None:
    try:
        await call.cluster.rebalance("all", ".*", ".*")
    except LeveretError as error:
        logger.error("rebalance_failed error=%s", error)


async def sync(call: Call) -> Response:
    """Begin to synchronise the mirrors of a queue."""
    queue = queue_of(call)
    need_led_here(call, queue)
    vhost, name = queue.key
    await call.cluster.sync_queue(vhost, name)
    return Response(status_code=HTTPStatus.ACCEPTED)


async def cancel_sync(call: Call) -> Response:
    """Stop this synchronisation."""
    queue = queue_of(call)
    need_led_here(call, queue)
    vhost, name = queue.key
    was_syncing = call.cluster.placement(queue.key).state == "syncing"
    if was_syncing:
        await call.cluster.cancel_sync_queue(vhost, name)
    return json_reply({"was_syncing": was_syncing})


_ADMIN: Final = Requirement.ADMINISTRATOR
_CLUSTER: Final = "/api/cluster"
ROUTES = [
    resource(f"{_CLUSTER}/node", need=Requirement.MONITORING, GET=show_status),
    resource(f"{_CLUSTER}/join", need=_ADMIN, on_followers=True, defines=False, POST=join),
    resource(f"{_CLUSTER}/members/{{name}}", need=_ADMIN, defines=False, DELETE=forget),
    resource(f"{_CLUSTER}/rebalance", need=_ADMIN, defines=False, POST=rebalance),
    resource(
        f"{_CLUSTER}/sync/{{vhost}}/{{name}}",
        need=_ADMIN,
        defines=False,
        place=at_leader,
        POST=sync,
        DELETE=cancel_sync,
    ),
    resource("/api/rebalance/queues", need=_ADMIN, defines=False, POST=begin_rebalance),
]
