"""Clocks of nodes that are set back: nothing that lasts goes by the time of day."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from leveret.testing.simulation.cluster_world import ClusterWorld
from leveret.testing.simulation.etcd_world import EtcdWorld
from leveret.testing.simulation.follower_world import FollowerWorld
from leveret.testing.simulation.world import PossibleFault

pytestmark = pytest.mark.timeout(200)

BACK_S = 7200.0


class _SetBack(EtcdWorld):
    """Its links break, and its clocks go back."""

    def possible_faults(self) -> Sequence[PossibleFault]:
        self.pause_s = 1.0
        one, other = self.random.sample(self.nodes, 2)
        return [
            PossibleFault("set back", self.set_back),
            PossibleFault("reset", lambda: self.network.reset(one.name, other.name)),
        ]

    def set_back(self) -> None:
        for node in self.nodes:
            assert node.process is not None
            node.process.clock_offset_s -= BACK_S


class SetBackCluster(_SetBack, ClusterWorld):
    """A cluster of that kind."""


class SetBackFollowers(_SetBack, FollowerWorld):
    """Followers of that kind."""


@pytest.mark.parametrize("kind", [SetBackCluster, SetBackFollowers])
def test_mirrors_and_followers_become_synchronised_although_all_clocks_are_set_back(
    kind: type[EtcdWorld], tmp_path: Path
) -> None:
    report = kind(1, tmp_path).run(seconds=15)
    assert report.faults["set back"] > 1
    assert report.faults["reset"] > 1
