from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from leveret.config.tls import TlsOptions
from leveret.testing.certificates import CertificateAuthority, available

if TYPE_CHECKING:
    from pathlib import Path

    from ..conftest import Client, FakeNode

CHECKS = "/api/health/checks"


def test_an_alarm_fails_the_checks_of_alarms(admin: Client, node: FakeNode) -> None:
    assert admin.get(f"{CHECKS}/alarms").json() == {"status": "ok"}
    node.alarms.active = ("memory",)
    for path in ("alarms", "local-alarms"):
        reply = admin.get(f"{CHECKS}/{path}")
        assert (reply.status_code, reply.json()["alarms"]) == (
            503,
            [{"node": "leveret@test", "resource": "memory"}],
        )
    assert admin.get("/api/healthchecks/node").json()["status"] == "failed"


def test_listeners_are_found_by_port_and_by_protocol(admin: Client, node: FakeNode) -> None:
    assert admin.get(f"{CHECKS}/port-listener/5672").json() == {"status": "ok", "port": 5672}
    missing = admin.get(f"{CHECKS}/port-listener/1")
    assert (missing.status_code, missing.json()["missing"], missing.json()["ports"]) == (
        503,
        1,
        [5552, 5672, 15672],
    )
    assert admin.get(f"{CHECKS}/protocol-listener/AMQP091").json() == {"status": "ok", "protocol": "amqp"}
    assert admin.get(f"{CHECKS}/protocol-listener/mqtt").status_code == 503
    assert admin.get(f"{CHECKS}/port-listener/{'9' * 30}").status_code == 400


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_a_certificate_that_ends_soon_is_named(admin: Client, node: FakeNode, tmp_path: Path) -> None:
    issued = CertificateAuthority(tmp_path).issue("server", names="DNS:localhost")
    tls = TlsOptions(certfile=issued.certfile, keyfile=issued.keyfile)
    management = replace(node.config.management, tls_port=15671, tls=tls)
    node.config = replace(node.config, management=management)
    assert admin.get(f"{CHECKS}/certificate-expiration/1/days").json() == {"status": "ok"}
    soon = admin.get(f"{CHECKS}/certificate-expiration/1/weeks")
    [expired] = soon.json()["expired"]
    assert (soon.status_code, expired["protocol"], expired["certfile"]) == (
        503,
        "https",
        str(issued.certfile),
    )
    assert expired["certfile_expires_on"].endswith(" GMT")


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_a_certificate_that_cannot_be_read_counts_as_expired(
    admin: Client, node: FakeNode, tmp_path: Path
) -> None:
    tls = TlsOptions(certfile=tmp_path / "none.pem", keyfile=tmp_path / "none.pem")
    management = replace(node.config.management, tls_port=15671, tls=tls)
    node.config = replace(node.config, management=management)
    assert admin.get(f"{CHECKS}/certificate-expiration/1/days").status_code == 503


@pytest.mark.parametrize("path", ["1/fortnights", "x/days", "-1/days"])
def test_a_time_that_is_none_is_refused(admin: Client, path: str) -> None:
    assert admin.get(f"{CHECKS}/certificate-expiration/{path}").status_code == 400
