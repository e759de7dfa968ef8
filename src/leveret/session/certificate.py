"""The names in a TLS client's certificate, and the user that it logs in (mechanism EXTERNAL).

A certificate comes as the mapping that Python's `getpeercert` gives; names are shown as RabbitMQ shows
them: RFC 4514, the most specific part first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "pseudonym": "PSEUDONYM",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "surname": "SN",
    "title": "TITLE",
    "userId": "UID",
}
_SAN_TYPES: Final = {"dns": "DNS", "ip": "IP Address", "email": "email", "uri": "URI"}
_SPECIAL: Final = frozenset('"+,;<>\\')
_LAST_PLAIN: Final = 125

Name = tuple[tuple[tuple[str, str], ...], ...]


class LoginRule(Protocol):
    """The setting of the part of a certificate that names a user."""

    @property
    def source(self) -> str:
        """`distinguished_name`, `common_name` or `subject_alternative_name`."""

    @property
    def san_type(self) -> str:
        """`dns`, `ip`, `email` or `uri`."""

    @property
    def san_index(self) -> int:
        """The index among the names of that type, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPeer:
    """The TLS parameters and the certificate of a connection.

    Attributes:
        protocol, key_exchange, cipher, hash: in RabbitMQ's form, e.g. `tlsv1.3`, `any`, `aes_256_gcm`, `aead`.
        certificate: the peer's, verified; None without one.
    """

    protocol: str
    key_exchange: str
    cipher: str
    hash: str
    certificate: Mapping[str, Any] | None = None

    @property
    def subject(self) -> str:
        """The certificate's subject; empty without one."""
        return _distinguished(self.certificate["subject"]) if self.certificate else ""

    @property
    def issuer(self) -> str:
        """The certificate's issuer; empty without one."""
        return _distinguished(self.certificate["issuer"]) if self.certificate else ""

    @property
    def validity(self) -> str:
        """The certificate's period of validity; empty without one."""
        if not self.certificate:
            return ""
        return f"{_iso(self.certificate['notBefore'])} - {_iso(self.certificate['notAfter'])}"

    def login_name(self, rule: LoginRule) -> str | None:
        """The user that the certificate names, None if it names none."""
        if not self.certificate:
            return None
        if rule.source == "distinguished_name":
            return self.subject
        if rule.source == "common_name":
            names = [
                value for part in self.certificate["subject"] for key, value in part if key == "commonName"
            ]
            return ",".join(names) or None
        wanted = _SAN_TYPES[rule.san_type]
        found = [value for kind, value in self.certificate.get("subjectAltName", ()) if kind == wanted]
        return found[rule.san_index] if rule.san_index < len(found) else None


def _distinguished(name: Name) -> str:
    parts = ["+".join(f"{_SHORT.get(key, key)}={_escaped(value)}" for key, value in part) for part in name]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    """A value in RFC 4514's form, with unprintable characters as octets."""
    shown = "".join(
        f"\\{chr(octet)}"
        if chr(octet) in _SPECIAL
        else chr(octet)
        if 32 <= octet <= _LAST_PLAIN
        else f"\\{octet:02X}"
        for octet in value.encode()
    )
    if shown[:1] in (" ", "#"):
        shown = "\\" + shown
    return shown[:-1] + "\\ " if shown.endswith(" ") and len(value) > 1 else shown


def _iso(date: str) -> str:
    """`Nov 21 08:00:00 2026 GMT` as `2026-11-21T08:00:00Z`."""
    return datetime.strptime(date, "%b %d %H:%M:%S %Y GMT").strftime("%Y-%m-%dT%H:%M:%SZ")
