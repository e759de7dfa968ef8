"""The cluster: its nodes, joining and leaving, and the leaders of its queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError, NodeUnreachable
from leveret.cli.checks import refused_as
from leveret.cli.command import Session, command
from leveret.cli.commands.nodes.health import alarms_of, listener_line, listeners_of
from leveret.cli.output.values import MessageLine, Sections, Table

_ONLINE_TIMEOUT_S: Final = 300
_POLL_S: Final = 0.25
_REBALANCED: Final = {
    "node": "Node name",
    "quorum": "Number of quorum queues",
    "classic": "Number of replicated classic queues",
}
_WHAT: Final = {
    "all": "all replicated queues",
    "classic": "replicated (mirrored, non-exclusive) classic queues",
    "quorum": "quorum queues",
    "stream": "stream queues",
}

_ROOM: Final = "run etcdctl compact, etcdctl defrag and etcdctl alarm disarm"

Json = Mapping[str, Any]


@command("Cluster status of node {node} ...", "cluster_status")
def cluster_status(ctl: Session) -> Sections:
    """Show the cluster's nodes, their state and their listeners."""
    overview, nodes, cluster = ctl.api.get("overview"), ctl.api.get("nodes"), ctl.api.get("cluster", "node")
    flags = ctl.api.get("feature-flags")
    running = [each for each in nodes if each["running"]]
    reported = {each["name"]: each for each in running if "applications" in each}
    product = overview["product_name"]
    versions = {name: each["applications"][0]["version"] for name, each in reported.items()}
    upkeep = {
        name: "marked for maintenance" if each["being_drained"] else "not under maintenance"
        for name, each in reported.items()
    }
    cores = {name: each["processors"] for name, each in reported.items()}
    alarms = [line for each in reported.values() for line in alarms_of(each)]
    partitions = {name: each["partitions"] for name, each in reported.items() if each["partitions"]}
    listeners = {name: listeners_of(ctl, name, overview) for name in reported}
    disk_nodes, running_nodes = [each["name"] for each in nodes], [each["name"] for each in running]
    basics = [
        f"Cluster name: {overview['cluster_name']}",
        f"Total CPU cores available cluster-wide: {sum(cores.values())}",
    ]
    parts = [
        ("Basics", basics),
        ("Disk Nodes", sorted(disk_nodes)),
        ("Running Nodes", sorted(running_nodes)),
        ("Versions", [f"{name}: {product} {version}" for name, version in versions.items()]),
        ("CPU Cores", [f"Node: {name}, available CPU cores: {count}" for name, count in cores.items()]),
        ("Maintenance status", [f"Node: {name}, status: {status}" for name, status in upkeep.items()]),
        ("Alarms", alarms or ["(none)"]),
        ("Network Partitions", _partition_lines(partitions) or ["(none)"]),
        ("Listeners", [_listener_line(name, each) for name in listeners for each in listeners[name]]),
        ("Feature flags", [f"Flag: {each['name']}, state: {each['state']}" for each in flags]),
        *([("Coordination", _coordination(cluster))] if cluster["etcd"] is not None else []),
    ]
    document = {
        "cluster_name": overview["cluster_name"],
        "disk_nodes": disk_nodes,
        "ram_nodes": [],
        "running_nodes": running_nodes,
        "versions": {
            name: {"rabbitmq_name": product, "rabbitmq_version": version, "erlang_version": ""}
            for name, version in versions.items()
        },
        "cpu_cores": cores,
        "maintenance_status": upkeep,
        "alarms": alarms,
        "partitions": partitions,
        "listeners": listeners,
        "feature_flags": flags,
        "coordination": cluster,
    }
    return Sections(parts, document)


def _partition_lines(partitions: Mapping[str, list[str]]) -> list[str]:
    return [f"Node {name} cannot communicate with {', '.join(each)}" for name, each in partitions.items()]


def _listener_line(node: str, listener: dict[str, Any]) -> str:
    line = listener_line(listener)
    return f"Node: {node}, {line[0].lower()}{line[1:]}"


def _coordination(cluster: Json) -> list[str]:
    """The state that RabbitMQ's nodes share directly, and Leveret's through etcd."""
    etcd = cluster["etcd"]
    answers = f"does not answer: {etcd['error']}" if etcd["error"] else f"revision {cluster['revision']}"
    if etcd.get("is_full"):
        answers += f". It has no room and refuses all writes: {_ROOM}"
    lease_s = cluster["lease_s"]
    return [
        f"Cluster id: {cluster['cluster_id']}",
        f"State of this node: {cluster['state']}",
        f"Etcd: {etcd['endpoint'] or ', '.join(etcd['endpoints'])}, {answers}",
        f"Lease of this node: {f'{lease_s:.1f} s left' if lease_s else 'none'}",
        f"Definitions lock: {cluster['pen'] or 'free'}",
    ]


