"""Settings of the queues of a cluster."""

from __future__ import annotations

import pytest

from leveret.config import build, gather, load
from leveret.config.cluster import Cluster
from leveret.core.mirror_policy import SYNC_BATCH_MESSAGES
from leveret.model.errors import ConfigError


def cluster(**lines: str) -> Cluster:
    return build(gather(overrides=lines)).cluster


def test_without_settings_they_are_rabbitmqs() -> None:
    assert load(None).cluster == Cluster()
    assert Cluster() == Cluster(
        queue_master_locator="client-local",
        queue_leader_locator="client-local",
        sync_batch_size=SYNC_BATCH_MESSAGES,
        sync_bytes_s_max=0,
        mirroring_flow_control=True,
        slave_wait_timeout_ms=15_000,
    )


def test_a_file_of_rabbitmq_is_read() -> None:
    read = cluster(
        queue_master_locator="min-masters",
        queue_leader_locator="balanced",
        mirroring_sync_batch_size="50000",
        mirroring_sync_max_throughput="100MiB",
        mirroring_flow_control="false",
        slave_wait_timeout="1000",
    )
    assert read == Cluster(
        queue_master_locator="min-masters",
        queue_leader_locator="balanced",
        sync_batch_size=50_000,
        sync_bytes_s_max=100 * 2**20,
        mirroring_flow_control=False,
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
        ("queue_master_locator", "balanced", "one of client-local, min-masters, random"),
        ("queue_leader_locator", "min-masters", "one of client-local, balanced, random, least-leaders"),
        ("mirroring_sync_batch_size", "0", "a whole number from 1 to 1000000"),
        ("mirroring_sync_batch_size", "1000001", "a whole number from 1 to 1000000"),
        ("mirroring_sync_max_throughput", "fast", "a size of at least 0 bytes"),
        ("mirroring_flow_control", "yes", "true or false"),
        ("slave_wait_timeout", "15s", "a whole number from 0 to 3600000"),
    ],
)
def test_what_will_not_do_is_refused_with_what_will(key: str, text: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster(**{key: text})
    assert f"{key} = {text!r} is not valid: expected {allowed}" in str(caught.value)
