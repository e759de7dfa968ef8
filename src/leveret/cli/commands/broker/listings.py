"""Lists of exchanges, bindings and algorithms."""

from __future__ import annotations

from typing import Annotated, Final

from typer import Argument

from leveret.cli.checks import listed
from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen
from leveret.cli.output.values import Table

_EXCHANGE: Final = ("name", "type", "durable", "auto_delete", "internal", "arguments", "policy", "vhost")
_BINDING: Final = (
    "source_name",
    "source_kind",
    "destination_name",
    "destination_kind",
    "routing_key",
    "arguments",
)


@command("", "list_exchanges -p orders name type policy")
def list_exchanges(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_EXCHANGE)}.")] = None,
) -> Table:
    """List the exchanges of a virtual host."""
    wanted = chosen(columns, _EXCHANGE[:2], _EXCHANGE)
    ctl.announce(f"Listing exchanges for vhost {ctl.vhost} ...")
    return Table.of(wanted, listed(ctl, "exchanges"))


@command("", "list_bindings -p orders source_name destination_name")
def list_bindings(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_BINDING)}.")] = None,
) -> Table:
    """List the bindings of a virtual host."""
    wanted = chosen(columns, _BINDING, _BINDING)
    ctl.announce(f"Listing bindings for vhost {ctl.vhost}...")
    items = [
        {
            "source_name": each["source"],
            "source_kind": "exchange",
            "destination_name": each["destination"],
            "destination_kind": each["destination_type"],
            "routing_key": each["routing_key"],
            "arguments": each["arguments"],
        }
        for each in listed(ctl, "bindings")
    ]
    return Table.of(wanted, items)


@command("Listing supported ciphers ...", "list_ciphers")
def list_ciphers(ctl: Session) -> Table:
    """List the TLS cipher suites of this machine's OpenSSL, strongest first."""
    return _ciphers()


@command("Listing available cipher suites in OpenSSL format", "cipher_suites")
def cipher_suites(ctl: Session) -> Table:
    """List the TLS cipher suites of this machine's OpenSSL, strongest first."""
    return _ciphers()


@command("Listing all TLS versions supported by the runtime...", "tls_versions")
def tls_versions(ctl: Session) -> Table:
    """List the TLS versions that a listener can be set to."""
    return Table(("version",), [["tlsv1.3"], ["tlsv1.2"]], headless=True)


@command("Listing supported hash algorithms ...", "list_hashes")
def list_hashes(ctl: Session) -> Table:
    """List the hashing algorithms for passwords."""
    return Table(("hash",), [["sha256"], ["sha512"], ["md5"]], headless=True)


def _ciphers() -> Table:
    import ssl

    from leveret.wire.tls import be_forward_secret

    ciphers = be_forward_secret(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)).get_ciphers()
    return Table(("cipher",), [[each["name"]] for each in ciphers], headless=True)
