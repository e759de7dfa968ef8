"""A node in memory, and a client that reaches its API without a socket."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp

from leveret.config import Config
from leveret.core.broker.access import SALT_BYTES, check_password, hash_password
from leveret.core.queues.head import Head
from leveret.core.queues.messages import alike
from leveret.core.queues.queue import Queue
from leveret.core.replication.standby_site import RecoveryRequest
from leveret.management.http.app import build_app, operator_app, public_app
from leveret.management.node import ClusterOperations
from leveret.model.definitions import Permission, Put, User, Vhost
from leveret.model.errors import AuthenticationFailed, InvalidCommand, PreconditionFailed, StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.node.alarms import AlarmWatch
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.event_history import EventHistory
from leveret.runtime.process.loop_watch import LoopWatch
from leveret.runtime.standby.pipeline_process import Report
from leveret.runtime.standby.recovery import RecoveryTarget
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.ingest import ApiClient
from leveret.storage.state_file import StateFile
from tests.unit.management.fake_replication import FakeReplication
from tests.unit.session.amqp091.fakes import FakeNode as Host


class FakeSchemaSync:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.mode = "upstream"
        self.follower = ""

    async def enable(self) -> None:
        self.calls.append("enable")

    async def disable(self) -> None:
        self.calls.append("disable")

    async def restart(self) -> None:
        self.calls.append("restart")

    async def set_mode(self, mode: str) -> None:
        if mode not in ("upstream", "downstream"):
            raise InvalidCommand(f"operating mode '{mode}' is none of upstream, downstream, none")
        self.mode = mode

    async def set_endpoints(self, text: str | bytes) -> None:
        self.calls.append(bytes(text) if isinstance(text, bytes) else text.encode())

    async def add_user(self, name: str, password: str) -> None:
        self.calls.append((name, password))

    async def sync(self, *, force: bool) -> dict[str, Any]:
        self.calls.append(("sync", force))
        return {"puts": 1, "deletes": 2, "conflicts": ["queues v/q: why"], "refused": [], "changes": []}

    async def diff(self) -> list[dict[str, Any]]:
        row = {"action": "change", "kind": "vhosts", "entity": "v", "key": ["v"], "reason": ""}
        sides = {"own": {"description": "a"}, "upstream": {"description": "b"}}
        return [{**row, **sides, "fields": ["description"]}]

    def history(self) -> list[dict[str, Any]]:
        return [{"stamp": 7, "puts": 1, "deletes": 0, "changes": ["put queues v/q"]}]

    def status(self) -> dict[str, Any]:
        return {
            "node": "leveret@test",
            "operating_mode": self.mode,
            "state": "running",
            "upstream_endpoints": ["a:5672"],
            "upstream_username": "sync",
            "operating_mode_source": "configuration",
            "last_sync_duration": 1500,
            "last_sync_stamp": 1_795_296_925,
            "conflict_count": 2,
            "refused_count": 1,
            "changes_applied": 70,
        }


class FakeArchive:
    """What was transferred: one of each."""

    async def metrics(self) -> list[dict[str, Any]]:
        return [{"queue": "q", "timestamp": 1, "vhost": "v"}]

    async def list_vhosts_available(self) -> list[str]:
        return ["v"]

    async def disk_usage(self) -> list[dict[str, Any]]:
        return [{"node": "leveret@test", "size": 0.1, "unit": "gb", "vhost": "v"}]

    async def moments(self) -> list[dict[str, Any]]:
        return [{"virtual_host": "v", "earliest_ms": 5, "newest_ms": 9}]

    async def messages(self, vhost: str, queue: str, from_ms: int, count: int) -> list[dict[str, Any]]:
        return [{"vhost": vhost, "queue": queue, "offset": from_ms, "payload": "x" * count}]

    async def export(
        self, target: str, form: str, options: dict[str, str], report: Callable[[dict[str, Any]], None]
    ) -> list[dict[str, Any]]:
        report({"event": "exporting", "messages": 3})
        self.exported = (target, form, options)
        return [{"vhost": "v", "queue": "q", "messages": 3, "pending": 1}]

    async def inspect(self, report: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
        report({"event": "counting", "messages": 3})
        return [{"vhost": "v", "exchange": "e", "routing_key": "k", "messages": 3}]


class FakeUpstream:
    """Has one queue, and one downstream."""

    downstream = "eu.2"

    def metrics(self) -> Iterator[dict[str, Any]]:
        yield {"queue": "q", "timestamp": 5, "vhost": "/", "messages": 4}

    def messages(self) -> Iterator[tuple[str, str, int]]:
        yield "/", "q", 4

    remote_confirms: dict[str, Any] | None = None

    def confirms_of(self, queue: object) -> dict[str, Any] | None:
        return self.remote_confirms

    def untagged(self) -> list[str]:
        return ["w"]

    def collected(self) -> list[dict[str, Any]]:
        return [{"virtual_host": "v", "queues": 1, "records": 7, "kept": 5, "downstreams": 1}]

    def downstreams(self) -> list[dict[str, Any]]:
        names = {"virtual_host": "v", "downstream": self.downstream}
        missing = {"missing_records": 1, "missing_messages": 0}
        return [{**names, "transferred": 5, "lag_records": 2, **missing, "last_seen": 1}]

    def forget_downstream(self, name: str) -> bool:
        return name == self.downstream

    def delete_logs(self) -> list[dict[str, Any]]:
        return [{"vhost": "v", "bytes": 7}]


class FakeStandby:
    """A downstream whose promotion goes as the test says."""

    def __init__(self) -> None:
        self.archive = FakeArchive()
        self.calls: list[Any] = []
        self.mode = "downstream"
        self.progress: list[dict[str, Any]] = []
        self.failure: Exception | None = None

    async def connect(self) -> None:
        self.calls.append("connect")

    async def disconnect(self) -> None:
        self.calls.append("disconnect")

    async def set_mode(self, mode: str) -> None:
        self.mode = mode

    @property
    def recoveries(self) -> FakeStandby:
        return self

    async def promote(self, wanted: RecoveryRequest, on_progress: Report) -> list[dict[str, Any]]:
        if self.mode != "downstream":
            raise PreconditionFailed("this node is not a downstream")
        self.calls.append(wanted)
        await self._go_on(on_progress)
        return self.promotion_summary()

    async def dry_run(
        self, wanted: RecoveryRequest, target: RecoveryTarget | None, report: Report
    ) -> dict[str, Any]:
        self.calls.append((wanted, target))
        await self._go_on(report)
        return {"queues": [], "vhosts": []}

    async def into(
        self, wanted: RecoveryRequest, target: RecoveryTarget, report: Report
    ) -> list[dict[str, Any]]:
        self.calls.append((wanted, target))
        await self._go_on(report)
        return self.promotion_summary()

    async def rehearse(self, wanted: RecoveryRequest, report: Report) -> dict[str, Any]:
        self.calls.append(wanted)
        await self._go_on(report)
        return {"queues": [], "vhosts": [], "compared": 2}

    async def _go_on(self, report: Report) -> None:
        for progress in self.progress:
            report(progress)
            await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure

    async def details(self) -> dict[str, Any]:
        return self.status()

    def status(self) -> dict[str, Any]:
        return {
            "node": "leveret@test",
            "operating_mode": self.mode,
            "state": "connected",
            "upstream_endpoints": ["a:5552"],
            "upstream_username": "replicator",
            "operating_mode_source": "configuration",
            "error": "",
            "archive_bytes": 4_000,
            "vhosts": [
                {
                    "virtual_host": "v",
                    "state": "connected",
                    "lag_records": 7,
                    "lag_ms": 1500,
                    "heard_ago_ms": 40_000,
                    "missing_records": 3,
                    "missing_messages": 11,
                    "last_timestamp": 1_795_296_925_432,
                }
            ],
        }

    def promotion_summary(self) -> list[dict[str, Any]]:
        return [{"first_timestamp": "a", "last_timestamp": "b", "message_count": 2, "virtual_host": "v"}]

    async def delete_all_data(self) -> None:
        self.calls.append("delete")

    async def delete_orphaned_data(self) -> list[dict[str, Any]]:
        return [{"vhost": "gone", "bytes": 5}]


class FakeRejoin:
    """Comes back with two messages that were never seen."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    async def rejoin(self, *, set_all_aside: bool = False) -> dict[str, Any]:
        self.calls.append(set_all_aside)
        return {
            "upstream_endpoints": ["b:5552"],
            "report": "r",
            "reports": ["r"],
            "messages": 2,
            "settlements_lost": 0,
            "queues": [],
        }


