"""Kinds of values that name other machines: nodes of a replication, and etcd."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from leveret.config.kinds import NONE, Integer
from leveret.model.addresses import bracketed
from leveret.model.store_uri import SCHEMES, has_credentials, local_path

REPLICATION_PORT: Final = 5679
CLUSTER_PORT: Final = 25672
ETCD_PORT: Final = 2379
ANYWHERE: Final = ("0.0.0.0", "::")
"""Addresses of listeners that tell no other node where this one is."""
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
    """The address of a node for other nodes: `tcp` or `tls`, a host name or IP address, a TCP port."""

    scheme: str
    host: str
    port: int

    @property
    def is_tls(self) -> bool:
        """Return whether connections use TLS."""
        return self.scheme == "tls"

    def __str__(self) -> str:
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class OptionalNodeUri:
    """An optional address of a node."""

    default_port: int = REPLICATION_PORT

    @property
    def allowed(self) -> str:
        """Describe the form, with an example of each."""
        return (
            f"tcp://HOST:PORT or tls://HOST:PORT such as tcp://10.0.0.1:{self.default_port} or tls://[fd00::1] "
            f"(port {self.default_port} if none is given), or none"
        )

    def parse(self, text: str) -> NodeUri | None:
        """Return the address; None for `none`."""
        return None if text == NONE else parse_node_uri(text, self.default_port)

    def show(self, value: NodeUri | None) -> str:
        """Return the address with its port, or `none`."""
        return NONE if value is None else str(value)


def parse_node_uri(text: str, default_port: int = REPLICATION_PORT) -> NodeUri:
    """Parse an address such as `tcp://10.0.0.1:5679`.

    Raises:
        ValueError: the text is no address, or has a further part such as a path or a password.
    """
    match = _NODE.fullmatch(text)
    if match is None:
        raise ValueError
    return NodeUri(match["scheme"], *_host_and_port(match["place"], default_port))


@dataclass(frozen=True, slots=True)
class EtcdEndpoint:
    """The address of a member of etcd. No `repr` and no `str` shows its password.

    Attributes:
        url: without credentials, such as `http://10.0.0.1:2379`.
        username: empty if etcd asks for none.
    """

    url: str
    username: str = ""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The members of one etcd, separated by commas; each may have a password."""

    allowed: str = (
        "URLs between commas such as http://10.0.0.1:2379,http://10.0.0.2:2379 or https://USER:PASSWORD@etcd:2379 "
        f"(port {ETCD_PORT} if none is given, special characters of a password as %XX), or none"
    )

    def parse(self, text: str) -> tuple[EtcdEndpoint, ...]:
        """Return the members; empty for `none`."""
        if text == NONE:
            return ()
        endpoints = tuple(_endpoint(part.strip()) for part in text.split(","))
        if len({endpoint.url for endpoint in endpoints}) < len(endpoints):
            raise ValueError
        return endpoints

    def show(self, value: tuple[EtcdEndpoint, ...]) -> str:
        """Return the members with their passwords, or `none`; see `Setting.hides`."""
        return ",".join(map(_whole, value)) or NONE

    def hides(self, text: str) -> bool:
        """Return whether a text, valid or not, may have a password in it."""
        return "@" in text


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """The place of an archive: a path on this machine, or a URI in a store; None leaves the choice to the node."""

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
        """Return whether a text, valid or not, may have a password in it."""
        return has_credentials(text)


def _endpoint(text: str) -> EtcdEndpoint:
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise ValueError
    host, port = _host_and_port(match["place"], ETCD_PORT)
    url = f"{match['scheme']}://{bracketed(host)}:{port}"
    return EtcdEndpoint(url, unquote(match["user"] or ""), unquote(match["password"] or ""))


def _whole(endpoint: EtcdEndpoint) -> str:
    scheme, _, place = endpoint.url.partition("://")
    if not endpoint.username:
        return endpoint.url
    return f"{scheme}://{quote(endpoint.username, safe='')}:{quote(endpoint.password, safe='')}@{place}"


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    """Split a text into host and port; IPv6 addresses stand in brackets.

    Raises ValueError for a missing or wrong host.
    """
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
