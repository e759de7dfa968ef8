"""Health checks: each ends with 0, or with 69 and the reason."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.output.values import MessageLine, Table
from leveret.model.addresses import bracketed

_CONNECT_TIMEOUT_S: Final = 5.0
_DIGITS_MAX: Final = 9
_PURPOSES: Final = {
    "amqp": "AMQP 0-9-1 and AMQP 1.0",
    "amqp/ssl": "AMQP 0-9-1 and AMQP 1.0 over TLS",
    "clustering": "inter-node communication",
    "clustering/ssl": "inter-node communication over TLS",
    "http": "HTTP API",
    "https": "HTTP API over TLS (HTTPS)",
    "replication": "followers of this node",
    "replication/ssl": "followers of this node over TLS",
    "stream": "stream",
    "stream/ssl": "stream over TLS",
    "http/prometheus": "Prometheus exporter API over HTTP",
    "https/prometheus": "Prometheus exporter API over TLS (HTTPS)",
}
_ALIASES: Final = {
    "amqp091": "amqp",
    "amqp0.9.1": "amqp",
    "amqp-0.9.1": "amqp",
    "amqp10": "amqp",
    "amqp1.0": "amqp",
    "amqps": "amqp/ssl",
    "ssl": "amqp/ssl",
    "management": "http",
    "streams": "stream",
}
_ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@command("Asking node {node} to report any known resource alarms ...", "alarms")
def alarms(ctl: Session) -> MessageLine:
    """Show the alarms in effect."""
    found = active_alarms(ctl)
    text = "\n".join(found) or f"Node {ctl.node} reported no alarms, local or clusterwide"
    return MessageLine(text, {"result": "ok", "node": ctl.node, "alarms": found})


@command("Asking node {node} to report any local resource alarms ...", "check_alarms")
def check_alarms(ctl: Session) -> MessageLine:
    """Fail if an alarm is in effect on any node of the cluster."""
    return _no_alarms(ctl, "alarms", "alarms, local or clusterwide")


@command("Asking node {node} to report any local resource alarms ...", "check_local_alarms")
def check_local_alarms(ctl: Session) -> MessageLine:
    """Fail if an alarm is in effect on this node."""
    return _no_alarms(ctl, "local-alarms", "local alarms")


@command("Checking if all vhosts are running on node {node} ...", "check_virtual_hosts")
def check_virtual_hosts(ctl: Session) -> MessageLine:
    """Fail if a virtual host is not running."""
    ctl.api.get("health", "checks", "virtual-hosts")
    return passed(ctl, f"Node {ctl.node} reported all vhosts as running")


@command("Asking node {node} to report its protocol listeners ...", "listeners")
def listeners(ctl: Session) -> MessageLine | Table:
    """Show the node's listeners with address, port and protocol."""
    found = listeners_of(ctl)
    if ctl.formatter == "csv":
        return Table.of(("node", "protocol", "interface", "port", "purpose"), found)
    text = "\n".join(listener_line(each) for each in found)
    return MessageLine(text, {"result": "ok", "node": ctl.node, "listeners": found})


@command("Testing TCP connections to all active listeners on node {node} ...", "check_port_connectivity")
def check_port_connectivity(
    ctl: Session,
    address: Annotated[
        str | None, Option(help="Connect to this host instead of each listener's own.")
    ] = None,
) -> MessageLine:
    """Fail if a listener does not accept connections from this machine."""
    found = listeners_of(ctl)
    failed = [each for each in found if not _accepts(address or _host(each), each["port"])]
    if failed:
        lines = "; ".join(map(listener_line, failed))
        text = f"Connection to ports of the following listeners on node {ctl.node} failed: {lines}"
        raise CtlError(exits.UNAVAILABLE, text)
    text = f"Successfully connected to ports {_ports(found)} on node {ctl.node}."
    return MessageLine(text, {"result": "ok", "node": ctl.node, "listeners": found})


@command("Asking node {node} if there's an active listener on port {port} ...", "check_port_listener 5672")
def check_port_listener(ctl: Session, port: Annotated[str, Argument(help="A TCP port.")]) -> MessageLine:
    """Fail if the node does not listen on a port."""
    if not port.isdecimal() or len(port) > _DIGITS_MAX or not int(port):
        raise CtlError(exits.DATA, "Bad argument: Argument must be a positive integer")
    found = listeners_of(ctl)
    if int(port) not in [each["port"] for each in found]:
        text = f"No listener for port {port} is active on node {ctl.node}."
        there = f"Found listeners that use the following ports: {_ports(found)}"
        raise CtlError(exits.UNAVAILABLE, f"{text} {there}")
    return passed(ctl, f"A listener for port {port} is running on node {ctl.node}.")


