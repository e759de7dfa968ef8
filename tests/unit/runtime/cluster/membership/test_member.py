"""runtime.cluster.membership.member: with which data and name a node may start, and what it is told otherwise."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from leveret.config import load
from leveret.core.replication.cluster import MemberRecord, encode
from leveret.core.replication.election import Holds, PutKey, StoreTransaction
from leveret.model.errors import PreconditionFailed
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.membership.membership_file import MembershipFile
from leveret.storage.secret_file import Secret
from leveret.testing.network.waiting import until

OWN, OTHER = MemberRecord("rabbit@b", "own data", 0), MemberRecord("rabbit@b", "other data", 0)


def counted(record: MemberRecord, runs: int) -> MemberRecord:
    return msgspec.structs.replace(record, runs=runs)


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


@pytest.mark.parametrize(
    ("runs", "record", "is_refused"),
    [
        (4, counted(OWN, 5), True),
        (5, counted(OWN, 5), False),
        (6, counted(OWN, 5), False),  # killed before etcd had the count
        (None, counted(OWN, 5), False),  # its operator removed the file
        (4, OWN, False),  # the records were made anew
        (4, counted(OTHER, 5), False),  # refused for another reason
        (4, None, False),
    ],
)
async def test_an_older_copy_of_a_nodes_data_is_refused(
    runs: int | None, record: MemberRecord | None, is_refused: bool, tmp_path: Path
) -> None:
    """It would lead queues as a synchronised mirror, without messages that it had acked."""
    if runs is not None:
        MembershipFile(tmp_path).count_run(runs)
    member = ClusterMember(load(None, SETTINGS), tmp_path, "own data", Secret(b"s" * 32), lambda reason: None)
    member.state.members = {record.name: record} if record else {}
    if is_refused:
        with pytest.raises(PreconditionFailed, match=r"of run 4 of node 'rabbit@b', .* its run 5: .*remove"):
            member._check_runs()
    else:
        member._check_runs()


@pytest.mark.parametrize("former", [None, OWN, counted(OWN, 7)])
@pytest.mark.parametrize("answer", [3, None])
async def test_each_entry_is_counted_in_the_data_first_and_a_forgotten_node_stays_forgotten(
    former: MemberRecord | None, answer: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MembershipFile(tmp_path).count_run(7)
    member = ClusterMember(load(None, SETTINGS), tmp_path, "own data", Secret(b"s" * 32), lambda reason: None)
    member.state.cluster_id = "one"
    member.state.members = {former.name: former} if former else {}
    transactions: list[StoreTransaction] = []

    async def transact(transaction: StoreTransaction) -> int | None:
        assert MembershipFile(tmp_path).runs == 8
        transactions.append(transaction)
        return answer

    monkeypatch.setattr(member.store, "transact", transact)
    if answer is None:
        with pytest.raises(PreconditionFailed, match="taken out"):
            await member.joined()
        assert not MembershipFile(tmp_path).cluster_id
    else:
        await member.joined()
        await member.leave()
    [transaction] = transactions
    [put] = transaction.writes
    assert isinstance(put, PutKey)
    assert msgspec.json.decode(put.value, type=MemberRecord).runs == 8
    key = member.state.keys.member("rabbit@b")
    assert transaction.conditions == (() if former is None else (Holds(key, encode(former)),))


def test_a_record_of_an_earlier_build_is_known_by_its_octets() -> None:
    assert encode(OWN) == b'{"name":"rabbit@b","node_id":"own data","joined_at_ms":0}'


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
