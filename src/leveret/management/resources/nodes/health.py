"""`/api/health/checks`: the node's fitness to serve. 200 and `ok`, or 503 and the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import LOCAL
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.replication.placement import QueuePlacement
from leveret.core.replication.safe_to_stop import (
    StopDanger,
    follower_dangers,
    is_only_copy,
    lacks_synchronised_mirror,
    loses_quorum,
    queue_lack,
)
from leveret.core.rules.descriptors import DESCRIPTORS
from leveret.core.rules.validation import STREAM, queue_type
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.leadership import (
    FENCED,
    FOLLOWER,
    STARTING,
    SUSPENDED,
    is_leader,
    serves,
    standing,
)
from leveret.management.request.other_nodes import parts
from leveret.management.request.places import at_node, need_this_node
from leveret.management.request.replies import json_reply
from leveret.management.views.certificates import expiring_before
from leveret.management.views.listeners import open_listeners
from leveret.model.errors import InvalidCommand
from leveret.model.whole_number import whole_number
from leveret.runtime.sockets.connection_budget import process_sockets

DOWNSTREAM: Final = "downstream"
_ETCD_ROOM: Final = "etcd_room"
_CHECKS: Final = "/api/health/checks"
_SINGLE: Final = "single node cluster"
_DAYS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
_KEEPING_UP: Final = ("streaming", "delayed")
_PROTOCOLS: Final = {
    "amqp091": "amqp",
    "amqp0.9.1": "amqp",
    "amqp0-9-1": "amqp",
    "amqp10": "amqp",
    "amqp1.0": "amqp",
    "amqps": "amqp/ssl",
    "amqp091/ssl": "amqp/ssl",
    "streams": "stream",
}


async def check_alarms(call: Call) -> Response:
    """Check the local alarms of all nodes that answer, and that each queue of the cluster has a leader.

    A node without a lease knows of no other node.
    """
    if suspension := _suspension(call):
        return _failed(suspension, {})
    alarms, queues = _alarms(call), await _queue_alarms(call) + _queues_without_leader(call)
    for part in await parts(call, path=f"{_CHECKS}/local-alarms"):
        alarms += part.document.get("alarms", [])
        queues += [each for each in part.document.get("queues", []) if each not in queues]
    return _alarmed(alarms, queues)


def _suspension(call: Call) -> str:
    """A sentence about a node of a cluster that has no lease; empty for any other node."""
    status = call.node.replication.status()
    return standing(status) if status["role"] == SUSPENDED else ""


def _alarms(call: Call) -> list[dict[str, str]]:
    name = call.cluster.name
    short = (DESCRIPTORS,) if process_sockets().is_short else ()
    full = (_ETCD_ROOM,) if is_etcd_full(call) else ()
    return [{"node": name, "resource": resource} for resource in (*call.node.alarms.active, *short, *full)]


def is_etcd_full(call: Call) -> bool:
    """Whether the cluster's etcd has no room, and refuses all writes."""
    etcd = call.cluster.status()["etcd"]
    return etcd is not None and bool(etcd["is_full"])


async def check_local_alarms(call: Call) -> Response:
    """Check that no alarm of memory, disk, descriptors or etcd is active, and no queue's log damaged or incomplete."""
    return _alarmed(_alarms(call), await _queue_alarms(call))


def _alarmed(alarms: list[dict[str, str]], queues: list[dict[str, str]]) -> Response:
    """The alarms and the queues; only the present kinds."""
    reported = ({"alarms": alarms} if alarms else {}) | ({"queues": queues} if queues else {})
    if alarms:
        return _failed("There are alarms in effect in the cluster", reported)
    if queues:
        return _failed(
            "; ".join(
                f"queue '{each['name']}' in vhost '{each['vhost']}': {each['reason']}" for each in queues
            ),
            reported,
        )
    return _ok()


