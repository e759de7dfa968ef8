"""Kinds of value that are places of other machines: nodes of a replication, and etcd."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from leveret.config.kinds import NONE, Integer
from leveret.model.store_uri import SCHEMES, has_credentials, local_path

REPLICATION_PORT: Final = 5679
CLUSTER_PORT: Final = 25672
ETCD_PORT: Final = 2379
ANYWHERE: Final = ("0.0.0.0", "::")
"""Addresses to listen on that tell nobody where a node is."""
_PORT: Final = Integer(1, 65535)
_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?"
)
_NODE: Final = re.compile(r"(?P<scheme>tcp|tls)://(?P<place>[^/?#@]+)")
_ENDPOINT: Final = re.compile(
    r"(?P<scheme>https?)://(?:(?P<user>[^/?#@:\s]+):(?P<password>[^/?#@:\s]*)@)?(?P<place>[^/?#@]+)/?"
)
_PLACE: Final = re.compile(r"(?:\[(?P<ip6>[^\[\]]+)\]|(?P<host>[^\[\]:]+))(?::(?P<port>[^:]*))?")


class NodeUri(NamedTuple):
    """Where other nodes find a node: `tcp` or `tls`, a host name or IP address, a TCP port."""

    scheme: str
    host: str
    port: int

    @property
    def is_tls(self) -> bool:
        """Whether TLS is spoken there."""
        return self.scheme == "tls"

    def __str__(self) -> str:
        return f"{self.scheme}://{_place(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class OptionalNodeUri:
    """Where other nodes find a node, which may be left out."""

    default_port: int = REPLICATION_PORT

    @property
    def allowed(self) -> str:
        """The form, with an example of each."""
        return (
            f"tcp://HOST:PORT or tls://HOST:PORT such as tcp://10.0.0.1:{self.default_port} or tls://[fd00::1] "
            f"(port {self.default_port} if none is given), or none"
        )

    def parse(self, text: str) -> NodeUri | None:
        """The place; None for `none`."""
        return None if text == NONE else parse_node_uri(text, self.default_port)

    def show(self, value: NodeUri | None) -> str:
        """The place with its port, or `none`."""
        return NONE if value is None else str(value)


def parse_node_uri(text: str, default_port: int = REPLICATION_PORT) -> NodeUri:
    """The place that a text such as `tcp://10.0.0.1:5679` names.

    Raises:
        ValueError: it names none, or has more to it, as a path or a password.
    """
    match = _NODE.fullmatch(text)
    if match is None:
        raise ValueError
    return NodeUri(match["scheme"], *_host_and_port(match["place"], default_port))


@dataclass(frozen=True, slots=True)
class EtcdEndpoint:
    """Where a member of etcd answers; its password is in no `repr` and no `str`.

    Attributes:
        url: without credentials, such as `http://10.0.0.1:2379`.
        username: empty where etcd asks for none.
    """

    url: str
    username: str = ""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Members of one etcd, between commas; they may carry a password."""

    allowed: str = (
        "URLs between commas such as http://10.0.0.1:2379,http://10.0.0.2:2379 or https://USER:PASSWORD@etcd:2379 "
        f"(port {ETCD_PORT} if none is given, special characters of a password as %XX), or none"
    )

    def parse(self, text: str) -> tuple[EtcdEndpoint, ...]:
        """The members, empty for `none`."""
        if text == NONE:
            return ()
        endpoints = tuple(_endpoint(part.strip()) for part in text.split(","))
        if len({endpoint.url for endpoint in endpoints}) < len(endpoints):
            raise ValueError
        return endpoints

    def show(self, value: tuple[EtcdEndpoint, ...]) -> str:
        """The members with their passwords, or `none`; see `Setting.hides`."""
        return ",".join(map(_whole, value)) or NONE

    def hides(self, text: str) -> bool:
        """Whether a text, which need not be an allowed one, may have a password in it."""
        return "@" in text


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """Where an archive is: a path on this machine, or a URI in a store; None for the node's choice."""

    allowed: str = (
        f"an absolute path, a URI (file, {', '.join(SCHEMES)}; credentials belong elsewhere), or none"
    )

    def parse(self, text: str) -> str | None:
        """The path or URI; None for `none`."""
        if text == NONE:
            return None
        local = local_path(text)
        return text.rstrip("/") if local is None else str(local)

    def show(self, value: str | None) -> str:
        """The path or URI, or `none`."""
        return NONE if value is None else value

    def hides(self, text: str) -> bool:
        """Whether a text, which need not be an allowed one, may have a password in it."""
        return has_credentials(text)


def _endpoint(text: str) -> EtcdEndpoint:
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise ValueError
    url = f"{match['scheme']}://{_place(*_host_and_port(match['place'], ETCD_PORT))}"
    return EtcdEndpoint(url, unquote(match["user"] or ""), unquote(match["password"] or ""))


def _whole(endpoint: EtcdEndpoint) -> str:
    scheme, _, place = endpoint.url.partition("://")
    if not endpoint.username:
        return endpoint.url
    return f"{scheme}://{quote(endpoint.username, safe='')}:{quote(endpoint.password, safe='')}@{place}"


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    """Raises ValueError: no host, or what is none; IPv6 addresses stand in brackets."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError
    port = default_port if match["port"] is None else _PORT.parse(match["port"])
    if match["ip6"]:
        return str(ipaddress.IPv6Address(match["ip6"])), port
    host = match["host"]
    if re.fullmatch(r"[0-9.]+", host):
        return str(ipaddress.IPv4Address(host)), port
    if not _NAME.fullmatch(host):
        raise ValueError
    return host, port


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
