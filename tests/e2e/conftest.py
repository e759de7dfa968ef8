"""What tests of whole processes share."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from leveret.testing.servers.etcd import EtcdCluster
from tests.e2e.store_node import HEARTBEAT_MS


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Draws a test's amounts and moments; the seed is printed, and LEVERET_SEED sets another one."""
    seed = os.environ.get("LEVERET_SEED", request.node.name)
    print(f"LEVERET_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="module")
def shared_etcd() -> Iterator[EtcdCluster]:
    """Of the tests of a module, which keep to a prefix each."""
    with EtcdCluster(heartbeat_ms=HEARTBEAT_MS) as cluster:
        yield cluster


@pytest.fixture
def own_etcd() -> Iterator[EtcdCluster]:
    """For a test that is rough with it."""
    with EtcdCluster(heartbeat_ms=HEARTBEAT_MS) as cluster:
        yield cluster
