"""The node of a cluster that a request is for: `resource(..., place=...)` passes it on there."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import leader_is_down
from leveret.management.request.call import Call, Place
from leveret.management.request.other_nodes import parts
from leveret.management.request.replies import BadRequest
from leveret.model.errors import NotFound


async def at_leader(call: Call) -> str | None:
    """The leader of the path's queue, if it is another running node."""
    return leader_elsewhere(call, (call.path("vhost"), call.path("name")))


def leader_elsewhere(call: Call, key: tuple[str, str]) -> str | None:
    """The same for the queue of this vhost and name, existing or not."""
    cluster, queue = call.cluster, call.broker.queues.get(key)
    if queue is None or not queue.is_remote:
        return None
    leader = cluster.placement(key).leader
    return leader if leader != cluster.name and leader in cluster.alive() else None


def need_led_here(call: Call, queue: Queue) -> None:
    """Check that this node leads the queue.

    Raises:
        NotFound: its leader is gone. BadRequest: another node leads it, or is about to.
    """
    if not queue.is_remote:
        return
    cluster = call.cluster
    placed = cluster.placement(queue.key)
    if placed.leader not in cluster.alive() or placed.state == "down":
        raise leader_is_down(queue, placed.leader)
    vhost, name = queue.key
    reason = f"queue '{name}' in vhost '{vhost}' is led by {placed.leader} now: try again"
    raise BadRequest("unavailable", reason, HTTPStatus.SERVICE_UNAVAILABLE)


def at_node(part: str = "name") -> Place:
    """The node in the path, if it is another running member."""

    async def place(call: Call) -> str | None:
        name, cluster = call.path(part), call.cluster
        return (
            name if name != cluster.name and name in cluster.members() and name in cluster.alive() else None
        )

    return place


def need_this_node(call: Call, part: str = "name") -> None:
    """Check that the path names this node; a request for another one that runs is passed on, see `at_node`.

    Raises:
        BadRequest: another member is named, which does not answer. NotFound: there is no such member.
    """
    name, cluster = call.path(part), call.cluster
    if name == cluster.name:
        return
    if name in cluster.members():
        raise BadRequest("unavailable", f"node '{name}' does not answer", HTTPStatus.SERVICE_UNAVAILABLE)
    raise NotFound(f"node '{name}' is not part of this cluster")


def at_holder(path: str, holds: Callable[[Call], bool]) -> Place:
    """The node with a client's connection, if it is another one.

    `path` is the path of a connection or channel, with `{name}` and other parts of the request's path; `holds` is
    whether it is here.
    """

    async def place(call: Call) -> str | None:
        if holds(call):
            return None
        sought = path.format_map(call.request.path_params)
        found = await parts(call, path=sought, query=[("columns", "name")])
        return next((part.node for part in found if part.status == HTTPStatus.OK), None)

    return place
