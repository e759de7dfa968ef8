"""Clients at a node that does not lead are passed on to the leader, with stock clients and real processes."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from pika.exceptions import AMQPError
from rstream import (
    AMQPMessage,
    ConfirmationStatus,
    Consumer,
    ConsumerOffsetSpecification,
    OffsetType,
    Producer,
)

from leveret.testing.applications.applications import channel_of, parameters
from leveret.testing.network.ports import AMQP_HEADER, LOOPBACK, accepts, free_port, speaks_amqp, wait_until
from leveret.testing.servers.certificates import CertificateAuthority, available
from leveret.testing.sites.cluster_site import ClusterSite
from leveret.testing.sites.cluster_site import available as etcd_available
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSite, FollowerSiteNode
from tests.e2e.follower_clients import PERSISTENT, bodies, channel_at, declare, numbered, publish

GUEST: Final = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[FollowerSite]:
    """A leader, and a follower in sync that passes clients on."""
    with FollowerSite(tmp_path, config={"replication.proxy": "true"}) as site:
        site.start()
        yield site


def connections(leader: FollowerSiteNode) -> list[dict[str, Any]]:
    """The connections that the leader lists and serves."""
    return [row for row in leader.get("connections") if row.get("user")]


def over_http(port: int, path: str) -> tuple[int, str]:
    """What an HTTP client gets at a port."""
    client = http.client.HTTPConnection(LOOPBACK, port, timeout=PATIENCE_S)
    try:
        client.request("GET", path, headers=GUEST)
        answer = client.getresponse()
        return answer.status, answer.read().decode()
    finally:
        client.close()


# -- what a client sees, and what an operator sees ------------------------------------------------


def test_an_amqp_client_at_a_follower_is_the_leader_s_and_listed_with_its_own_address(
    pair: FollowerSite,
) -> None:
    leader, [follower] = pair.leader, pair.followers
    with channel_at(follower) as channel:
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"through the follower", PERSISTENT)
        client = channel.connection._impl._transport._sock.getsockname()
        [row] = connections(leader)
        assert (row["peer_host"], row["peer_port"]) == client[:2]
        assert (row["port"], row["ssl"]) == (follower.node.amqp_port, False)
        assert row["proxied_by"] == follower.node_name
        listed = leader.node.ctl("-q", "list_connections", "peer_port", "proxied_by").stdout
        assert f"{client[1]}\t{follower.node_name}" in listed
        status = follower.status()["proxy"]
        assert (status["connections"], status["passed_on"], status["refused"]) == (1, 1, 0)
        assert leader.status()["proxied_here"] == 1
        shown = follower.node.ctl("-q", "replication_status").stdout
        assert "Passed on: 1 connections now, 1 so far, 0 refused" in shown
        assert "connection_passed_on" in follower.node.log_text()
    assert bodies(leader, "orders") == [b"through the follower"]
    wait_until(lambda: follower.status()["proxy"]["connections"] == 0, "a client that is gone", PATIENCE_S)


def test_curl_at_a_follower_gets_the_leader_s_answers_and_the_operator_the_follower_s(
    pair: FollowerSite,
) -> None:
    leader, [follower] = pair.leader, pair.followers
    url = f"http://guest:guest@{LOOPBACK}:{follower.node.management_port}/api"
    done = subprocess.run(
        ["curl", "--silent", "--fail", f"{url}/overview", f"{url}/replication/node"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    overview, replication = done.stdout.replace("}{", "}\n{", 1).splitlines()[-2:]
    assert json.loads(overview)["node"] == leader.node_name
    assert json.loads(replication)["role"] == "leader"
    assert follower.status()["role"] == "follower"
    created = subprocess.run(
        ["curl", "--silent", "--fail", "-X", "PUT", "-d", "{}", f"{url}/queues/%2F/made"],
        timeout=PATIENCE_S,
        check=False,
    )
    assert created.returncode == 0
    assert [row["name"] for row in leader.get("queues")] == ["made"]


@pytest.mark.story
async def test_a_stream_client_that_knows_only_the_follower_publishes_and_reads(pair: FollowerSite) -> None:
    """As behind a load balancer: whatever node it is led to, it connects to the address it knows."""
    [follower] = pair.followers
    place: dict[str, Any] = {
        "host": LOOPBACK,
        "port": follower.node.stream_port,
        "username": "guest",
        "password": "guest",
        "load_balancer_mode": True,
    }
    confirmed: list[int] = []
    read: list[bytes] = []
    all_confirmed, done = asyncio.Event(), asyncio.Event()

    async def note(status: ConfirmationStatus) -> None:
        if status.is_confirmed:
            confirmed.append(status.message_id)
        if len(confirmed) == 100:
            all_confirmed.set()

    async def take(message: Any, context: Any) -> None:
        read.append(bytes(message.body if isinstance(message, AMQPMessage) else message))
        if len(read) == 100:
            done.set()

    async with asyncio.timeout(PATIENCE_S):
        async with Producer(**place) as producer:
            await producer.create_stream("events")
            for number in range(100):
                await producer.send("events", b"%d" % number, on_publish_confirm=note)
            await all_confirmed.wait()
        consumer = Consumer(**place)
        await consumer.start()
        await consumer.subscribe(
            "events", take, offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None)
        )
        await done.wait()
        await consumer.close()
    assert read == [b"%d" % number for number in range(100)]
    assert follower.status()["proxy"]["passed_on"] >= 2


# -- TLS ------------------------------------------------------------------------------------------


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_tls_of_clients_ends_at_the_leader_and_that_of_the_link_is_not_the_client_s(tmp_path: Path) -> None:
    """The follower shows a certificate on its link; a client without one must not be taken for it."""
    authority = CertificateAuthority(tmp_path)
    node = authority.issue("node", names="DNS:localhost,IP:127.0.0.1")
    client = authority.issue("client", subject="/CN=guest")
    secured_port, own_port = free_port(), free_port()
    config = {
        "replication.proxy": "true",
        **node.settings(),
        **{f"replication.{key}": value for key, value in node.settings().items()},
        "replication.ssl_options.verify": "verify_peer",
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
        "auth_mechanisms.1": "PLAIN",
        "auth_mechanisms.2": "EXTERNAL",
        "ssl_cert_login_from": "common_name",
    }
    with FollowerSite(tmp_path, config=config) as site:
        for member, port in zip(site.members, (secured_port, own_port), strict=True):
            member.scheme = "tls"
            member.node.config["listeners.ssl.1"] = f"{LOOPBACK}:{port}"
        site.start()
        [follower] = site.followers
        options = pika.SSLOptions(client.client_context(), "localhost")
        secured = pika.ConnectionParameters(
            LOOPBACK, own_port, ssl_options=options, credentials=pika.credentials.ExternalCredentials()
        )
        with channel_of(pika.BlockingConnection(secured)) as channel:
            channel.queue_declare("secret", durable=True)
            channel.basic_publish("", "secret", b"sealed", PERSISTENT)
            [row] = connections(site.leader)
            assert (row["ssl"], row["user"], row["peer_cert_subject"]) == (True, "guest", "CN=guest")
        with channel_at(follower):
            [row] = connections(site.leader)
            assert (row["ssl"], row["peer_cert_subject"], row["proxied_by"]) == (
                False,
                None,
                follower.node_name,
            )
        plain = pika.ConnectionParameters(
            LOOPBACK, follower.node.amqp_port, credentials=pika.credentials.ExternalCredentials()
        )
        with pytest.raises(AMQPError):
            pika.BlockingConnection(plain)
        stranger = pika.SSLOptions(ssl.create_default_context(cafile=node.cacertfile), "localhost")
        with pytest.raises((AMQPError, OSError)):
            pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, own_port, ssl_options=stranger))
        assert bodies(site.leader, "secret") == [b"sealed"]


# -- the leader is gone, unknown, or another one --------------------------------------------------


@pytest.mark.story
def test_clients_at_followers_reconnect_over_a_fail_over_and_lose_nothing_confirmed(tmp_path: Path) -> None:
    """Publishers know both followers, as a load balancer does, and never the leader."""
    with FollowerSite(tmp_path, followers=2, config={"replication.proxy": "true"}) as site:
        site.start()
        declare(site.leader, "orders")
        first, second = site.followers
        ports = [first.node.amqp_port, second.node.amqp_port]
        confirmed: set[bytes] = set()
        published: list[bytes] = []
        stop = threading.Event()

        def publishing() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                with suppress(AMQPError, OSError), ExitStack() as stack:
                    connection = pika.BlockingConnection(parameters(ports[turn % 2], "/"))
                    channel = stack.enter_context(channel_of(connection))
                    while not stop.is_set():
                        body = b"%d" % len(published)
                        published.append(body)
                        channel.basic_publish("", "orders", body, PERSISTENT)
                        confirmed.add(body)
                time.sleep(0.02)

        publisher = threading.Thread(target=publishing)
        publisher.start()
        try:
            wait_until(lambda: len(confirmed) >= 200, "confirms through followers", PATIENCE_S)
            site.leader.node.kill9()
            at_kill = len(confirmed)
            refused = wait_refused(first, second)
            assert refused, "no sentence for a client while no leader answers"
            site.promote(first)
            wait_until(lambda: len(confirmed) >= at_kill + 200, "confirms after the fail-over", PATIENCE_S)
        finally:
            stop.set()
            publisher.join()
        assert second.status()["proxy"]["passed_on"] >= 1
        left = bodies(second, "orders")
        assert confirmed <= set(left)
        assert set(left) <= set(published)


def wait_refused(*followers: FollowerSiteNode) -> str:
    """The sentence of a node whose leader does not answer."""
    found: list[str] = []

    def refused() -> bool:
        found.extend(each.status()["proxy"]["last_refusal"] for each in followers)
        return any(found)

    wait_until(refused, "a client that is refused", PATIENCE_S)
    return next(filter(None, found))


@pytest.mark.story
def test_a_leader_that_is_away_is_said_and_clients_are_closed(pair: FollowerSite) -> None:
    leader, [follower] = pair.leader, pair.followers
    follower.link.refuse()
    follower.link.cut()
    with pytest.raises((AMQPError, OSError)):
        pika.BlockingConnection(parameters(follower.node.amqp_port, "/"))
    status, text = over_http(follower.node.management_port, "/api/overview")
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert text.startswith("This node does not lead, and did not reach the leader: ")
    assert "connection_not_passed_on" in follower.node.log_text()
    follower.link.allow()
    wait_until(lambda: speaks_amqp(follower.node.amqp_port), "the leader through the follower", PATIENCE_S)
    # A follower that is asked to pass on to a node that follows as well gets its answer, and so does the client.
    assert leader.status()["role"] == "leader"


def test_the_ports_are_the_node_s_own_once_it_leads(pair: FollowerSite) -> None:
    old, [follower] = pair.leader, pair.followers
    declare(follower, "orders")
    with ExitStack() as stack:
        passed_on = pika.BlockingConnection(parameters(follower.node.amqp_port, "/"))
        stack.callback(lambda: passed_on.is_open and passed_on.close())
        pair.promote(follower)
        with pytest.raises(AMQPError):
            wait_until(
                lambda: bool(passed_on.process_data_events(0.1)), "the end of the connection", PATIENCE_S
            )
    publish(follower, "orders", numbered(0, 10))
    assert connections(follower) == []
    assert follower.status()["proxy"]["connections"] == 0
    # The old leader was told, and passes clients on to its successor.
    wait_until(lambda: old.status()["role"] == "fenced", "a fenced leader", PATIENCE_S)
    wait_until(lambda: speaks_amqp(old.node.amqp_port), "the successor through the fenced node", PATIENCE_S)
    assert bodies(old, "orders") == numbered(0, 10)


@pytest.mark.story
def test_connections_pass_through_a_cascade_and_not_in_a_circle(tmp_path: Path) -> None:
    with FollowerSite(tmp_path, followers=2, config={"replication.proxy": "true"}) as site:
        leader, [near, far] = site.leader, site.followers
        leader.lead()
        near.follow(leader)
        leader.wait_in_sync(near)
        far.follow(near)
        near.wait_in_sync(far)
        with channel_at(far) as channel:
            channel.queue_declare("orders", durable=True)
            [row] = connections(leader)
            assert row["port"] == far.node.amqp_port
            assert near.status()["proxy"]["connections"] == far.status()["proxy"]["connections"] == 1
        # The two follow each other by their links, and each is the other's leader for what it knows.
        near.link.target_port = far.replication_port
        near.link.cut()
        with pytest.raises((AMQPError, OSError)):
            pika.BlockingConnection(parameters(far.node.amqp_port, "/"))
        wait_until(
            lambda: "in a circle" in near.node.log_text() + far.node.log_text(),
            "the reason of the refusal",
            PATIENCE_S,
        )


# -- budgets --------------------------------------------------------------------------------------


@pytest.mark.story
def test_who_sends_nothing_costs_the_leader_nothing_and_the_follower_its_budget(tmp_path: Path) -> None:
    with FollowerSite(tmp_path, config={"replication.proxy": "true"}) as site:
        leader, [follower] = site.leader, site.followers
        follower.node.open_files_max = 256
        site.start()
        with channel_at(follower) as served, ExitStack() as stack:
            served.queue_declare("orders", durable=True)
            for _ in range(400):
                stack.enter_context(
                    socket.create_connection((LOOPBACK, follower.node.amqp_port), timeout=PATIENCE_S)
                )
            wait_until(
                lambda: "connections_refused listener=amqp" in follower.node.log_text(),
                "connections beyond the budget that are closed",
                PATIENCE_S,
            )
            assert leader.status()["proxied_here"] == 1
            served.basic_publish("", "orders", b"goes on", PERSISTENT)
        assert follower.status()["state"] == "streaming"
        assert bodies(leader, "orders") == [b"goes on"]


def test_a_stranger_cannot_name_an_address(pair: FollowerSite) -> None:
    """A PROXY header at a client's port is no way in, neither at the leader nor at the follower."""
    forged = b"PROXY TCP4 10.9.9.9 10.9.9.8 1 5672\r\n" + AMQP_HEADER
    for member in pair.members:
        with socket.create_connection((LOOPBACK, member.node.amqp_port), timeout=PATIENCE_S) as stranger:
            stranger.sendall(forged)
            answer = b"".join(iter(lambda: stranger.recv(64), b""))
            assert answer in (b"", AMQP_HEADER)
    assert "10.9.9.9" not in pair.leader.node.log_text()


