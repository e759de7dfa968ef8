"""The downstream side of a cluster: settings that differ, each told in a sentence, and who may own a vhost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.config import load
from leveret.core.replication.cluster import ClusterKeys, ClusterState, Presence
from leveret.core.replication.standby_site import SiteDecisions
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.errors import ConfigError
from leveret.runtime.cluster.member import ClusterMember
from leveret.runtime.cluster.standby_site import ClusterStandbySite
from leveret.runtime.standby.decisions import StandbyDecided
from leveret.storage.state_file import StateFile

MEMBER = {
    "cluster_formation.peer_discovery_backend": "etcd",
    "cluster.etcd.endpoints": "http://127.0.0.1:2379",
}


def site(folder: Path, decided: SiteDecisions | None, mode: str) -> ClusterStandbySite:
    """This node's, which is configured so, in a cluster with these decisions."""
    config = load(None, {**MEMBER, "standby.replication.operating_mode": mode})
    state = ClusterState(ClusterKeys.under("/c"))
    state.standby = decided
    state.alive["n1"] = Presence("i", "tcp://h:1", "", 0, "1", standby_mode=mode)
    member = cast(ClusterMember, cast(Any, SimpleNamespace(state=state, name="n1")))
    own = StandbyDecided(StateFile(folder / "standby.json"), OperatingMode(mode))
    return ClusterStandbySite(member, config, own, list)


def test_a_node_in_another_mode_than_the_cluster_says_so(tmp_path: Path) -> None:
    decided = SiteDecisions(configured=OperatingMode.DOWNSTREAM)
    told = site(tmp_path, decided, "upstream").trouble
    assert told.startswith("node n1 is configured as upstream (standby.replication.operating_mode), and the ")
    assert "set_standby_replication_mode" in told
    assert site(tmp_path, decided, "downstream").trouble == ""


def test_what_an_operator_decided_is_no_difference_of_settings(tmp_path: Path) -> None:
    """A promoted cluster's files still say `downstream`, and the first node's may say `upstream` by now."""
    decided = SiteDecisions(operating_mode=OperatingMode.UPSTREAM, configured=OperatingMode.UPSTREAM)
    assert site(tmp_path, decided, "downstream").trouble == ""


def test_until_the_cluster_has_decisions_those_of_the_node_hold(tmp_path: Path) -> None:
    assert site(tmp_path, None, "downstream").decided == SiteDecisions()


@pytest.mark.parametrize("place", ["s3://bucket/standby", "hdfs://name/standby"])
def test_an_archive_in_a_store_is_refused_in_a_cluster(place: str) -> None:
    with pytest.raises(ConfigError, match=r"data_dir is a place in a store, whose archive has one writer"):
        load(None, {**MEMBER, "standby.replication.downstream.data_dir": place})
    load(None, {"standby.replication.downstream.data_dir": place})
