"""The settings of the console: from options, or from `console.toml`.

    listen = "127.0.0.1:15680"
    certfile = "/etc/leveret/console.pem"        # with keyfile: TLS, which is required beyond loopback
    keyfile = "/etc/leveret/console.key"
    names = ["console.example"]                  # names that browsers may use, beside the address

    [sites]
    eu = "https://eu1.example:15671,https://eu2.example:15671"     # nodes of a cluster: any one of them may answer

    [sites.us]
    url = "https://us.example:15671"
    cacertfile = "/etc/leveret/us-ca.pem"

The settings have no user and no password: users type them to log in, and the sites check them.
"""

from __future__ import annotations

import re
import ssl
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from leveret.model.addresses import is_address, is_loopback
from leveret.model.errors import ConfigError
from leveret.model.host_port import host_and_port

LISTEN_DEFAULT: Final = "127.0.0.1:15680"
SITES_MAX: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class SiteAddress:
    """The address of a site's HTTP API: any of `urls`, whose nodes give the same answers.

    `cacertfile` has the authorities of their certificates; None means the machine's authorities.
    """

    name: str
    urls: tuple[str, ...]
    cacertfile: Path | None = None


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """All settings of the console."""

    sites: tuple[SiteAddress, ...]
    host: str
    port: int
    certfile: Path | None = None
    keyfile: Path | None = None
    names: tuple[str, ...] = ()

    @property
    def has_tls(self) -> bool:
        """Whether browsers connect over TLS."""
        return self.certfile is not None


class _SiteTable(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    cacertfile: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    listen: str = LISTEN_DEFAULT
    certfile: str | None = None
    keyfile: str | None = None
    names: list[str] = []
    sites: dict[str, str | _SiteTable] = {}


def read_settings(
    file: Path | None, sites: Sequence[str], options: Mapping[str, str | list[str] | None]
) -> ConsoleSettings:
    """Read a file; options override it. `sites` are texts `NAME=URL`, `options` are values by the file's keys.

    Raises:
        ConfigError: a setting is wrong; the text names the key and the allowed values.
    """
    given = _file(file)
    for key, value in options.items():
        if value is not None:
            setattr(given, key, value)
    addresses = {name: _address(name, table) for name, table in given.sites.items()}
    for text in sites:
        name, equals, url = text.partition("=")
        if not equals:
            raise ConfigError(
                f"--site: '{text}' is not of the form NAME=URL, such as eu=http://127.0.0.1:15672"
            )
        addresses[name] = _address(name, url)
    if not 1 <= len(addresses) <= SITES_MAX:
        raise ConfigError(
            f"sites: name 1 to {SITES_MAX} of them, each with --site NAME=URL; {len(addresses)} are named"
        )
    host, port = _listen(given.listen)
    if (given.certfile is None) != (given.keyfile is None):
        raise ConfigError("certfile, keyfile: TLS needs both")
    settings = ConsoleSettings(
        tuple(addresses.values()), host, port, _path(given.certfile), _path(given.keyfile), tuple(given.names)
    )
    _check_beyond_loopback(settings)
    return settings


def check_certificate(settings: ConsoleSettings) -> None:
    """Check that the files of TLS can be used, if there are any.

    Raises:
        ConfigError: a file cannot be read, or is no certificate or key.
    """
    if settings.certfile is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certfile, settings.keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"certfile, keyfile: {settings.certfile}, {settings.keyfile}: {error}") from None


def _check_beyond_loopback(settings: ConsoleSettings) -> None:
    """Refuse a listener for other machines without TLS: passwords and cookies would travel in clear text."""
    if not is_loopback(settings.host) and not settings.has_tls:
        raise ConfigError(
            f"listen: {settings.host} is reached from other machines, and passwords would travel in clear text: "
            "set certfile and keyfile, or listen on 127.0.0.1"
        )


def _file(path: Path | None) -> _File:
    if path is None:
        return _File()
    try:
        with path.open("rb") as source:
            return msgspec.convert(tomllib.load(source), _File)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _address(name: str, given: str | _SiteTable) -> SiteAddress:
    table = _SiteTable(given) if isinstance(given, str) else given
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"sites: '{name}' is no name of a site: use 1 to 64 letters, digits, '.', '_' and '-'"
        )
    urls = tuple(_checked_url(name, url.strip()) for url in table.url.split(","))
    return SiteAddress(name, urls, _path(table.cacertfile))


def _checked_url(name: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"sites.{name}: a user or a password does not belong into a URL: the page asks for both"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"sites.{name}: '{url}' is no URL such as https://eu.example:15671")
    is_here = parts.hostname == "localhost" or is_loopback(parts.hostname)
    if parts.scheme == "http" and not is_here:
        raise ConfigError(
            f"sites.{name}: passwords would travel to {parts.hostname} in clear text: use https, and the port of "
            "management.ssl.port"
        )
    return url.rstrip("/")


def _listen(text: str) -> tuple[str, int]:
    found = host_and_port(text, least=0)
    if found is None or not is_address(found[0]):
        raise ConfigError(f"listen: '{text[:100]}' is no IP address and port, such as {LISTEN_DEFAULT}")
    return found


def _path(text: Any) -> Path | None:
    return None if text is None else Path(text)
