"""runtime.cluster.membership.member: with which data and name a node may start, and what it is told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.config import load
from leveret.core.replication.cluster import MemberRecord
from leveret.model.errors import PreconditionFailed
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.membership.membership_file import MembershipFile
from leveret.storage.secret_file import Secret
from leveret.testing.network.waiting import until

OWN, OTHER = MemberRecord("rabbit@b", "own data", 0), MemberRecord("rabbit@b", "other data", 0)
RENAMED = MemberRecord("rabbit@a", "own data", 0)
SETTINGS = {
    "nodename": "rabbit@b",
    "cluster_formation.peer_discovery_backend": "etcd",
    "cluster.etcd.endpoints": "http://127.0.0.1:1",
}


@pytest.mark.parametrize(
    ("remembered", "record", "said"),
    [
        ("one", OWN, ""),
        ("", None, ""),
        ("other", OWN, ""),  # its data are those of a member of a cluster that was made anew
        ("other", None, "belongs to cluster other, and etcd below leveret/ has cluster one"),
        ("one", RENAMED, "that of node 'rabbit@a' of cluster one, and nodename is now 'rabbit@b'"),
        ("one", OTHER, "the cluster has another node 'rabbit@b'"),
        ("one", None, "'rabbit@b' was taken out of cluster one"),
    ],
)
async def test_a_node_is_told_whose_data_it_has_and_never_to_delete_those_of_a_member(
    remembered: str, record: MemberRecord | None, said: str, tmp_path: Path
) -> None:
    lost: list[str] = []
    member = ClusterMember(load(None, SETTINGS), tmp_path, "own data", Secret(b"s" * 32), lost.append)
    member.state.cluster_id = "one"
    member.state.members = {record.name: record} if record else {}
    if said:
        with pytest.raises(PreconditionFailed) as refused:
            member._check_identity(remembered)
        assert said in str(refused.value)
        assert ("empty data directory" in str(refused.value)) is (remembered == "one" and record is None)
    else:
        member._check_identity(remembered)


@pytest.mark.parametrize(
    ("remembered", "revision", "is_refused"), [("one", 6, True), ("one", 7, False), ("other", 6, False)]
)
async def test_an_etcd_that_is_older_than_what_a_node_has_seen_is_refused(
    remembered: str, revision: int, is_refused: bool, tmp_path: Path
) -> None:
    """The node would delete the logs of queues that were declared since that copy of etcd, as those of deleted ones."""
    MembershipFile(tmp_path).entered("one")
    MembershipFile(tmp_path).saw(7)
    MembershipFile(tmp_path).saw(5)
    member = ClusterMember(load(None, SETTINGS), tmp_path, "own data", Secret(b"s" * 32), lambda reason: None)
    member.state.cluster_id, member.state.revision = "one", revision
    if is_refused:
        with pytest.raises(
            PreconditionFailed, match=r"has revision 6, .* seen its revision 7: .*rebuild_cluster"
        ):
            member._check_age(remembered)
    else:
        member._check_age(remembered)
    MembershipFile(tmp_path).entered("another, made of this node's data")
    assert MembershipFile(tmp_path).revision == 0


async def test_a_node_that_could_not_move_the_definitions_lock_any_more_begins_anew(tmp_path: Path) -> None:
    """All nodes would wait for the lock as long as this one runs."""
    lost: list[str] = []
    member = ClusterMember(load(None, SETTINGS), tmp_path, "own data", Secret(b"s" * 32), lost.append)

    async def fail() -> None:
        raise RuntimeError("a bug")

    member._spawn(fail())
    await until(lambda: lost)
    assert "a bug" in lost[0]
    await member.leave()