async def _queue_alarms(call: Call) -> list[dict[str, str]]:
    """The queues that are down, led without some of their messages, or without the confirms that their policy asks for.

    Confirms at another site do not matter at a downstream: applications publish at its upstream.
    """
    found = []
    is_downstream = call.node.schema_sync.mode == DOWNSTREAM
    for (vhost, name), queue in call.broker.queues.items():
        if queue.damage is not None:
            found.append({"name": name, "vhost": vhost, "reason": f"is down: {queue.damage}"})
        remote = call.node.upstream.confirms_of(queue)
        if remote is not None and remote["unmet"] and not is_downstream:
            action = "confirmed by this site alone" if remote["on_timeout"] == LOCAL else "nacked"
            reason = f"publishes are {action}, not confirmed at a downstream (remote-dc-confirm): {remote['unmet']}"
            found.append({"name": name, "vhost": vhost, "reason": reason})
        lost_by = call.cluster.placement((vhost, name)).lost_by
        if lost_by:
            reason = f"was led without all its messages; node {lost_by} may have the missing ones"
            found.append({"name": name, "vhost": vhost, "reason": reason})
    # A report is a file, and there may be one for each queue.
    for report in await asyncio.to_thread(call.node.replication.inspection.divergent):
        for log in report["logs"] if report.get("lost") else ():
            lost = log["messages"] - (log["settlements"] - log["settlements_lost"])
            if log["is_lost"] and lost and log["queue"] is not None:
                messages, are = ("message", "is") if lost == 1 else ("messages", "are")
                reason = (
                    f"{lost} {messages} that it was led without {are} quarantined at node {call.cluster.name} (see "
                    f"list_divergent_messages --report {report['id']}); once they are dealt with, move "
                    f"divergent/{report['id']} out of its data directory"
                )
                found.append({"name": log["queue"], "vhost": log["vhost"], "reason": reason})
    return found


def _queues_without_leader(call: Call) -> list[dict[str, str]]:
    """The queues that no running node may lead. All nodes know them, so each node reports them once for the cluster."""
    found = []
    for (vhost, name), queue in call.broker.queues.items():
        if isinstance(queue, RemoteQueue) and queue.is_down and queue.definition.durable:
            if not queue.leader:
                reason = (
                    "has no leader: no node has recorded where it is. Delete the queue, and declare it again"
                )
                found.append({"name": name, "vhost": vhost, "reason": reason})
                continue
            copies = call.cluster.placement((vhost, name)).recoverable_mirrors
            others = f"; copies that may lack messages: {', '.join(copies)}" if copies else ""
            reason = (
                f"has no leader: node {queue.leader} does not run{others}. Start {queue.leader}; if it does not come "
                f"back, use forget_cluster_node {queue.leader}"
            )
            found.append({"name": name, "vhost": vhost, "reason": reason})
    return found


async def check_vhosts(call: Call) -> Response:
    """Check that the node serves its vhosts: all run as long as it leads and has recovered its queues."""
    reason = _why_not_served(call)
    return _failed(reason, {}) if reason else _ok()


async def check_in_service(call: Call) -> Response:
    """Check that the node serves clients: it leads, has recovered its queues, and is not drained."""
    reason = _why_not_served(call)
    if not reason and call.node.maintenance.is_draining:
        reason = "this node is not currently available to serve"
    return _failed(reason, {}) if reason else _ok()


def _why_not_served(call: Call) -> str:
    """The reason why this node's vhosts are not served here now; empty if they are."""
    if not is_leader(call.node):
        return standing(call.node.replication.status())
    return "" if serves(call.node) else STARTING


async def check_quorum_critical(call: Call) -> Response:
    """Check that no quorum queue here would lose the majority of its members, if this node stopped."""
    reason = "There are quorum queues that would lose their quorum if the target node is shut down"
    return _check_queues(call, _loses_quorum, reason)