@command("", "await_online_nodes 3")
def await_online_nodes(
    ctl: Session, count: Annotated[int, Argument(min=1, help="Number of nodes that must be online.")]
) -> None:
    """Wait until a number of nodes is online; five minutes by default."""
    timeout_s = ctl.timeout_s or _ONLINE_TIMEOUT_S
    ctl.announce(
        f"Will wait for at least {count} nodes to join the cluster of {ctl.node}. Timeout: {timeout_s} seconds."
    )

    def are_there() -> bool:
        nodes: list[Json] = ctl.api.get("nodes")
        return len([each for each in nodes if each["running"]]) >= count

    if not wait_until(are_there, timeout_s):
        text = f"timed out while waiting. Not enough nodes joined {ctl.node}'s cluster."
        raise CtlError(exits.SOFTWARE, text)


@command("Clustering node {node} with {member}", "join_cluster rabbit@hare")
def join_cluster(
    ctl: Session,
    member: Annotated[str, Argument(help="A node of the cluster to join.")],
    disc: Annotated[bool, Option("--disc", help="Keep definitions on disk, as every node does.")] = False,
    ram: Annotated[bool, Option("--ram", help="Refused: there are no RAM nodes.")] = False,
) -> MessageLine | None:
    """Show whether two nodes are in one cluster. A node joins at its start, by its settings."""
    if ram:
        text = "every node keeps definitions on disk; leave out --ram"
        raise CtlError(exits.USAGE, text if not disc else "The node type must be either disc or ram.")
    if member == ctl.node:
        raise CtlError(exits.SOFTWARE, f"cannot cluster node with itself: {member}")
    with refused_as(exits.UNAVAILABLE):
        found = ctl.api.post_without_timeout("cluster", "join", body={"node": member})
    if found["already_member"]:
        return MessageLine("The node is already a member of this cluster", {"result": "ok"})
    return None


@command("Removing node {member} from the cluster", "forget_cluster_node rabbit@hare")
def forget_cluster_node(
    ctl: Session,
    member: Annotated[str, Argument(help="Name of the node that does not return.")],
    offline: Annotated[
        bool, Option("--offline", help="Work on the cluster's records while no node runs; needs --config.")
    ] = False,
    config: Annotated[
        list[Path] | None,
        Option(
            envvar="LEVERET_CONFIG_FILE",
            metavar="<path>",
            help="With --offline: settings of any node, as for `leveret serve`.",
        ),
    ] = None,
) -> Table:
    """Remove a stopped node from the cluster.

    The queues that it led get another leader, wait for the node of the best copy, or are deleted.
    """
    try:
        running = {each["name"]: each["running"] for each in ctl.api.get("nodes")}
    except NodeUnreachable:
        if not offline:
            raise
        from leveret.cli.offline import forget_stopped

        return _became(forget_stopped(config or [], member, ctl.data_dir))
    if member not in running:
        raise CtlError(exits.UNAVAILABLE, "The node selected is not in the cluster.")
    if running[member]:
        text = f"Leveret on node {member} must be stopped with 'leveretctl stop' before it can be removed"
        raise CtlError(exits.UNAVAILABLE, text)
    with refused_as(exits.UNAVAILABLE):
        return _became(ctl.api.delete_with_answer("cluster", "members", member))


def _became(rows: Sequence[Json]) -> Table:
    shown = [{**each, "leader": each["leader"] or "(deleted)"} for each in rows]
    return Table.of(("vhost", "name", "leader", "note"), shown)


@command("", "rebalance all --queue-pattern '^orders'")
def rebalance(
    ctl: Session,
    kind: Annotated[
        Literal["all", "classic", "quorum", "stream"],
        Argument(metavar="TYPE", help="all, classic, quorum or stream."),
    ],
    vhost_pattern: Annotated[str, Option(help="Regular expression for names of virtual hosts.")] = ".*",
    queue_pattern: Annotated[str, Option(help="Regular expression for names of queues.")] = ".*",
) -> Table:
    """Move leaders of mirrored queues to synchronised mirrors, to spread them evenly over the nodes."""
    ctl.announce(f"Re-balancing leaders of {_WHAT[kind]}...")
    body = {"kind": kind, "vhost_pattern": vhost_pattern, "queue_pattern": queue_pattern}
    with refused_as(exits.UNAVAILABLE):
        rows = ctl.api.post_without_timeout("cluster", "rebalance", body=body)
    return Table(list(_REBALANCED.values()), [[row[name] for name in _REBALANCED] for row in rows])


def wait_until(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Poll a condition; return whether it held in time."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