# -- clusters -------------------------------------------------------------------------------------


@pytest.mark.story
@pytest.mark.skipif(etcd_available() is not None, reason=str(etcd_available()))
def test_a_node_of_a_cluster_without_its_lease_passes_clients_on_to_one_that_serves(tmp_path: Path) -> None:
    with ClusterSite(tmp_path, nodes=2, config={"replication.proxy": "true"}, links=True) as site:
        cut_off, other = site.members
        with site.channel(other) as channel:
            channel.queue_declare("orders", durable=True)
        assert cut_off.etcd_link is not None
        cut_off.etcd_link.refuse()
        cut_off.etcd_link.cut()
        site.wait(
            lambda: "proxy_listening" in cut_off.log_text() and accepts(cut_off.amqp_port),
            "a node that passes clients on",
        )
        with site.channel(cut_off) as channel:
            channel.basic_publish("", "orders", b"by the other node", PERSISTENT)
            rows = site.api("GET", "connections", at=other)
            assert [row["proxied_by"] for row in rows if row.get("proxied_by")] == [cut_off.node]
        cut_off.etcd_link.allow()
        site.wait(lambda: cut_off.node in site.members_running(other), "a node that serves again")

        def serves() -> bool:
            with site.channel(cut_off):
                return not any(row.get("proxied_by") for row in site.api("GET", "connections", at=other))

        site.wait(serves, "its own service, with no client passed on")
        with site.channel(cut_off) as channel:
            assert channel.basic_get("orders")[2] == b"by the other node"
