"""Queues as RabbitMQ shows them."""

from __future__ import annotations

from typing import Any, Final

from leveret.core.queues.head import Head
from leveret.core.queues.queue import Queue
from leveret.core.replication.leader_loss import outcome
from leveret.core.rules.mirror_policy import why_not_mirrored
from leveret.core.rules.validation import CLASSIC, QUORUM, STREAM, queue_type
from leveret.management.request.call import Call
from leveret.management.views.peer_view import connection_details, tag_of
from leveret.model.moment import moment_text
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.amqp091.delivery import ChannelConsumer
from leveret.wire import properties as props

Json = dict[str, Any]

IDLE_BYTES: Final = 4096
"""The approximate memory of a queue without its messages."""


def queue_json(call: Call, queue: Queue) -> Json:
    """A queue with its counts and, if there are any, rates; for one that another node leads, the fields known here."""
    if call.flag("disable_stats"):
        return _short_json(call, queue)
    if queue.is_remote:
        # Only the leader can count: counts of 0 for a queue that is down would tell that nothing waits for its leader.
        return {**identity_json(call, queue), **_policies(call, queue)}
    utilisation = call.rates.consumer_utilisation(queue)
    return {
        **identity_json(call, queue),
        **_policies(call, queue),
        **call.rates.queue(queue, call.ranges()),
        **_consumers(queue),
        **_readers(call, queue),
        **_dead_letters(queue),
        **sizes(queue),
        **idle_since(call.rates.queue_idle_since_ms(queue)),
        "head_message_timestamp": _timestamp(queue.backlog.head_in_memory()),
        "consumer_capacity": utilisation,
        "consumer_utilisation": utilisation,
    }


def identity_json(call: Call, queue: Queue) -> Json:
    """The definition, the place and the state."""
    definition = queue.definition
    vhost, name = queue.key
    return {
        "name": name,
        "vhost": vhost,
        "durable": definition.durable,
        "auto_delete": definition.auto_delete,
        "exclusive": queue.owner is not None,
        "arguments": definition.arguments,
        "type": queue_type(definition.arguments),
        **_place(call, queue),
        **_lost_leader(call, queue),
        **_remote_confirms(call, queue),
    }


def _remote_confirms(call: Call, queue: Queue) -> Json:
    """How confirms wait for downstreams, for a queue whose policy has them wait."""
    found = call.node.upstream.confirms_of(queue)
    if found is None:
        return {}
    return {
        "remote_dc_confirm": found["rule"],
        "remote_dc_confirm_unmet": found["unmet"],
        "remote_dc_confirms_waiting": found["waiting"],
        "remote_dc_confirmed_locally": found["confirmed_locally"],
        "remote_dc_refused": found["refused"],
    }


def _lost_leader(call: Call, queue: Queue) -> Json:
    """What becomes of the queue if its leader's node is lost, and why a policy that asks for mirrors gets none."""
    cluster, definition = call.cluster, queue.definition
    is_exclusive = queue.owner is not None
    if cluster.is_member:
        placed = cluster.placement(queue.key)
        is_exclusive, has_successor = is_exclusive or placed.is_exclusive, placed.has_successor
    else:
        has_successor = call.has_follower_in_sync
    applied = call.broker.policies_of_queue(queue).definition
    kind, durable = queue_type(definition.arguments), definition.durable
    at_loss = outcome(durable=durable, is_exclusive=is_exclusive, has_successor=has_successor)
    why = why_not_mirrored(applied, durable=durable, is_exclusive=is_exclusive) if kind == CLASSIC else ""
    return {"on_leader_loss": at_loss, **({"not_mirrored": why} if why else {})}


def _place(call: Call, queue: Queue) -> Json:
    """The leader and the mirrors by node name, and their states."""
    cluster = call.cluster
    if not cluster.is_member:
        state = "running" if queue.damage is None else "crashed"
        return {"node": cluster.name, "state": state, **_alone(call, queue, cluster.name, is_up=True)}
    placed = cluster.placement(queue.key)
    is_up = placed.leader in cluster.alive()
    state = placed.state if is_up else "down"
    shown: Json = {"node": placed.leader, "state": state if queue.damage is None else "crashed"}
    if queue.is_remote:
        shown["exclusive"] = placed.is_exclusive
    kind = queue_type(queue.definition.arguments)
    if not placed.is_mirrored:
        return {**shown, "recoverable_slaves": None, **_alone(call, queue, placed.leader, is_up=is_up)}
    mirrors, synchronised = placed.mirrors, placed.synchronised_mirrors
    if state == "syncing":
        shown["sync_messages"] = synced_messages(queue, cluster.mirror_states(queue.key))
    members: Json = {
        "leader": placed.leader,
        "members": (placed.leader, *placed.recoverable_mirrors),
        "online": (*([placed.leader] if is_up else []), *mirrors),
    }
    if kind in (QUORUM, STREAM):
        return {**shown, **members, **_missing(call, queue, len(members["members"]))}
    return {
        **shown,
        **members,
        "slave_nodes": mirrors,
        "synchronised_slave_nodes": synchronised,
        "recoverable_slaves": placed.recoverable_mirrors,
        "mirror_nodes": mirrors,
        "synchronised_mirror_nodes": synchronised,
        "recoverable_mirrors": placed.recoverable_mirrors,
    }


