"""The node itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.commands.nodes.health import active_alarms, listener_line, listeners_of
from leveret.cli.output.formatters import as_table
from leveret.cli.output.values import MessageLine, Sections, TextDocument, Value

_GB: Final = 10**9


@command("Status of node {node} ...", "status")
def status(ctl: Session) -> Sections:
    """Show the node's identity, its use of memory, disk and descriptors, and its totals."""
    overview = ctl.api.get("overview")
    node = ctl.api.get("nodes", overview["node"])
    alarms, listeners = active_alarms(ctl), listeners_of(ctl)
    vhosts = len(ctl.api.get("vhosts"))
    log_files = ctl.api.get("operations", "log")["places"]
    parts = [
        ("Runtime", _runtime(overview, node)),
        ("Data directory", [f"Node data directory: {node['db_dir']}"]),
        ("Config files", [f" * {path}" for path in node["config_files"]] or ["(none)"]),
        ("Log file(s)", [f" * {path}" for path in log_files] or ["(none)"]),
        ("Alarms", alarms or ["(none)"]),
        ("Memory", _memory(node)),
        ("File Descriptors", [f"Total: {node['fd_used']}, limit: {node['fd_total']}"]),
        ("Free Disk Space", _disk(node)),
        ("Totals", _totals(overview, vhosts)),
        ("Listeners", [listener_line(each) for each in listeners]),
    ]
    document = {
        **node,
        "pid": int(node["os_pid"]),
        "uptime": node["uptime"] // 1000,
        "alarms": alarms,
        "listeners": listeners,
        "log_files": log_files,
        "totals": {
            "virtual_host_count": vhosts,
            "connection_count": overview["object_totals"]["connections"],
            "queue_count": overview["object_totals"]["queues"],
        },
        "cluster_name": overview["cluster_name"],
        "product_name": overview["product_name"],
        "product_version": overview["product_version"],
        "rabbitmq_version": overview["rabbitmq_version"],
    }
    return Sections(parts, document)


@command("Asking node {node} for its version...", "server_version")
def server_version(ctl: Session) -> MessageLine:
    """Show the node's version; leveretctl's own is shown by version."""
    text = str(ctl.api.get("overview")["product_version"])
    return MessageLine(text, {"result": "ok", "value": text})


@command("Application environment of node {node} ...", "environment")
def environment(ctl: Session) -> MessageLine:
    """Show the node's settings, without secrets."""
    found = {each["key"]: each["value"] for each in ctl.api.get("operations", "settings")}
    return MessageLine("\n".join(f"{key} = {value}" for key, value in found.items()), found)


@command("Reporting server status of node {node} ...", "report > leveret-report.txt")
def report(ctl: Session) -> TextDocument:
    """Print the output of all status commands, without secrets, for a support request: as text in every format."""
    ctl.quiet = True
    pieces = [_reported(ctl, name) for name in _REPORTED]
    for vhost in [str(each["name"]) for each in ctl.api.get("vhosts")]:
        ctl.vhost = vhost
        pieces += [_reported(ctl, name) for name in _REPORTED_BY_VHOST]
    return TextDocument("\n".join(pieces))


_REPORTED: Final = (
    "status",
    "cluster_status",
    "environment",
    "list_connections",
    "list_channels",
    "list_vhosts",
    "list_users",
    "list_global_parameters",
    "replication_status",
    "schema_replication_status",
    "standby_replication_status",
)
_REPORTED_BY_VHOST: Final = (
    "list_queues",
    "list_exchanges",
    "list_bindings",
    "list_consumers",
    "list_permissions",
    "list_policies",
    "list_parameters",
)


def _reported(ctl: Session, name: str) -> str:
    """One command's output under its name, or its error."""
    from leveret.cli.ctl import family_of, load_family

    try:
        value: Value = load_family(family_of(name))[name].action(ctl)
    except CtlError as error:
        return f"$ leveretctl {name} -p {ctl.vhost}\n{error}\n"
    return f"$ leveretctl {name} -p {ctl.vhost}\n{as_table(value, headers=True)}"


def _runtime(overview: Mapping[str, Any], node: Mapping[str, Any]) -> list[str]:
    return [
        f"OS PID: {node['os_pid']}",
        "OS: Linux",
        f"Uptime (seconds): {node['uptime'] // 1000}",
        f"Is under maintenance?: {'true' if node.get('being_drained') else 'false'}",
        f"{overview['product_name']} version: {overview['product_version']}",
        f"RabbitMQ version spoken: {overview['rabbitmq_version']}",
        f"Node name: {node['name']}",
        f"Cluster name: {overview['cluster_name']}",
    ]


def _memory(node: Mapping[str, Any]) -> list[str]:
    lines = [f"Total memory used: {node['mem_used'] / _GB:.4f} gb", "Calculation strategy: rss"]
    if node.get("mem_limit"):
        lines.append(f"Memory high watermark: {node['mem_limit'] / _GB:.4f} gb")
    return lines


def _disk(node: Mapping[str, Any]) -> list[str]:
    lines = [f"Free disk space: {node['disk_free'] / _GB:.4f} gb"]
    if node.get("disk_free_limit"):
        lines.insert(0, f"Low free disk space watermark: {node['disk_free_limit'] / _GB:.4f} gb")
    return lines


def _totals(overview: Mapping[str, Any], vhosts: int) -> list[str]:
    totals, messages = overview["object_totals"], overview["queue_totals"]
    ready, unacked = messages.get("messages_ready", 0), messages.get("messages_unacknowledged", 0)
    return [
        f"Connection count: {totals['connections']}",
        f"Queue count: {totals['queues']}",
        f"Virtual host count: {vhosts}",
        f"Message count: {ready} ready, {unacked} unacknowledged",
    ]