@command(
    "Asking node {node} if there's an active listener for protocol {protocol} ...",
    "check_protocol_listener amqp",
)
def check_protocol_listener(
    ctl: Session, protocol: Annotated[str, Argument(help="amqp, amqp/ssl, stream, http, ...")]
) -> MessageLine:
    """Fail if the node does not listen for a protocol."""
    there = sorted({str(each["protocol"]) for each in listeners_of(ctl)})
    wanted = protocol.lower()
    if _ALIASES.get(wanted, wanted) not in there:
        text = f"No listener for protocol {protocol} is active on node {ctl.node}."
        others = f"Found listeners for the following protocols: {', '.join(there)}"
        raise CtlError(exits.UNAVAILABLE, f"{text} {others}")
    return passed(ctl, f"A listener for protocol {protocol} is running on node {ctl.node}.")


@command(
    "Checking certificate expiration on node {node} ...",
    "check_certificate_expiration --within 2 --unit months",
)
def check_certificate_expiration(
    ctl: Session,
    within: Annotated[int, Option(min=1, help="Number of units from now.")] = 4,
    unit: Annotated[Literal["days", "weeks", "months", "years"], Option(help="The unit.")] = "weeks",
) -> MessageLine:
    """Fail if a certificate of a TLS listener expires soon."""
    ctl.api.get("health", "checks", "certificate-expiration", str(within), unit)
    period = f"{within} {unit.removesuffix('s') if within == 1 else unit}"
    return passed(ctl, f"No certificates are expiring within {period}.")


def active_alarms(ctl: Session) -> list[str]:
    """The active alarms of all nodes, a sentence each."""
    return [line for node in ctl.api.get("nodes") for line in alarms_of(node)]


def alarms_of(node: dict[str, Any]) -> list[str]:
    """The active alarms of one node of the API."""
    names = {
        "mem_alarm": "Memory alarm",
        "disk_free_alarm": "Free disk space alarm",
        "replicas_alarm": "Alarm of too few in-sync followers",
        "file_descriptor_alarm": "File descriptor limit alarm",
        "etcd_full_alarm": "Alarm of an etcd without room (etcdctl compact, defrag, alarm disarm)",
    }
    return [f"{text} on node {node['name']}" for field, text in names.items() if node.get(field)]


def listeners_of(
    ctl: Session, node: str | None = None, overview: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The listeners of a node, by default the one that answers, with RabbitMQ's fields."""
    name = ctl.node if node is None else node
    listeners = (overview or ctl.api.get("overview"))["listeners"]
    return [
        {
            "node": each["node"],
            "protocol": each["protocol"],
            "interface": bracketed(each["ip_address"]),
            "port": each["port"],
            "purpose": _PURPOSES.get(each["protocol"], each["protocol"]),
        }
        for each in listeners
        if each["node"] == name
    ]


def listener_line(listener: dict[str, Any]) -> str:
    """A listener as RabbitMQ's tools show it."""
    return "Interface: {interface}, port: {port}, protocol: {protocol}, purpose: {purpose}".format_map(
        listener
    )


def _no_alarms(ctl: Session, check: str, what: str) -> MessageLine:
    found = active_alarms(ctl) if check == "alarms" else alarms_of(ctl.api.get("nodes", ctl.node))
    if found:
        raise CtlError(exits.UNAVAILABLE, f"Node {ctl.node} reported alarms: {'; '.join(found)}")
    # It also fails for queues that are down, and for the other alarms of queues.
    ctl.api.get("health", "checks", check)
    return passed(ctl, f"Node {ctl.node} reported no {what}")


def single(ctl: Session) -> MessageLine:
    """The result of a check that needs other nodes."""
    text = f"Node {ctl.node} seems to be the only one in a single node cluster, the check does not apply"
    return passed(ctl, text)


def passed(ctl: Session, text: str) -> MessageLine:
    """The result of a passed check."""
    return MessageLine(text, {"result": "ok", "node": ctl.node, "message": text})


def _ports(found: Sequence[dict[str, Any]]) -> str:
    return ", ".join(str(port) for port in sorted({each["port"] for each in found}))


def _host(listener: dict[str, Any]) -> str:
    host = str(listener["interface"]).strip("[]")
    return _ANY_HOST.get(host, host)


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
