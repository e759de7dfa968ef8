"""Two nodes in memory, each with its broker, one following the other's schema over real sockets."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path

from leveret.config import Config
from leveret.config import SchemaSyncSettings as Settings
from leveret.core.broker.access import check_password, permission_of
from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Reader
from leveret.core.schema.delta import canonical
from leveret.model.definitions import (
    KINDS,
    AnyEntity,
    Binding,
    Exchange,
    GlobalParameter,
    Parameter,
    Permission,
    Policy,
    Put,
    Queue,
    TopicPermission,
    User,
    Vhost,
)
from leveret.model.errors import AccessRefused, AuthenticationFailed
from leveret.runtime.schema_sync.downstream import Timing
from leveret.runtime.schema_sync.schema_sync import SchemaSync
from leveret.session.amqp10.server import Amqp10Session
from leveret.storage.state_file import StateFile
from leveret.testing.network.waiting import until
from tests.unit.core.schema.travelling import exported

TIMING = Timing(connect_timeout_s=0.4, reply_timeout_s=10.0, backoff_min_s=0.05, backoff_max_s=0.2)


def _no_messages(*_: object) -> Iterator[object]:
    return iter(())


READ: Reader = _no_messages  # type: ignore[assignment]  # no queue here ever reads


class Node:
    """A node in memory: its broker, its schema sync, and what `Amqp10Session` asks of it."""

    def __init__(self, home: Path, name: str, timing: Timing = TIMING, **settings: object) -> None:
        self.config = Config(
            node_name=name,
            cluster_name=f"cluster.{name}",
            schema_sync=Settings(**{"minimum_sync_interval_ms": 60_000, **settings}),  # type: ignore[arg-type]  # by name
        )
        self.broker = Broker(READ)
        self.commits = 0
        self.container_id = name
        self.schema_sync = SchemaSync(
            self, StateFile(home / f"{name}.json"), StateFile(home / f"{name}-history.json"), timing
        )
        self.sessions = 0
        self.notices_every_s: float | None = None
        self.broker.apply(Put(Vhost(name="/")))

    def changing(self) -> nullcontext[None]:
        return nullcontext()

    def flush(self) -> None:
        self.broker.changes.clear()

    async def commit(self) -> None:
        self.commits += 1

    def put(self, *entities: AnyEntity) -> None:
        for entity in entities:
            self.broker.apply(Put(entity))

    def schema(self) -> dict[str, list[bytes]]:
        """What is to be the same on both sides."""
        return {kind: sorted(map(canonical, exported(self.broker.definitions, kind))) for kind in KINDS}

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        user = self.broker.definitions.by_kind["users"].get((username,))
        if not isinstance(user, User) or not check_password(user, password):
            raise AuthenticationFailed(f"user '{username}' - invalid credentials")
        return username

    def open_vhost(self, user: str, vhost: str) -> None:
        self.broker.topology(vhost)
        if permission_of(self.broker.definitions, user, vhost) is None:
            raise AccessRefused(f"access to vhost '{vhost}' refused for user '{user}'")

    def schema_request(self, user: str, body: bytes) -> bytes:
        return self.schema_sync.serve_request(user, body)

    def schema_is_ready(self) -> bool:
        return True

    def schema_state(self) -> bytes:
        return self.schema_sync.state()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, as the AMQP listener serves it."""
        session = Amqp10Session(self, from_loopback=True)
        self.sessions += 1
        try:
            while not session.closed:
                try:
                    async with asyncio.timeout(self.notices_every_s):
                        octets = await reader.read(65_536)
                except TimeoutError:
                    writer.write(session.tick(_now_ms()))
                    continue
                if not octets:
                    break
                writer.write(session.receive(octets, _now_ms()))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[object, object, None]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """A port of 127.0.0.1 on which `serve` answers; every connection ends with it."""
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            with suppress(asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts, and never says a word."""
    await reader.read(-1)


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks something else."""
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
    await writer.drain()


async def a_refused_port() -> int:
    """A port on which nobody listens."""
    async with listening(silent) as port:
        return port


def endpoints(*ports: int, password: str = "secret", username: str = "replicator") -> str:
    return json.dumps(
        {"endpoints": [f"127.0.0.1:{port}" for port in ports], "username": username, "password": password}
    )


class Pair:
    """An upstream that serves on `port`, and a downstream that is not started."""

    def __init__(self, upstream: Node, downstream: Node, port: int) -> None:
        self.upstream = upstream
        self.downstream = downstream
        self.port = port

    @property
    def status(self) -> dict[str, object]:
        return self.downstream.schema_sync.status()

    async def synced(self) -> None:
        """Let the downstream sync once more, and wait for it."""
        before = self.status["syncs"]
        self.downstream.schema_sync.sync_now()
        await until(lambda: self.status["syncs"] != before, f"a sync ({self.status['last_error']})")

    async def follow(self, text: str | None = None) -> None:
        await self.downstream.schema_sync.set_endpoints(text or endpoints(self.port))
        await self.downstream.schema_sync.start()

    async def failed(self, part: str) -> dict[str, object]:
        """Wait for an error that says so; return the status."""
        await until(lambda: part in str(self.status["last_error"]), f"{part!r} in {self.status}")
        return self.status


@asynccontextmanager
async def pair(home: Path, timing: Timing = TIMING, **settings: object) -> AsyncIterator[Pair]:
    upstream = Node(home, "up", operating_mode="upstream")
    await upstream.schema_sync.add_user("replicator", "secret")
    downstream = Node(home, "down", timing, operating_mode="downstream", **settings)
    async with listening(upstream.serve) as port:
        try:
            yield Pair(upstream, downstream, port)
        finally:
            await downstream.schema_sync.stop()


SOME: list[AnyEntity] = [
    User(name="app", password_hash="h", tags=("monitoring",)),
    Vhost(name="orders", description="what is bought", tags=("standby_replication",)),
    Permission(user="app", vhost="orders", configure="", write=".*", read=".*"),
    TopicPermission(user="app", vhost="orders", exchange="in", write="eu.#", read=""),
    Exchange(vhost="orders", name="in", type="topic", arguments={"alternate-exchange": "lost"}),
    Exchange(vhost="orders", name="lost", type="fanout"),
    GlobalParameter(name="owner", value={"team": ["a", "b"], "on-call": True}),
    Policy(
        vhost="orders", name="dr", pattern="^", apply_to="queues", definition={"remote-dc-replicate": True}
    ),
    Parameter(vhost="orders", component="vhost-limits", name="limits", value={"max-queues": 9}),
    Parameter(
        vhost="orders",
        component="operator_policy",
        name="cap",
        value={"pattern": "^", "definition": {"max-length": 9}, "priority": 1, "apply-to": "queues"},
    ),
    Queue(vhost="orders", name="eu", arguments={"x-queue-type": "quorum"}),
    Binding(vhost="orders", source="in", destination="eu", routing_key="eu.#", arguments={"a": 1}),
    Binding(vhost="orders", source="lost", destination="eu"),
]
