"""A node is forgotten while no node of its cluster runs: what etcd has afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from leveret.cli.api import CtlError
from leveret.cli.offline import forget_stopped
from leveret.config.uris import Endpoints
from leveret.core.replication.cluster import (
    ClusterKeys,
    ClusterState,
    DefinitionChanged,
    MemberRecord,
    Placement,
    Presence,
    change_write,
    differences,
    encode,
    placement_write,
)
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction
from leveret.model import definitions as d
from leveret.runtime.cluster.membership.membership_file import NAME
from leveret.runtime.coordination.etcd import Etcd
from leveret.storage.state_file import StateFile
from leveret.testing.servers import etcd
from leveret.testing.servers.etcd import EtcdCluster

pytestmark = pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available()))

PREFIX = "forgetting"
KEYS = ClusterKeys.under(PREFIX)
NODES = ("a", "b", "c", "d")
Answer = TypeVar("Answer")


@pytest.fixture
def store(shared_etcd: EtcdCluster) -> Iterator[EtcdCluster]:
    """etcd with a cluster of four nodes, none of which runs; `a` led most."""
    put(shared_etcd, PutKey(KEYS.cluster, encode("ours")))
    put(
        shared_etcd,
        *(PutKey(KEYS.member(name), encode(MemberRecord(name, f"id-{name}", 1))) for name in NODES),
    )
    queues = {
        "mirrored": Placement(1, "a", "x", 3, mirrors=("d", "c"), synchronised=("c",), stopped=("b",)),
        "stopped": Placement(2, "a", "x", 2, stopped=("d", "c")),
        "alone": Placement(3, "a", "x", 1),
        "other": Placement(4, "b", "x", 1),
    }
    changes: list[d.AnyEntity] = [
        d.Vhost(name="/"),
        d.Exchange(vhost="/", name="x", type="fanout", auto_delete=True),
    ]
    changes += [d.Queue(vhost="/", name=name, epoch=placed.epoch) for name, placed in queues.items()]
    changes += [d.Binding(vhost="/", source="x", destination="alone")]
    put(shared_etcd, *(change_write(KEYS, d.Put(each)) for each in changes))
    put(shared_etcd, *(placement_write(KEYS, ("/", name), placed) for name, placed in queues.items()))
    yield shared_etcd
    put(shared_etcd, DeleteKey(PREFIX + "/", is_prefix=True))


def play(store: EtcdCluster, scene: Callable[[Etcd], Awaitable[Answer]]) -> Answer:
    async def played() -> Answer:
        client = Etcd(Endpoints().parse(store.setting), 5)
        try:
            return await scene(client)
        finally:
            await client.close()

    return asyncio.run(played())


def put(store: EtcdCluster, *writes: PutKey | DeleteKey) -> None:
    assert play(store, lambda client: client.transact(StoreTransaction((), writes))) is not None


def seen(store: EtcdCluster) -> tuple[ClusterState, list[tuple[str, ...]]]:
    """What the cluster is by etcd, and kind and key of its definitions."""
    found = play(store, lambda client: client.read(KEYS.prefix))
    state = ClusterState(KEYS)
    changes = state.apply(differences({}, found.entries, found.revision), found.revision)
    defined = [each.change for each in changes if isinstance(each, DefinitionChanged)]
    return state, [(each.entity.kind, *each.entity.key) for each in defined if isinstance(each, d.Put)]


def forget(store: EtcdCluster, folder: Path, name: str, me: str = "c") -> list[dict[str, Any]]:
    settings = {
        "nodename": me,
        "cluster_formation.peer_discovery_backend": "etcd",
        "cluster.etcd.endpoints": store.setting,
        "cluster.etcd.prefix": PREFIX,
    }
    file = folder / "leveret.conf"
    file.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    return forget_stopped([file], name, folder)


def refusal(store: EtcdCluster, folder: Path, name: str, me: str = "c") -> tuple[int, str]:
    with pytest.raises(CtlError) as refused:
        forget(store, folder, name, me)
    return refused.value.status, str(refused.value)


def test_mirrors_that_were_stopped_lead_and_what_nobody_has_is_gone_with_what_hung_on_it(
    store: EtcdCluster, tmp_path: Path
) -> None:
    rows = forget(store, tmp_path, "a")
    assert {each["name"]: each["leader"] for each in rows} == {"mirrored": "c", "stopped": "c", "alone": None}
    assert {each["name"]: each["note"] for each in rows} == {
        "mirrored": "down until c is started, or forgotten as well",
        "stopped": "without the messages that only a had; down until c is started, or forgotten as well",
        "alone": "",
    }
    state, defined = seen(store)
    assert state.names == ["b", "c", "d"]
    placements = {key[1]: placed.placement for key, placed in state.placements.items()}
    assert placements.keys() == {"mirrored", "stopped", "other"}
    mirrored, stopped = placements["mirrored"], placements["stopped"]
    assert (mirrored.leader, mirrored.term, mirrored.mirrors, mirrored.stopped) == ("c", 4, (), ("d", "b"))
    assert (stopped.leader, stopped.term, stopped.stopped) == ("c", 3, ("d",))
    assert placements["other"] == Placement(4, "b", "x", 1)
    names = [each[-1] for each in defined if each[0] in ("queues", "exchanges")]
    assert sorted(names) == ["mirrored", "other", "stopped"]
    assert not [each for each in defined if each[0] == "bindings"]
    assert refusal(store, tmp_path, "a") == (69, "The node selected is not in the cluster.")


def test_who_has_all_of_what_a_majority_had_is_not_guessed(store: EtcdCluster, tmp_path: Path) -> None:
    placement = Placement(5, "a", "x", 2, mirrors=("c", "d"), synchronised=("c", "d"), majority=True)
    put(store, change_write(KEYS, d.Put(d.Queue(vhost="/", name="majority", epoch=5))))
    put(store, placement_write(KEYS, ("/", "majority"), placement))
    before = seen(store)[0]
    status, text = refusal(store, tmp_path, "a")
    assert (status, text.startswith("queue 'majority' in vhost '/': a majority of its mirrors")) == (69, True)
    assert "once these nodes report: c, d; start them, or first forget those that do not come back" in text
    assert seen(store)[0].placements == before.placements
    assert forget(store, tmp_path, "d") == []
    rows = forget(store, tmp_path, "a")
    down = "down until c is started, or forgotten as well"
    assert {"vhost": "/", "name": "majority", "leader": "c", "note": down} in rows


def test_it_is_refused_where_a_node_runs_and_where_the_cluster_is_another(
    store: EtcdCluster, tmp_path: Path
) -> None:
    before = seen(store)[0]
    assert refusal(store, tmp_path, "c")[0] == 69
    StateFile(tmp_path / NAME).save({"cluster_id": "theirs"})
    status, text = refusal(store, tmp_path, "a")
    assert (status, "belongs to cluster theirs, and etcd below forgetting/ has cluster ours" in text) == (
        69,
        True,
    )
    StateFile(tmp_path / NAME).save({"cluster_id": "ours"})
    put(store, PutKey(KEYS.alive("b"), encode(Presence("i", "", "", 1, "0"))))
    status, text = refusal(store, tmp_path, "a")
    assert (status, text.startswith("nodes of the cluster run, or did a moment ago: b:")) == (69, True)
    after = seen(store)[0]
    assert (after.members, after.placements) == (before.members, before.placements)