def _alone(call: Call, queue: Queue, node: str, *, is_up: bool) -> Json:
    """The members of a quorum queue or stream on a single node, in RabbitMQ's form, and the copies it lacks."""
    kind = queue_type(queue.definition.arguments)
    if kind not in (QUORUM, STREAM):
        return {}
    shown: Json = {"leader": node, "members": [node], "online": [node] if is_up else []}
    return {**shown, **_missing(call, queue, 1)}


def _missing(call: Call, queue: Queue, copies: int) -> Json:
    """The number of copies that a stream asks for and does not have, if there is one."""
    topology = call.broker.topologies.get(queue.key[0])
    if topology is None:  # the vhost was deleted while the list was made
        return {}
    missing, _ = topology.missing_copies(queue.definition, copies)
    return {"copies_missing": missing} if missing else {}


def synced_messages(queue: Queue, states: list[Json]) -> int:
    """The messages that all synchronising mirrors have got so far, estimated by their octets."""
    progresses = [each["progress"] for each in states if each["progress"]]
    shares = [each["bytes_done"] / each["bytes_total"] for each in progresses if each["bytes_total"]]
    return int(queue.message_count * min(shares, default=0.0))


def _short_json(call: Call, queue: Queue) -> Json:
    """The fields with `disable_stats=true`; `enable_queue_totals=true` adds the counts."""
    policy = call.broker.policies_of_queue(queue).policy
    return {
        **identity_json(call, queue),
        **({"policy": policy} if policy else {}),
        **(_totals(queue) if call.flag("enable_queue_totals") and not queue.is_remote else {}),
    }


def owner_json(queue: Queue) -> Json:
    """The owner of an exclusive queue."""
    if not isinstance(queue.owner, ClientConnection):
        return {}
    return {"owner_pid_details": connection_details(queue.owner.peer)}


def idle_since(since_ms: int | None) -> Json:
    """The begin of the idle time in RabbitMQ's form; left out while the queue is busy."""
    if since_ms is None:
        return {}
    return {"idle_since": moment_text(since_ms)}


def _timestamp(head: Head | None) -> int | None:
    """The publisher's timestamp of the first message, in seconds; None without one, or if it is not in memory."""
    if head is None or not props.property_flags(head.header) & props.TIMESTAMP:
        return None
    return int.from_bytes(props.split(head.header)[props.TIMESTAMP], "big")


def _policies(call: Call, queue: Queue) -> Json:
    applied = call.broker.policies_of_queue(queue)
    return {
        "policy": applied.policy,
        "operator_policy": applied.operator_policy,
        "effective_policy_definition": applied.definition,
    }


def _totals(queue: Queue) -> Json:
    ready, unacked = queue.ready_count, queue.delivered_count
    return {
        "messages": ready + unacked + queue.kept_count,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
    }


def _consumers(queue: Queue) -> Json:
    exclusive = next((each for each in queue.consumers if each.exclusive), None)
    single = queue.consumers.active if queue.consumers.single_active else None
    return {
        "consumers": queue.consumer_count,
        "exclusive_consumer_tag": _tag(exclusive),
        "single_active_consumer_tag": _tag(single),
    }


def _readers(call: Call, queue: Queue) -> Json:
    """The numbers of readers of a stream at each node; its leader has them all."""
    is_stream = queue_type(queue.definition.arguments) == STREAM
    return {"readers": {call.cluster.name: queue.consumer_count}} if is_stream else {}


def _dead_letters(queue: Queue) -> Json:
    """The messages that a quorum queue keeps until their dead letters are safe; their octets are an average."""
    if queue_type(queue.definition.arguments) != QUORUM:
        return {}
    return {"messages_dlx": queue.dead_lettering.count, "message_bytes_dlx": queue.dead_bytes}


def _tag(consumer: object) -> str | None:
    return tag_of(consumer) if isinstance(consumer, ChannelConsumer) else None


def sizes(queue: Queue) -> Json:
    """Octets of the bodies. The log holds all messages of a durable queue, also transient ones."""
    messages, octets = queue.unsettled_count, queue.message_bytes
    is_kept = queue.definition.durable
    unacked = min(queue.unacked_bytes, octets)
    kept_octets = min(queue.dead_bytes, unacked) if queue.kept_count else 0
    in_memory = min(queue.backlog.window_count, queue.ready_count)
    octets_in_memory = min(queue.window_bytes, octets)
    return {
        "messages_ram": in_memory,
        "messages_ready_ram": in_memory,
        # Delivered messages are in the log only, until they are acknowledged.
        "messages_unacknowledged_ram": 0,
        "messages_paged_out": messages - in_memory,
        "message_bytes_paged_out": octets - octets_in_memory,
        "message_bytes": octets,
        "message_bytes_ready": octets - unacked,
        "message_bytes_unacknowledged": unacked - kept_octets,
        "message_bytes_ram": octets_in_memory,
        "memory": IDLE_BYTES + queue.window_bytes,
        "message_bytes_persistent": octets if is_kept else 0,
        "messages_persistent": messages if is_kept else 0,
    }
