from __future__ import annotations

import pytest

from bench.failover import FAILOVER
from bench.rows import Settings
from leveret.testing.servers import etcd
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process


@pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available()))
def test_the_follower_leads_after_a_kill_with_all_that_was_confirmed(tiny: Settings) -> None:
    with LeveretProcess() as node:
        [reading] = FAILOVER.run(node, tiny).values()
        assert not node.alive
    assert reading.value > 0
    assert reading.details["messages"] >= reading.details["confirmed"] > 0
