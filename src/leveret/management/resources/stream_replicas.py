"""`/api/queues/VHOST/NAME/replicas`: the replicas of a stream; `.../tracking`: its publishers and readers.

GET    replicas               a row a replica: node, role, state, epoch, offset, committed_offset, first_offset, ...
POST   replicas/add           {"node": ...}: one more
DELETE replicas/delete/NODE   one less
POST   replicas/restart       {"preferred_leader_node": ...}, which may be left out: another leader; its name
GET    tracking               a row a publisher's last id or reader's stored offset: type, reference, value
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from leveret.core.queues.stream import Stream
from leveret.core.replication.placement import QueuePlacement
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.places import at_leader, need_led_here
from leveret.management.request.replies import done, json_reply
from leveret.management.resources.queues import queue_of
from leveret.model.errors import PreconditionFailed
from leveret.runtime.logs.committed_log import CommittedLog

Row = dict[str, Any]


class ReplicaNode(msgspec.Struct):
    """The body that names a node."""

    node: str


class RestartBody(msgspec.Struct):
    """The body that asks for another leader."""

    preferred_leader_node: str | None = None


async def show(call: Call) -> Response:
    """The replicas, the leader first."""
    stream = _stream(call)
    cluster, placed = call.cluster, call.cluster.placement(stream.key)
    states = {row["node"]: row for row in cluster.mirror_states(stream.key)}
    rows = [_writer(stream, cluster.name, placed)]
    rows += [
        _replica(node, placed.term, stream, states.get(node), is_up=node in cluster.alive())
        for node in placed.recoverable_mirrors
    ]
    return await call.plain_list(rows)


def _writer(stream: Stream, node: str, placed: QueuePlacement) -> Row:
    served = stream.log
    log = served.log if isinstance(served, CommittedLog) else None
    return {
        "role": "writer",
        "node": node,
        "state": "down" if placed.state == "down" else "running",
        "epoch": placed.term,
        "offset": stream.next_offset - 1,
        "committed_offset": served.committed_offset - 1,
        "first_offset": served.first_offset,
        "readers": stream.consumer_count,
        "segments": len(log.extents_of_segments) if log is not None else 0,
    }


def _replica(node: str, term: int, stream: Stream, known: Row | None, *, is_up: bool) -> Row:
    """`known` is the leader's knowledge of it; None if it gets nothing now."""
    row: Row = {"role": "replica", "node": node, "state": "connecting" if is_up else "down", "epoch": term}
    if known is None:
        return row
    offset = known["acked_offset"] - 1
    return row | {
        "state": known["state"],
        "offset": offset,
        "committed_offset": min(offset, stream.log.committed_offset - 1),
        "first_offset": known["first_offset"],
    }


async def add(call: Call) -> Response:
    """A node gets a replica; it is copied beside live traffic."""
    stream, wanted = _stream(call), await call.body(ReplicaNode)
    await call.cluster.add_replica(stream.key[0], stream.key[1], wanted.node)
    return done()


async def delete(call: Call) -> Response:
    """A node loses its replica; a leader hands over first."""
    stream = _stream(call)
    await call.cluster.delete_replica(stream.key[0], stream.key[1], call.path("node"))
    return done()


async def restart(call: Call) -> Response:
    """Another replica leads, or the preferred one."""
    stream, wanted = _stream(call), await call.body(RestartBody)
    leader = await call.cluster.restart_stream(
        stream.key[0], stream.key[1], wanted.preferred_leader_node or ""
    )
    return json_reply({"leader": leader})


async def show_tracking(call: Call) -> Response:
    """The last id of each publisher that numbers its messages, and the stored offset of each reader."""
    stream = _stream(call)
    tables = (("sequence", stream.sequences.logged), ("offset", stream.offsets | stream.unlogged_offsets))
    rows = [
        {"type": kind, "reference": name.decode(errors="replace"), "value": value}
        for kind, table in tables
        for name, value in table.items()
    ]
    return await call.plain_list(rows)


def _stream(call: Call) -> Stream:
    """The stream of the path, which is led here.

    Raises:
        NotFound: there is no such queue, or its leader is gone. PreconditionFailed: it is no stream.
    """
    queue = queue_of(call)
    need_led_here(call, queue)
    if not isinstance(queue, Stream):
        vhost, name = queue.key
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' is not a stream")
    return queue


_REPLICAS: Final = "/api/queues/{vhost}/{name}/replicas"

ROUTES = [
    resource(_REPLICAS, place=at_leader, GET=show),
    resource(f"{_REPLICAS}/add", need=Requirement.ADMINISTRATOR, defines=False, place=at_leader, POST=add),
    resource(
        f"{_REPLICAS}/restart", need=Requirement.ADMINISTRATOR, defines=False, place=at_leader, POST=restart
    ),
    resource(
        f"{_REPLICAS}/delete/{{node}}",
        need=Requirement.ADMINISTRATOR,
        defines=False,
        place=at_leader,
        DELETE=delete,
    ),
    resource("/api/queues/{vhost}/{name}/tracking", place=at_leader, GET=show_tracking),
]
