"""A node enters its cluster once etcd answers, whatever a try before left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.core.cluster import Keys, encode
from leveret.model.errors import PreconditionFailed
from leveret.runtime.cluster.clustered import Clustered
from leveret.runtime.cluster.coordinator import Coordinator
from leveret.runtime.etcd import EtcdError
from leveret.runtime.node import Node
from leveret.storage.secret_file import Secret
from leveret.testing import etcd
from leveret.testing.etcd import EtcdCluster
from tests.e2e.store_node import config, node, play

pytestmark = pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available()))


class Host:
    """Builds a node as far as its definitions; at the first try, etcd does not answer after that."""

    def __init__(self, data_dir: Path) -> None:
        self.failed = asyncio.Event()
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


@pytest.mark.parametrize("has_data", [False, True])
def test_a_node_whose_first_try_is_cut_short_joins_who_founded_meanwhile_unless_it_had_data(
    tmp_path: Path, shared_etcd: EtcdCluster, has_data: bool
) -> None:
    prefix = f"entering-{has_data}"
    if has_data:
        (tmp_path / "definitions").mkdir()

    async def scene() -> None:
        host = Host(tmp_path)
        one = Clustered(config("one", shared_etcd.setting, prefix), tmp_path, "id", Secret(b"s" * 44), host)
        starting = asyncio.create_task(one.start())
        await host.fenced.wait()
        async with node("two", shared_etcd.setting, prefix) as two:
            cluster = Keys.under(prefix).cluster.removeprefix(two.keys.prefix)
            await two.put(cluster, encode("c1"))
            host.may_go_on.set()
            if has_data:
                with pytest.raises(PreconditionFailed, match="has definitions of its own"):
                    await starting
            else:
                await starting
                assert host.tries == 2
                await one.stop()

    play(scene())