async def check_mirror_sync_critical(call: Call) -> Response:
    """Check that each mirrored queue that is led here has a synchronised mirror, so that none would lose messages.

    With `?only_copies=true` check also that no stream and no transient queue has its only copy here.
    """
    reason = "There are classic mirrored queues without online synchronised mirrors"
    if call.query.get("only_copies") == "true":
        reason = "There are queues without a complete copy at another node"
        return _check_queues(call, _is_only_copy, reason)
    return _check_queues(call, _is_critical, reason)


def _check_queues(
    call: Call, is_critical: Callable[[Queue, QueuePlacement, str], bool], reason: str
) -> Response:
    if _is_single(call):
        return json_reply({"status": "ok", "reason": _SINGLE})
    cluster = call.cluster
    queues = [
        {
            "readable_name": f"queue '{name}' in vhost '{vhost}'",
            "name": name,
            "virtual_host": vhost,
            "type": queue_type(queue.definition.arguments),
        }
        for (vhost, name), queue in sorted(call.broker.queues.items())
        if is_critical(queue, cluster.placement((vhost, name)), cluster.name)
    ]
    return _failed(reason, {"queues": queues}) if queues else _ok()


def _is_critical(queue: Queue, placed: QueuePlacement, me: str) -> bool:
    return lacks_synchronised_mirror(queue_type(queue.definition.arguments), placed, me)


def _is_only_copy(queue: Queue, placed: QueuePlacement, me: str) -> bool:
    kind = queue_type(queue.definition.arguments)
    return lacks_synchronised_mirror(kind, placed, me) or is_only_copy(
        kind, placed, me, durable=queue.definition.durable
    )


def _loses_quorum(queue: Queue, placed: QueuePlacement, me: str) -> bool:
    return loses_quorum(queue_type(queue.definition.arguments), placed, me)


async def check_safe_to_stop(call: Call) -> Response:
    """Check that no queue, stream or follower would lack a copy, a majority or a home if this node stopped.

    Of a node alone the queues do not matter: they are down while it is stopped, wherever it is stopped. A node without
    a lease leads none.
    """
    dangers = follower_dangers(call.node.replication.status())
    if not (_is_single(call) or _suspension(call)):
        dangers = [*_queue_dangers(call), *dangers]
    if dangers:
        found = [
            {"readable_name": each.readable_name, "name": each.name, "virtual_host": each.vhost or None}
            | {"kind": each.kind, "lack": each.lack}
            for each in dangers
        ]
        return _failed("Without this node there would be too few copies", {"dangers": found})
    return json_reply({"status": "ok", "reason": _SINGLE}) if _is_single(call) else _ok()


def _queue_dangers(call: Call) -> list[StopDanger]:
    cluster, found = call.cluster, []
    for (vhost, name), queue in sorted(call.broker.queues.items()):
        kind = queue_type(queue.definition.arguments)
        placed = cluster.placement((vhost, name))
        lack = queue_lack(kind, placed, cluster.name, durable=queue.definition.durable)
        if lack:
            found.append(StopDanger("stream" if kind == STREAM else "queue", name, vhost, lack))
    return found


def _is_single(call: Call) -> bool:
    return len(call.cluster.members()) == 1


async def check_port(call: Call) -> Response:
    """Check that a listener has a port."""
    port = whole_number(call.path("port"), most=99_999)
    if port is None:
        raise InvalidCommand("Invalid port")
    ports = sorted({listener.port for listener in open_listeners(call.node)})
    if port in ports:
        return json_reply({"status": "ok", "port": port})
    return _failed("No active listener", {"missing": port, "ports": ports})


async def check_protocol(call: Call) -> Response:
    """Check that a listener has a protocol."""
    asked = call.path("protocol").lower()
    protocol = _PROTOCOLS.get(asked, asked)
    protocols = sorted({listener.protocol for listener in open_listeners(call.node)})
    if protocol in protocols:
        return json_reply({"status": "ok", "protocol": protocol})
    return _failed("No active listener", {"missing": protocol, "protocols": protocols})