class FakeMaintenance:
    """Does what it is told, without doors."""

    def __init__(self) -> None:
        self.is_draining = False
        self.is_suspended = False

    def suspend_listeners(self) -> None:
        self.is_suspended = True

    async def resume_listeners(self) -> None:
        self.is_suspended = False

    async def drain(self) -> None:
        self.is_draining = True

    async def revive(self) -> None:
        self.is_draining = False


class FakeAmqp:
    """Nobody is connected over AMQP 1.0."""

    amqp10_connections: tuple[Any, ...] = ()


class FakeStreams:
    """Nobody is connected."""

    connections: tuple[Any, ...] = ()


class Ended(asyncio.Event):
    """Waited for in the event loop of each client; set before a request, if at all."""

    async def wait(self) -> Literal[True]:
        if not self.is_set():
            await asyncio.get_running_loop().create_future()
        return True


class FakeNode:
    """A broker without logs or sockets; `broker.changes` holds what was not committed."""

    def __init__(self, data_dir: Path, node_name: str = "leveret@test") -> None:
        self.config = Config(node_name=node_name, cluster_name="test")
        self.data_dir = data_dir
        self.started_at_ms = 0
        self.uptime_ms = 0
        self.ended: asyncio.Event = Ended()
        self.is_open = True
        self.host = Host()
        self.broker = self.host.broker
        self.api_clients: list[ClientConnection] = []
        self.schema_sync = FakeSchemaSync()
        self.standby = FakeStandby()
        self.rejoin = FakeRejoin()
        self.upstream = FakeUpstream()
        self.replication = FakeReplication()
        self.cluster: ClusterOperations | None = None
        self.amqp = FakeAmqp()
        self.streams = FakeStreams()
        self.maintenance = FakeMaintenance()
        self.commits = GroupCommit(fsync=False, on_failure=lambda error: None)
        self.alarms = AlarmWatch(self.config.watermarks, data_dir)
        self.loop_watch = LoopWatch()
        self.event_history = EventHistory(StateFile(data_dir / "event_history.json"), clock_ms)
        self.refusal: StorageError | None = None
        """Why the disk takes no definitions."""

    def log_sizes(self) -> Iterator[int]:
        return iter((700, 300))

    async def commit(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.broker.changes.clear()
        await self.messages_durable()

    async def messages_durable(self) -> None:
        api_clients, self.api_clients = self.api_clients, []
        self.host.flush(*api_clients)

    def api_client(self, user: str | None, vhost: str) -> ApiClient:
        return ApiClient(self.host, user, vhost, now_ms=0, touch=self.api_clients.append)

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        user = self.broker.definitions.by_kind["users"].get((username,))
        if not isinstance(user, User) or not check_password(user, password):
            raise AuthenticationFailed(f"user '{username}' - invalid credentials")
        if username == "guest" and not from_loopback:
            raise AuthenticationFailed("user 'guest' can only connect via localhost")
        return username

    def add_user(self, name: str, *tags: str, vhost: str | None = None) -> None:
        """A user whose password is `secret`, with all permissions in `vhost`."""
        password_hash = hash_password("secret", os.urandom(SALT_BYTES))
        self.broker.apply(Put(User(name=name, password_hash=password_hash, tags=tags)))
        if vhost is not None:
            self.broker.apply(Put(Permission(user=name, vhost=vhost, configure=".*", write=".*", read=".*")))

    def add_messages(self, queue: Queue, count: int) -> None:
        """Let the queue hold `count` ready messages."""
        head = Head(b"", b"", b"", 1, True)
        queue.gathered.add(alike(head, [b"x"] * count))
        queue.appended(queue.next_offset, queue.gathered.take())


class Client:
    """Requests to one door, each in an event loop of its own."""

    def __init__(self, app: ASGIApp, auth: tuple[str, str] | None = None, address: str = "127.0.0.1") -> None:
        self._app = app
        self._auth = auth
        self._address = address

    def request(self, method: str, path: str, **content: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, content))

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def put(self, path: str, **body: Any) -> httpx.Response:
        return self.request("PUT", path, json=body)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.request("POST", path, json=body)

    def delete(self, path: str) -> httpx.Response:
        return self.request("DELETE", path)

    async def _request(self, method: str, path: str, content: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False, client=(self._address, 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://node", auth=self._auth) as client:
            return await client.request(method, path, **content)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    node.broker.apply(Put(Vhost(name="/")))
    node.add_user("guest", "administrator", vhost="/")
    return node


@pytest.fixture
def app(node: FakeNode) -> Starlette:
    return build_app(node)


@pytest.fixture
def tick(app: Starlette) -> Callable[[], None]:
    """Samples all counts, as the server does every few seconds."""
    return lambda: deque(app.state.rates.tick(clock_ms() + 10_000), maxlen=0).clear()


@pytest.fixture
def client_as(app: Starlette) -> Callable[..., Client]:
    """Makes a client for a user whose password is `secret`."""
    public = public_app(app)
    return lambda user, password="secret", address="127.0.0.1": Client(public, (user, password), address)


@pytest.fixture
def admin(client_as: Callable[..., Client]) -> Client:
    """The client of `guest`, an administrator with permissions on `/`."""
    return client_as("guest")


@pytest.fixture
def anonymous(app: Starlette) -> Client:
    """A client without credentials."""
    return Client(public_app(app))


@pytest.fixture
def operator(app: Starlette) -> Client:
    """A client of the node's own socket."""
    return Client(operator_app(app))
