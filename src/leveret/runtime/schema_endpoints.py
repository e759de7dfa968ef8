"""The value of the global parameter `schema_definition_sync_upstream`: where a downstream reaches its upstream.

    {"endpoints": ["a.example:5672", "https://b.example:15671"], "username": "...", "password": "..."}

`host:port` and `amqp://host:port` are AMQP listeners of another Leveret, with TLS where `ssl_options` are set or the
scheme is `amqps`; `http://` and `https://` are the management API of a RabbitMQ, a LavinMQ or another Leveret.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from leveret.model.errors import InvalidCommand

SCHEMES: Final = ("amqp", "amqps", "http", "https")


class Endpoint(NamedTuple):
    """Where an upstream listens; no scheme is AMQP, with TLS where that is configured."""

    host: str
    port: int
    scheme: str = ""
    path: str = ""
    """Of an HTTP endpoint: what its API's paths begin with; no slash at its end."""

    @property
    def is_http(self) -> bool:
        """Whether a management API is there, and not an AMQP listener."""
        return self.scheme in ("http", "https")

    @property
    def address(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        scheme = f"{self.scheme}://" if self.scheme else ""
        return f"{scheme}{self.address}{self.path}"


class Upstream(NamedTuple):
    """The value of the global parameter: endpoints in the order to try them, and the user to log in as."""

    endpoints: list[Endpoint]
    username: str
    password: str


class _Value(msgspec.Struct):
    endpoints: list[str]
    username: str
    password: str


def parse_upstream(value: object) -> Upstream:
    """Read `{"endpoints": ["host:port", ...], "username": ..., "password": ...}`.

    Raises:
        InvalidCommand: names the field that is missing or malformed; never shows the password.
    """
    try:
        read = msgspec.convert(value, type=_Value)
    except msgspec.ValidationError as error:
        raise InvalidCommand(f"upstream endpoints: {error}") from None
    for field in ("endpoints", "username", "password"):
        if not getattr(read, field):
            raise InvalidCommand(f"upstream endpoints: field `{field}` is empty")
    endpoints = [_endpoint(index, text) for index, text in enumerate(read.endpoints)]
    return Upstream(endpoints, read.username, read.password)


def _endpoint(index: int, text: str) -> Endpoint:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    rest, slash, path = rest.partition("/")
    host, colon, port = rest.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_place = colon and bare and not (":" in bare and bare == host) and "@" not in host and _is_port(port)
    if not is_place or (separator and scheme not in SCHEMES) or (slash and scheme not in ("http", "https")):
        schemes = ", ".join(f"{name}://" for name in SCHEMES)
        raise InvalidCommand(
            f"upstream endpoints: field `endpoints[{index}]`: '{_shown(text)}' is not host:port, with one of "
            f"{schemes} before it or none"
        )
    return Endpoint(bare, int(port), scheme, f"/{path}".rstrip("/"))


def _shown(text: str) -> str:
    """Without what may be a password."""
    before, at, host = text.rpartition("@")
    return f"...@{host}" if at and before else text


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536