async def check_certificates(call: Call) -> Response:
    """Check that all certificates of listeners stay valid for a time."""
    within, unit = call.path("within"), call.path("unit")
    if unit not in _DAYS:
        raise InvalidCommand("Time unit not recognised. Supported units: days, weeks, months, years.")
    count = whole_number(within, most=99_999)
    if count is None:
        raise InvalidCommand("Invalid expiration value.")
    expired = expiring_before(call.node.config, count * _DAYS[unit])
    return _failed("Certificates expiring", {"expired": expired}) if expired else _ok()


async def check_replication(call: Call) -> Response:
    """Check that enough followers are in sync, or that this one keeps up with its leader."""
    status = call.node.replication.status()
    shown = {"role": status["role"], "state": status["state"]}
    fault = _replication_fault(status, call.node.config.followers.max_lag_ms)
    return _failed(fault, shown) if fault else json_reply({"status": "ok", **shown})


def _replication_fault(status: dict[str, Any], max_lag_ms: int) -> str | None:
    if status["role"] == SUSPENDED:
        return standing(status)
    if status["role"] == FENCED:
        return f"{standing(status)}; restart it with --follow"
    if status["role"] == FOLLOWER:
        return _follower_fault(status, max_lag_ms)
    there, wanted = status["in_sync_count"], status["min_in_sync"]
    return None if there >= wanted else f"{there} of the {wanted} in-sync followers asked for are there"


def _follower_fault(status: dict[str, Any], max_lag_ms: int) -> str | None:
    if status["state"] not in _KEEPING_UP:
        reasons = "; ".join(filter(None, (status["error"], status["incomplete"])))
        return f"{standing(status)} and is not streaming but {status['state']}" + (reasons and f": {reasons}")
    leader = status["leader"]
    # An intended delay is no lag.
    lag_s = (leader["lag_s"] or 0) - (leader["apply_delay_s"] or 0)
    if lag_s * 1000 > max_lag_ms:
        return f"{standing(status)} and {lag_s:.1f} s behind; replication.max_lag is {max_lag_ms / 1000:g} s"
    return None


async def check_node(call: Call) -> Response:
    """The old check of a node: that it answers; without alarms."""
    if "node" in call.request.path_params:
        need_this_node(call, "node")
    if _alarms(call):
        return json_reply({"status": "failed", "reason": "resource alarm(s) in effect"})
    return _ok()


def _ok() -> Response:
    return json_reply({"status": "ok"})


def _failed(reason: str, details: Mapping[str, Any]) -> Response:
    return json_reply(
        {"status": "failed", "reason": reason, **details},
        HTTPStatus.SERVICE_UNAVAILABLE,
    )


ROUTES = [
    resource(f"{_CHECKS}/alarms", GET=check_alarms),
    resource(f"{_CHECKS}/local-alarms", GET=check_local_alarms),
    resource(f"{_CHECKS}/certificate-expiration/{{within}}/{{unit}}", GET=check_certificates),
    resource(f"{_CHECKS}/port-listener/{{port}}", GET=check_port),
    resource(f"{_CHECKS}/protocol-listener/{{protocol}}", GET=check_protocol),
    resource(f"{_CHECKS}/virtual-hosts", GET=check_vhosts),
    resource(f"{_CHECKS}/replication", GET=check_replication),
    resource(f"{_CHECKS}/is-in-service", GET=check_in_service),
    resource(f"{_CHECKS}/node-is-mirror-sync-critical", GET=check_mirror_sync_critical),
    resource(f"{_CHECKS}/node-is-quorum-critical", GET=check_quorum_critical),
    resource(f"{_CHECKS}/node-is-safe-to-stop", GET=check_safe_to_stop),
    resource("/api/healthchecks/node", GET=check_node),
    resource(
        "/api/healthchecks/node/{node}", need=Requirement.MANAGEMENT, place=at_node("node"), GET=check_node
    ),
]
