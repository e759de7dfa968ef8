"""The downstream side of a cluster: settings that differ, each told in a sentence, and who may own a vhost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.config import load
from leveret.core.replication.cluster import ClusterKeys, ClusterState, Event, MemberRecord, Presence, encode
from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.core.replication.standby_site import SiteDecisions
from leveret.core.replication.vhost_owners import VhostOwner
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.errors import ConfigError
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.sites.standby_site import ClusterStandbySite
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


@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        ({}, ""),
        ({"data_dir": "/srv/standby"}, ""),
        ({"data_dir": "file:///srv/standby"}, ""),
        ({"data_dir": "/mnt/standby", "shared_data_dir": "true"}, "/mnt/standby"),
        ({"data_dir": "s3://bucket/standby"}, "s3://bucket/standby"),
        ({"data_dir": "hdfs://name/standby"}, "hdfs://name/standby"),
    ],
)
def test_nodes_share_a_place_in_a_store_and_a_path_that_is_said_to_be_shared(
    settings: dict[str, str], shared: str
) -> None:
    named = {f"standby.replication.downstream.{name}": value for name, value in settings.items()}
    assert load(None, {**MEMBER, **named}).standby.shared_place == shared


def test_a_shared_archive_needs_a_place() -> None:
    with pytest.raises(ConfigError, match="there is none that they can share"):
        load(None, {**MEMBER, "standby.replication.downstream.shared_data_dir": "true"})


def test_a_node_with_another_archive_than_the_cluster_says_so_and_owns_nothing(tmp_path: Path) -> None:
    decided = SiteDecisions(configured=OperatingMode.DOWNSTREAM, archive="s3://bucket/standby")
    told = site(tmp_path, decided, "downstream").trouble
    assert told.startswith(
        "node n1 is configured with an archive of its own (standby.replication.downstream.data_"
    )
    assert "with s3://bucket/standby: all nodes of a cluster share one archive or none do" in told


def test_a_node_that_does_not_reach_the_archive_says_so(tmp_path: Path) -> None:
    decided = SiteDecisions(configured=OperatingMode.DOWNSTREAM).without_archive("n1")
    assert site(tmp_path, decided, "downstream").trouble.startswith(
        "node n1 does not reach the archive of this"
    )
    assert not site(tmp_path, decided.with_archive("n1", "a1"), "downstream").trouble


def test_the_id_that_the_first_node_found_stays_until_the_place_changes() -> None:
    decided = SiteDecisions().with_settings(OperatingMode.DOWNSTREAM, "s3://b/x").with_archive("n1", "a1")
    assert decided.with_archive("n2", "a2").archive_id == "a1"
    assert decided.with_settings(OperatingMode.DOWNSTREAM, "s3://b/x") == decided
    assert decided.with_settings(OperatingMode.DOWNSTREAM, "s3://b/y").archive_id == ""


class Store:
    """An etcd in which the owner of a vhost notes that it has data, while the record of another vhost is written."""

    def __init__(self, state: ClusterState) -> None:
        self.revision = 0
        self.entries: dict[str, int] = {}
        self._state = state

    def put(self, key: str, value: bytes) -> None:
        self.revision += 1
        self.entries[key] = self.revision
        self._state.apply([Event(key, value, self.revision)], self.revision)

    async def transact(self, transaction: StoreTransaction) -> bool:
        for each in transaction.conditions:
            if self.entries.get(each.key, 0) != cast(Any, each).modified:
                return False
        for write in transaction.writes:
            assert isinstance(write, PutKey)
            self.put(write.key, write.value)
        claimed = VhostOwner("n2", 1, claimed=1)
        if self._state.standby_owners.get("b") == VhostOwner("n2", 1):
            self.put(self._state.keys.standby_owner("b"), encode(claimed))
        return True


async def test_what_an_owner_notes_while_other_records_are_written_is_not_replaced(tmp_path: Path) -> None:
    decided = SiteDecisions(configured=OperatingMode.DOWNSTREAM)
    found = site(tmp_path, decided, "downstream")
    state = found._member.state
    store = Store(state)
    for node in ("n1", "n3"):
        store.put(state.keys.member(node), encode(MemberRecord(node, node, 1)))
    for vhost in ("a", "b"):
        store.put(state.keys.standby_owner(vhost), encode(VhostOwner("n2", 1)))
    cast(Any, found._member).transact = store.transact
    # As it is decided while nobody has data: n2, which is gone, has no part in it.
    await found._write({vhost: VhostOwner("n3", 2) for vhost in ("a", "b")})
    assert found.owners == {"a": VhostOwner("n3", 2), "b": VhostOwner("n2", 1, claimed=1)}
