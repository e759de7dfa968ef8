"""An upstream with two standbys is lost, one takes its place, and the lost one comes back under that.

The other standby may be the last good copy of what neither of them has. So it keeps all that it has, whatever the lost
one does with its queues, and says that its upstream is none any more. `make test` has each side of this by itself:
unit/runtime/standby/test_rejoin.py and unit/pipeline/transfer/test_source.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.standby_pair import FOLLOW_TIMEOUT_S, StandbyPair, downstream_settings, get

pytestmark = [pytest.mark.torture, pytest.mark.spark, pytest.mark.timeout(900)]  # Six starts of Spark.

MESSAGES = 500
DRY_RUN = ("promote_standby_replication_downstream", "--dry-run", "--formatter", "json")


def row_of(node: LeveretProcess) -> dict[str, Any]:
    """How the other standby stands with the virtual host that has messages."""
    rows = get(node, "replication/standby/details")["vhosts"]
    return next((row for row in rows if row["virtual_host"] == "orders"), {"transferred": 0, "state": ""})


def would_come_back(node: LeveretProcess) -> dict[str, int]:
    found = json.loads(node.ctl(*DRY_RUN, timeout_s=FOLLOW_TIMEOUT_S).stdout)
    return {row["queue"]: row["message_count"] for row in found["queues"]}


def test_another_standby_keeps_what_it_has_when_the_old_upstream_rejoins(tmp_path: Path) -> None:
    other = LeveretProcess(config=downstream_settings("eu.3"), parent_dir=tmp_path)
    with StandbyPair("orders", tmp_path) as pair:
        try:
            pair.start()
            other.start()
            # It holds nothing, and the node that takes the place never has anything of it: that hinders nobody.
            pair.upstream.ctl("add_vhost", "idle", "--tags", "standby_replication")
            pair.upstream.ctl("set_permissions", "-p", "idle", "offsite-replicator", ".*", ".*", ".*")
            pair.replicate("osr", "^.*")
            pair.publish("q", (b"%d" % number for number in range(MESSAGES)))
            pair.point(other)
            pair.follow()
            pair.wait_transferred()
            before = get(pair.downstream, "replication/standby/details")["vhosts"]
            transferred = next(row["transferred"] for row in before if row["virtual_host"] == "orders")
            wait_until(
                lambda: row_of(other)["transferred"] >= transferred,
                "all at the other standby",
                FOLLOW_TIMEOUT_S,
            )
            queues = {row["name"] for row in get(other, "queues/orders")}
            assert "q" in queues
            pair.upstream.kill9()
            assert pair.promote().returncode == 0
            pair.restart_upstream()
            report = pair.rejoin()
            assert "q" not in {row["queue"] for row in report["queues"]}, "the promoted node has all of it"
            wait_until(
                lambda: (
                    row_of(other)["state"] == "recover" and "is no upstream now" in row_of(other)["error"]
                ),
                "the other standby to be told",
                FOLLOW_TIMEOUT_S,
            )
            assert would_come_back(other) == {"q": MESSAGES}
            assert {row["name"] for row in get(other, "queues/orders")} == queues, "definitions as well"
        finally:
            other.close()
