"""Settings of the queues of a cluster."""

from __future__ import annotations

import pytest

from leveret.config import build, gather, load
from leveret.config.sections.cluster import Cluster
from leveret.config.sections.tls import TlsOptions
from leveret.config.uris import NodeUri
from leveret.core.rules.mirror_policy import SYNC_BATCH_MESSAGES
from leveret.model.errors import ConfigError


def cluster(**lines: str) -> Cluster:
    return build(gather(overrides=lines)).cluster


def test_without_settings_they_are_rabbitmqs() -> None:
    assert load(None).cluster == Cluster()
    assert Cluster() == Cluster(
        peer_discovery_backend="none",
        bind="127.0.0.1",
        port=25672,
        advertised_uri=None,
        tls=TlsOptions(),
        queue_master_locator="client-local",
        queue_leader_locator="client-local",
        sync_batch_size=SYNC_BATCH_MESSAGES,
        sync_bytes_s_max=0,
        mirroring_flow_control=True,
        mirroring_ack_timeout_ms=10_000,
        slave_wait_timeout_ms=15_000,
    )


def test_a_file_of_rabbitmq_is_read() -> None:
    read = cluster(
        queue_master_locator="min-masters",
        queue_leader_locator="balanced",
        mirroring_sync_batch_size="50000",
        mirroring_sync_max_throughput="100MiB",
        mirroring_flow_control="false",
        mirroring_ack_timeout="1m",
        slave_wait_timeout="1000",
    )
    assert read == Cluster(
        queue_master_locator="min-masters",
        queue_leader_locator="balanced",
        sync_batch_size=50_000,
        sync_bytes_s_max=100 * 2**20,
        mirroring_flow_control=False,
        mirroring_ack_timeout_ms=60_000,
        slave_wait_timeout_ms=1_000,
    )


@pytest.mark.parametrize(
    ("text", "bytes_s"), [(None, 0), ("100", 100), ("100MiB", 104_857_600), ("100MB", 100_000_000)]
)
def test_default_max_sync_throughput(text: str | None, bytes_s: int) -> None:
    """The case of RabbitMQ's unit_classic_mirrored_queue_throughput_SUITE."""
    read = cluster() if text is None else cluster(mirroring_sync_max_throughput=text)
    assert read.sync_bytes_s_max == bytes_s


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("cluster_formation.peer_discovery_backend", "k8s", "one of none, etcd"),
        ("cluster.bind", "localhost", "an IP address such as 127.0.0.1"),
        ("cluster.port", "65536", "a whole number from 0 to 65535"),
        ("cluster.advertised_uri", "a:1", "tcp://HOST:PORT or tls://HOST:PORT such as tcp://10.0.0.1:25672"),
        ("queue_master_locator", "balanced", "one of client-local, min-masters, random"),
        ("queue_leader_locator", "min-masters", "one of client-local, balanced, random, least-leaders"),
        ("mirroring_sync_batch_size", "0", "a whole number from 1 to 1000000"),
        ("mirroring_sync_batch_size", "1000001", "a whole number from 1 to 1000000"),
        ("mirroring_sync_max_throughput", "fast", "a size of at least 0 bytes"),
        ("mirroring_flow_control", "yes", "true or false"),
        ("mirroring_ack_timeout", "999ms", "a duration of 1000 ms to ten years"),
        ("slave_wait_timeout", "15s", "a whole number from 0 to 3600000"),
    ],
)
def test_what_will_not_do_is_refused_with_what_will(key: str, text: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster(**{key: text})
    assert f"{key} = {text!r} is not valid: expected {allowed}" in str(caught.value)


MEMBER = {
    "cluster_formation.peer_discovery_backend": "etcd",
    "cluster.etcd.endpoints": "http://10.0.0.8:2379",
}


def test_a_member_of_a_cluster_needs_no_more_than_etcd() -> None:
    config = build(gather(overrides=MEMBER | {"replication.bind": "10.0.0.1"}))
    assert (config.cluster.is_member, config.is_elected) == (True, False)
    alone = build(gather())
    assert (alone.cluster.is_member, alone.is_elected) == (False, False)
    elected = {"cluster.etcd.endpoints": "http://10.0.0.8:2379", "replication.bind": "10.0.0.1"}
    config = build(gather(overrides=elected))
    assert (config.cluster.is_member, config.is_elected) == (False, True)


def test_where_other_nodes_find_this_one_is_read() -> None:
    lines = {
        "cluster.bind": "0.0.0.0",
        "cluster.port": "0",
        "cluster.advertised_uri": "tls://a.example",
        "cluster.ssl_options.certfile": "/etc/a.pem",
    }
    read = cluster(**MEMBER, **lines)
    assert (read.bind, read.port, read.advertised_uri) == ("0.0.0.0", 0, NodeUri("tls", "a.example", 25672))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            {"cluster.etcd.endpoints": "none"},
            "cluster_formation.peer_discovery_backend = etcd makes this node a member of a cluster whose state is in "
            "etcd: set cluster.etcd.endpoints",
        ),
        ({"replication.follow": "tcp://a"}, "replication.follow makes this node a follower"),
        ({"replication.min_in_sync": "1"}, "replication.min_in_sync stops the publishers of this node"),
        ({"cluster.bind": "0.0.0.0"}, "cluster.bind = 0.0.0.0 is no address at which"),
        ({"cluster.bind": "::"}, "cluster.bind = :: is no address at which"),
        ({"cluster.advertised_uri": "tls://a"}, "cluster.advertised_uri must be tls:// if and only if"),
        (
            {"cluster.advertised_uri": "tcp://a", "cluster.ssl_options.certfile": "/etc/a.pem"},
            "cluster.advertised_uri must be tls:// if and only if cluster.ssl_options.certfile is set",
        ),
        ({"cluster.etcd.lease_ttl": "1500ms"}, "cluster.etcd.lease_ttl is not a whole number of seconds"),
    ],
)
def test_a_member_of_a_cluster_does_not_contradict_itself(lines: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cluster(**(MEMBER | lines))
    assert f"--set: {reason}" in str(refused.value)


def test_who_is_in_no_cluster_may_have_what_a_member_may_not() -> None:
    assert not cluster(**{"cluster.bind": "0.0.0.0", "replication.follow": "tcp://a"}).is_member
