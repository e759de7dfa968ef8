from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from leveret.config.sections.followers import Followers
from leveret.config.sections.tls import TlsOptions
from leveret.testing.servers.certificates import CertificateAuthority, available
from tests.unit.management.fake_replication import follower

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.management.conftest import Client, FakeNode

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


@pytest.mark.process
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


def test_a_leader_with_too_few_followers_in_sync_fails_the_check_of_replication(
    admin: Client, node: FakeNode
) -> None:
    replication = node.replication
    assert admin.get(f"{CHECKS}/replication").json() == {"status": "ok", "role": "leader", "state": "leader"}
    replication.min_in_sync = 2
    replication.followers = [follower("b", "2"), follower("c", "3", in_sync=False)]
    reply = admin.get(f"{CHECKS}/replication")
    assert (reply.status_code, reply.json()["reason"]) == (
        503,
        "1 of the 2 in-sync followers asked for are there",
    )
    replication.followers[1]["in_sync"] = True
    assert admin.get(f"{CHECKS}/replication").status_code == 200


@pytest.mark.parametrize(
    ("state", "fields", "reason"),
    [
        ("streaming", {"lag_s": 30.0}, None),
        ("streaming", {"lag_s": None}, None),
        ("streaming", {"lag_s": 30.1}, "30.1 s behind; replication.max_lag is 30 s"),
        ("delayed", {"lag_s": 1829.0, "apply_delay_s": 1800.0}, None),
        ("delayed", {"lag_s": 1831.0, "apply_delay_s": 1800.0}, "31.0 s behind"),
        ("connecting", {}, "is not streaming but connecting: refused"),
        ("joining", {}, "is not streaming but joining"),
        ("catching_up", {}, "is not streaming but catching_up"),
        ("failed", {}, "is not streaming but failed"),
    ],
)
def test_a_follower_that_does_not_keep_up_fails_the_check_of_replication(
    admin: Client, node: FakeNode, state: str, fields: dict[str, float | None], reason: str | None
) -> None:
    node.replication.follow(state, **fields)
    node.replication.error = "refused"
    reply = admin.get(f"{CHECKS}/replication")
    assert reply.status_code == (503 if reason else 200)
    assert (reply.json()["role"], reply.json()["state"]) == ("follower", state)
    assert (reason or "") in reply.json().get("reason", "")
    assert not reason or "tcp://10.0.0.1:5679 (leveret@a)" in reply.json()["reason"]


def test_a_fenced_node_fails_the_check_of_replication(admin: Client, node: FakeNode) -> None:
    node.replication.fence()
    reply = admin.get(f"{CHECKS}/replication")
    assert (reply.status_code, "--follow" in reply.json()["reason"]) == (503, True)


def test_only_a_leader_is_in_service_and_listens_for_clients(admin: Client, node: FakeNode) -> None:
    served = ("is-in-service", "virtual-hosts")
    assert [admin.get(f"{CHECKS}/{check}").status_code for check in served] == [200, 200]
    node.replication.follow()
    assert [admin.get(f"{CHECKS}/{check}").status_code for check in served] == [503, 503]
    assert admin.get(f"{CHECKS}/port-listener/5672").json()["ports"] == [15672]
    assert admin.get(f"{CHECKS}/protocol-listener/amqp").status_code == 503
    assert admin.get(f"{CHECKS}/protocol-listener/http").status_code == 200


def test_a_leader_is_in_service_when_it_lets_clients_in(admin: Client, node: FakeNode) -> None:
    """Who has just been promoted, or has a lease again, recovers first."""
    node.is_open = False
    reply = admin.get(f"{CHECKS}/is-in-service")
    assert (reply.status_code, "once its queues are recovered" in reply.json()["reason"]) == (503, True)
    assert admin.get(f"{CHECKS}/protocol-listener/amqp").status_code == 503
    refused = admin.put("/api/queues/%2F/early", json={})
    assert (refused.status_code, refused.json()["error"]) == (503, "starting")
    assert ("/", "early") not in node.broker.queues


def test_the_listener_for_followers_is_one_on_every_node(admin: Client, node: FakeNode) -> None:
    node.config = replace(node.config, followers=Followers(bind="127.0.0.1", port=5679))
    assert admin.get(f"{CHECKS}/protocol-listener/replication").status_code == 200
    node.replication.follow()
    assert admin.get(f"{CHECKS}/port-listener/5679").status_code == 200


@pytest.mark.process
@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_the_certificate_of_the_listener_for_followers_is_looked_at(
    admin: Client, node: FakeNode, tmp_path: Path
) -> None:
    issued = CertificateAuthority(tmp_path).issue("server", names="DNS:localhost")
    tls = TlsOptions(certfile=issued.certfile, keyfile=issued.keyfile)
    node.config = replace(node.config, followers=Followers(bind="127.0.0.1", port=5679, tls=tls))
    [expired] = admin.get(f"{CHECKS}/certificate-expiration/1/weeks").json()["expired"]
    assert (expired["protocol"], expired["port"]) == ("replication/ssl", 5679)
