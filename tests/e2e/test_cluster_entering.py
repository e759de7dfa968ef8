"""A node enters its cluster once etcd answers, whatever a try before left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.core.replication.cluster import ClusterKeys, encode
from leveret.model.errors import PreconditionFailed
from leveret.runtime.cluster.coordinator import Coordinator
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.membership.membership_file import MembershipFile
from leveret.runtime.coordination.etcd import EtcdError
from leveret.runtime.node.node import Node
from leveret.runtime.proxying.passed_on_clients import PassedOnClients
from leveret.runtime.roles.clustered import Clustered
from leveret.storage.secret_file import Secret
from leveret.testing.servers import etcd
from leveret.testing.servers.etcd import EtcdCluster
from tests.e2e.store_node import config, node

SECRET = Secret(b"s" * 44)

pytestmark = pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available()))


class Host:
    """Builds a node as far as its definitions; at the first try, etcd does not answer after that."""

    def __init__(self, data_dir: Path) -> None:
        self.failed = asyncio.Event()
        self.passed_on_clients = PassedOnClients(lambda name, hops: pytest.fail("a client came"))
        self.tries = 0
        self.fenced = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self._data_dir = data_dir

    async def serve_with(self, attach: Callable[[Node], Coordinator]) -> None:
        self.tries += 1
        (self._data_dir / "definitions").mkdir(exist_ok=True)
        if self.tries == 1:
            raise EtcdError("no answer in time")

    async def fence(self) -> None:
        self.fenced.set()
        await self.may_go_on.wait()


def clustered(endpoints: str, prefix: str, data_dir: Path) -> tuple[Clustered, Host]:
    host = Host(data_dir)
    return Clustered(config("one", endpoints, prefix), data_dir, "id", SECRET, host), host


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("has_data", [False, True])
async def test_a_node_whose_first_try_is_cut_short_joins_who_founded_meanwhile_unless_it_had_data(
    tmp_path: Path, shared_etcd: EtcdCluster, has_data: bool, is_killed: bool
) -> None:
    prefix = f"entering-{has_data}-{is_killed}"
    if has_data:
        (tmp_path / "definitions").mkdir()

    one, host = clustered(shared_etcd.setting, prefix, tmp_path)
    starting = asyncio.create_task(one.start())
    await host.fenced.wait()
    if is_killed:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await one.stop()
        one, host = clustered(shared_etcd.setting, prefix, tmp_path)
        host.tries = 1
        starting = asyncio.create_task(hold(host, one))
    async with node("two", shared_etcd.setting, prefix) as two:
        cluster = ClusterKeys.under(prefix).cluster.removeprefix(two.keys.prefix)
        await two.put(cluster, encode("c1"))
        host.may_go_on.set()
        if has_data:
            with pytest.raises(PreconditionFailed, match="has definitions of its own"):
                await starting
        else:
            await starting
            assert host.tries == 2
            await one.stop()


async def hold(host: Host, one: Clustered) -> None:
    """Start once it may go on."""
    await host.may_go_on.wait()
    await one.start()


@pytest.mark.parametrize("founds", [True, False])
async def test_a_node_that_etcd_declines_at_the_last_moment_is_let_in_the_next_time(
    tmp_path: Path, shared_etcd: EtcdCluster, founds: bool
) -> None:
    prefix = f"declined-{founds}"

    def member() -> ClusterMember:
        settings = config("one", shared_etcd.setting, prefix)
        return ClusterMember(settings, tmp_path, "id", SECRET, lambda reason: None)

    async def declined(transaction: object) -> int | None:
        raise EtcdError("no answer in time")

    async with node("two", shared_etcd.setting, prefix) as two:
        if not founds:
            await two.put(ClusterKeys.under(prefix).cluster.removeprefix(two.keys.prefix), encode("c1"))
        first = member()
        await first.enter()
        (tmp_path / "definitions").mkdir()
        first.store.transact = declined  # type: ignore[method-assign]
        with pytest.raises(EtcdError):
            await first.joined()
        await first.leave()
        again = member()
        await again.enter()
        await again.joined()
        assert "one" in again.state.members or not founds
        assert MembershipFile(tmp_path).cluster_id == (again.state.cluster_id if founds else "c1")
        await again.leave()


def test_what_a_node_has_is_its_own_once_it_served_without_a_cluster(tmp_path: Path) -> None:
    MembershipFile(tmp_path).begin()
    (tmp_path / "definitions").mkdir()
    MembershipFile(tmp_path).begin()
    assert not MembershipFile(tmp_path).had_data
    MembershipFile(tmp_path).give_up()
    assert MembershipFile(tmp_path).had_data
    MembershipFile(tmp_path).begin()
    assert MembershipFile(tmp_path).had_data
    MembershipFile(tmp_path).entered("c1")
    MembershipFile(tmp_path).give_up()
    assert MembershipFile(tmp_path).cluster_id == "c1"
