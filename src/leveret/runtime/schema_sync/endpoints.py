"""The value of the global parameter `schema_definition_sync_upstream`: the addresses of a downstream's upstream.

    {"endpoints": ["a.example:5672", "https://b.example:15671"], "username": "...", "password": "..."}

`host:port` and `amqp://host:port` are AMQP listeners of another Leveret, with TLS if `ssl_options` are set or the
scheme is `amqps`; `http://` and `https://` are the management API of a RabbitMQ, a LavinMQ or another Leveret.

The parameter of message replication has the same form, with `host:port` of stream listeners only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from leveret.model.addresses import bracketed
from leveret.model.errors import InvalidCommand
from leveret.model.foreign_json import decode_json
from leveret.model.host_port import host_and_port

SCHEMES: Final = ("amqp", "amqps", "http", "https")
FORM: Final = '{"endpoints": ["host:port", ...], "username": "...", "password": "..."}'


class UpstreamEndpoint(NamedTuple):
    """The address of an upstream's listener. Without a scheme it is AMQP, with TLS if that is configured."""

    host: str
    port: int
    scheme: str = ""
    path: str = ""
    """The prefix of an HTTP API's paths, without a final slash."""

    @property
    def is_http(self) -> bool:
        """Return whether the listener is a management API, and not an AMQP listener."""
        return self.scheme in ("http", "https")

    @property
    def address(self) -> str:
        """Return host and port as in a URL."""
        return f"{bracketed(self.host)}:{self.port}"

    def __str__(self) -> str:
        scheme = f"{self.scheme}://" if self.scheme else ""
        return f"{scheme}{self.address}{self.path}"


class SchemaUpstreamParameter(NamedTuple):
    """The value of the global parameter: endpoints in the order of attempts, and the user's credentials."""

    endpoints: list[UpstreamEndpoint]
    username: str
    password: str


class _Value(msgspec.Struct, forbid_unknown_fields=True):
    endpoints: list[str]
    username: str
    password: str


def decode_upstream(text: str | bytes) -> object:
    """Decode an operator's JSON, without a check of its values.

    Raises:
        InvalidCommand: the text is no such JSON.
    """
    try:
        return decode_json(text.encode() if isinstance(text, str) else text, Any)
    except msgspec.DecodeError as error:
        raise InvalidCommand(f"upstream endpoints: no JSON: {error}; the form is {FORM}") from None


def parse_upstream(value: object, schemes: Sequence[str] = SCHEMES) -> SchemaUpstreamParameter:
    """Parse a value of FORM, whose endpoints may have one of these schemes.

    Raises:
        InvalidCommand: names the field that is missing, unknown or malformed; never shows the password.
    """
    try:
        read = msgspec.convert(value, type=_Value)
    except msgspec.ValidationError as error:
        raise InvalidCommand(f"upstream endpoints: {error}; the form is {FORM}") from None
    for field in ("endpoints", "username", "password"):
        if not getattr(read, field):
            raise InvalidCommand(f"upstream endpoints: field `{field}` is empty; the form is {FORM}")
    endpoints = [_endpoint(index, text, schemes) for index, text in enumerate(read.endpoints)]
    return SchemaUpstreamParameter(endpoints, read.username, read.password)


def _endpoint(index: int, text: str, schemes: Sequence[str]) -> UpstreamEndpoint:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    rest, slash, path = rest.partition("/")
    found = host_and_port(rest)
    if (
        found is None
        or (":" in found[0] and not rest.startswith("["))
        or "@" in found[0]
        or (separator and scheme not in schemes)
        or (slash and scheme not in ("http", "https"))
    ):
        before = ", ".join(f"{name}://" for name in schemes)
        raise InvalidCommand(
            f"upstream endpoints: field `endpoints[{index}]`: '{_shown(text)}' is not host:port"
            + (f", with one of {before} before it or none" if before else "")
        )
    return UpstreamEndpoint(*found, scheme, f"/{path}".rstrip("/"))


def _shown(text: str) -> str:
    """Return the text without any part that may be a password."""
    before, at, host = text.rpartition("@")
    return f"...@{host}" if at and before else text
