"""The network of a cluster is parted, really: hosts are network namespaces, and packets are dropped.

What happens, and what must hold, is in tests.cluster.partitions; this runs it where nothing outside is touched. A
short run is part of `make test`; `make torture` has all scenarios, LEVERET_TORTURE_ROUNDS times over, and prints what
each cost.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.sites import network_hosts as network
from leveret.testing.sites.network_hosts import run_in_world
from tests.cluster import partitions

_WHY_NOT: Final = network.available()
pytestmark = [pytest.mark.story, pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))]

ROOT: Final = Path(__file__).parents[2]
ROUNDS: Final = int(os.environ.get("LEVERET_TORTURE_ROUNDS", "5"))
SPLITS: Final = ["minority_with_leader", "majority_without_etcd"]
SCENARIO_TIMEOUT_S: Final = 200.0


def play(folder: Path, nodes: int, etcd_members: int, seed: str, scenarios: Sequence[str]) -> None:
    """Play scenarios in one cluster, and print what it says."""
    print(f"LEVERET_SEED={seed}")
    log_file = folder / "world.log"
    status = run_in_world(
        "tests.cluster.partitions",
        *(str(folder), str(nodes), str(etcd_members), seed, *scenarios),
        folder=ROOT,
        log_file=log_file,
        timeout_s=SCENARIO_TIMEOUT_S * len(scenarios),
    )
    text = log_file.read_text(errors="replace")
    print(text)
    assert status == 0, text[-20_000:]


@pytest.mark.timeout(SCENARIO_TIMEOUT_S * 2)
def test_a_leader_that_is_cut_off_stops_and_comes_back_by_itself(tmp_path: Path) -> None:
    play(tmp_path, 3, 1, "partitions", ["leader_cut_off"])


@pytest.mark.torture
@pytest.mark.timeout(SCENARIO_TIMEOUT_S * ROUNDS * len(partitions.SCENARIOS))
def test_a_cluster_of_three_survives_whatever_becomes_of_its_network(tmp_path: Path) -> None:
    scenarios = [name for name in partitions.SCENARIOS if name not in SPLITS]
    play(tmp_path, 3, 1, _seed(), scenarios * ROUNDS)


@pytest.mark.torture
@pytest.mark.timeout(SCENARIO_TIMEOUT_S * ROUNDS * len(SPLITS))
def test_of_five_nodes_those_go_on_that_reach_most_of_etcd(tmp_path: Path) -> None:
    play(tmp_path, 5, 3, _seed(), SPLITS * ROUNDS)


def _seed() -> str:
    return os.environ.get("LEVERET_SEED") or str(random.randrange(1 << 32))
