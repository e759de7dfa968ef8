"""The store of a node of a cluster with what it was told, and doors of etcd at which answers get lost.

Leases are long where a node has to stay, so that a slow machine changes nothing, and short where one ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from leveret.config import Config, build, gather
from leveret.config.uris import Endpoints
from leveret.core.replication.cluster import Changed, ClusterKeys, ClusterState, Event, Presence
from leveret.core.replication.election import PutKey, StoredValue, StoreTransaction, Unchanged
from leveret.runtime.cluster.membership.store import ClusterStore
from leveret.runtime.coordination.etcd import Etcd
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.etcd import EtcdMember

PATIENCE_S: Final = 30.0
LONG_MS: Final = 30_000
SHORT_MS: Final = 1_000
HEARTBEAT_MS: Final = 20
"""Of an etcd of one member, which so starts sooner and gives leases of one second."""


def config(name: str, endpoints: str, prefix: str, ttl_ms: int = LONG_MS) -> Config:
    return build(
        gather(
            overrides={
                "nodename": name,
                "cluster_formation.peer_discovery_backend": "etcd",
                "cluster.etcd.endpoints": endpoints,
                "cluster.etcd.prefix": prefix,
                "cluster.etcd.lease_ttl": f"{ttl_ms}ms",
            }
        )
    )


class Node:
    """A store with what it was told."""

    def __init__(
        self, name: str, endpoints: str, prefix: str, ttl_ms: int = LONG_MS, former: set[int] | None = None
    ) -> None:
        self.name = name
        settings = config(name, endpoints, prefix, ttl_ms)
        self.store = ClusterStore(settings, self.take, self.lost, former=former)
        self.keys = ClusterKeys.under(prefix)
        self.state = ClusterState(self.keys)
        self.heard: list[tuple[int, list[Event]]] = []
        self.changed: list[Changed] = []
        self.losses: list[str] = []

    def take(self, events: list[Event], revision: int) -> None:
        assert not self.heard or revision > self.heard[-1][0]
        self.changed += self.state.apply(events, revision)
        self.heard.append((revision, events))

    def lost(self, reason: str) -> None:
        self.losses.append(reason)

    def presence(self, run_id: str = "i1") -> Presence:
        return Presence(run_id, f"tcp://{self.name}:25672", "", 0, "1")

    async def enter(self, run_id: str = "i1") -> None:
        await self.store.start()
        await self.store.announce(lambda: self.presence(run_id))

    async def put(self, key: str, value: bytes = b"1", *conditions: Unchanged) -> int | None:
        return await self.store.transact(
            StoreTransaction(conditions, (PutKey(self.keys.prefix + key, value),))
        )

    def has(self, revision: int | None) -> bool:
        return revision is not None and self.store.revision >= revision

    @property
    def keys_now(self) -> dict[str, bytes]:
        """What the events that it was told say there is."""
        now: dict[str, bytes] = {}
        for _, events in self.heard:
            for event in events:
                now.pop(event.key, None)
                if event.value is not None:
                    now[event.key] = event.value
        return now


@asynccontextmanager
async def node(name: str, endpoints: str, prefix: str, ttl_ms: int = LONG_MS) -> AsyncIterator[Node]:
    one = Node(name, endpoints, prefix, ttl_ms)
    await one.enter()
    try:
        yield one
    finally:
        await one.store.stop()


async def read(endpoints: str, prefix: str, page: int = 1000) -> dict[str, StoredValue]:
    """What etcd holds, as another reader sees it."""
    client = Etcd(Endpoints().parse(endpoints), 10.0)
    try:
        return dict((await client.read(prefix, page)).entries)
    finally:
        await client.close()


@asynccontextmanager
async def etcd_door(
    member: EtcdMember, deaf: Callable[[bytes, int], bool], *, hangs_up: bool
) -> AsyncIterator[str]:
    """A door of etcd that passes requests in, and no answers any more once `deaf` says so, or hangs up then; its URL.

    `deaf` is asked with what was last said in the connection, and how many octets were answered since.
    """
    visits: set[asyncio.Task[None]] = set()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(LOOPBACK, member.port)
        said, answered, is_deaf = b"", 0, False

        async def answer() -> None:
            nonlocal answered, is_deaf
            with suppress(ConnectionError):
                while octets := await inner.read(65536):
                    is_deaf = is_deaf or deaf(said, answered)
                    answered += len(octets)
                    if not is_deaf:
                        writer.write(octets)
                    elif hangs_up:
                        break
            writer.close()

        answering = asyncio.create_task(answer())
        with suppress(ConnectionError):
            while octets := await reader.read(65536):
                said, answered = octets, 0
                outer.write(octets)
        outer.close()
        await answering

    def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.add(asyncio.create_task(visit(reader, writer)))

    async with await asyncio.start_server(visited, LOOPBACK, 0) as server:
        yield f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*visits)
