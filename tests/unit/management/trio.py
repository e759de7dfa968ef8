"""Three nodes of a cluster in one process, which ask each other without links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pamqp import commands
from starlette.applications import Starlette

from leveret.core.queues.queue_types import make_queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.replication.placement import QueuePlacement
from leveret.management.http.app import build_app, public_app
from leveret.management.request.other_nodes import answer_by
from leveret.model import definitions as d
from leveret.model.definitions import Put, Queue, Vhost
from leveret.session.amqp091.connection import AmqpState, ClientConnection
from tests.unit.management.conftest import Client, FakeNode
from tests.unit.management.fake_cluster import FakeCluster, Room, as_operations
from tests.unit.session.amqp091.fakes import HANDSHAKE, frame

A, B, C = "rabbit@a", "rabbit@b", "rabbit@c"


class Trio:
    """The nodes of a room, with a client for an administrator of each."""

    def __init__(self, folder: Path) -> None:
        self.room = Room()
        self.nodes: dict[str, FakeNode] = {}
        self.clusters: dict[str, FakeCluster] = {}
        self.apps: dict[str, Starlette] = {}
        for name in (A, B, C):
            (folder / name).mkdir()
            node = FakeNode(folder / name, node_name=name)
            cluster = FakeCluster(self.room, name)
            node.cluster = as_operations(cluster)
            node.broker.make_queue = self._maker(name)
            app = build_app(node)
            cluster.answer_with(answer_by(app))
            self.nodes[name], self.clusters[name], self.apps[name] = node, cluster, app
        self.everywhere(Put(Vhost(name="/")))
        for node in self.nodes.values():
            node.add_user("guest", "administrator", vhost="/")
            node.add_user("nobody", "management")

    def _maker(self, name: str) -> Callable[..., Any]:
        def made(definition: Queue, read: Any, exclusive: bool) -> Any:
            leader = self.room.placements.get(definition.key, QueuePlacement(name)).leader
            return make_queue(definition, read) if leader == name else RemoteQueue(definition, leader)

        return made

    def everywhere(self, change: d.Change) -> None:
        """What was declared all nodes know."""
        for node in self.nodes.values():
            node.broker.apply(change)

    def declare(self, name: str, leader: str, messages: int = 0, **placement: Any) -> None:
        """A queue with messages, which only its leader knows of."""
        self.room.placements["/", name] = QueuePlacement(leader, **placement)
        self.everywhere(Put(Queue(name=name, vhost="/")))
        if messages:
            node = self.nodes[leader]
            node.add_messages(node.broker.queues["/", name], messages)

    def at(self, name: str, user: str = "guest") -> Client:
        return Client(public_app(self.apps[name]), (user, "secret"))

    def get(self, name: str, path: str) -> Any:
        return self.at(name).get(path).json()

    def asked(self, name: str) -> list[tuple[str, str]]:
        """Which nodes a node asked for which paths."""
        return [(each[1], each[3]) for each in self.clusters[name].calls if each[0] == "ask"]


def state(node: str, what: str, **fields: Any) -> dict[str, Any]:
    """A row of a mirror."""
    return {"node": node, "state": what, "lag_bytes": 0, "lag_records": 0, "progress": None, **fields}


def connect(node: FakeNode, peer: str, *methods: Any) -> ClientConnection:
    """A connection of guest with one channel, on which these methods came."""
    session = ClientConnection(node.host, peer=peer, from_loopback=True, now_ms=0)
    session.receive(b"".join([*HANDSHAKE, *map(frame, (commands.Channel.Open(), *methods))]), 0)
    assert session.state is AmqpState.OPEN
    return session
