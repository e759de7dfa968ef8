"""Nodes of a cluster are killed, frozen, cut off and replaced at moments nobody chose; all must be in order.

After each round: nothing confirmed is lost, nothing settled is back, each publisher's messages are in their order, and
all nodes know the same. `make torture` runs it: LEVERET_TORTURE_ROUNDS says how long, LEVERET_SEED repeats a run. What
the machine does in between is its own, so a seed brings back the circumstances of a failure, not always the failure.
`make test` plays such rounds in virtual time: tests/unit/testing/simulation/test_worlds.py.
"""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.sites.cluster_site import ClusterSite
from tests.cluster.torture import EVENTS, Story
from tests.cluster.torture_stage import CONFIG, LEASE_S
from tests.e2e.test_torture import summary

ROUNDS: Final = int(os.environ.get("LEVERET_TORTURE_ROUNDS", "5"))
EVENTS_MIN, EVENTS_MAX = 2, 5


@pytest.mark.torture
@pytest.mark.timeout(3600 + 180 * ROUNDS)
@pytest.mark.parametrize("nodes", [3, 5])
def test_a_cluster_keeps_everything_over_and_over(tmp_path: Path, nodes: int) -> None:
    seed = os.environ.get("LEVERET_SEED") or str(random.randrange(1 << 32))
    print(f"\nLEVERET_SEED={seed} rounds={ROUNDS} nodes={nodes} lease={LEASE_S:g}s")
    chance = random.Random(seed)
    with (
        ClusterSite(tmp_path, nodes, CONFIG, etcd_members=1, links=True, followed=True) as site,
        closing(Story(site, tmp_path, chance)) as story,
    ):
        try:
            story.begin()
            for round_ in range(ROUNDS):
                events = chance.choices(
                    [*EVENTS, "kill_leader", "cut_off"], k=chance.randint(EVENTS_MIN, EVENTS_MAX)
                )
                print(f"round {round_ + 1}: {', '.join(events)}: ", end="", flush=True)
                print(summary(story.round(events)), flush=True)
        except BaseException:
            for node in site.members:
                # The site deletes it at its end; an error has its last lines only.
                (tmp_path / f"{node.name}.log").write_text(node.log_text())
            for outpost in story.outposts.every:
                (tmp_path / f"{outpost.node.name}.log").write_text(outpost.node.node.log_text())
            raise
    print(", ".join(f"{name} {times}" for name, times in sorted(story.counts.items())))
