"""Two sites of three nodes under random faults, over promotions and failbacks: exact books after each round."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.sites import cluster_site
from leveret.testing.sites.standby_cluster import StandbyCluster
from tests.e2e.sites_torture import ARCHIVE, VHOSTS, SitesTorture

LEASE_S: Final = os.environ.get("LEVERET_TORTURE_LEASE_S", "2")
"""More of it where others use the machine as well; see tests/cluster/torture_stage.py."""

pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.timeout(6000)]


@pytest.mark.parametrize("archive", ["own", "shared"])
def test_rounds_of_losses_of_both_sites_balance(tmp_path: Path, archive: str) -> None:
    if reason := cluster_site.available():
        pytest.skip(reason)
    rounds = int(os.environ.get("LEVERET_TORTURE_ROUNDS", "2"))
    seed = int(os.environ.get("LEVERET_SEED", str(random.randrange(1 << 30))))
    print(f"seed {seed}, {rounds} rounds", flush=True)
    lease = {"cluster.etcd.lease_ttl": f"{LEASE_S}s"}
    own = {site: dict(lease) for site in ("first", "second")}
    if archive == "shared":
        for site, config in own.items():
            config[ARCHIVE] = str(tmp_path / f"archive-{site}")
            config["standby.replication.downstream.shared_data_dir"] = "true"
    with StandbyCluster(
        tmp_path, VHOSTS, upstream_nodes=3, seed=seed, config=own["second"], upstream_config=own["first"]
    ) as sites:
        torture = SitesTorture(sites, seed)
        torture.publish()
        sites.follow()
        torture.run(rounds)
