"""A cluster without links and without etcd: its nodes are objects of one process, and what is where a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from leveret.core.replication.placement import QueuePlacement
from leveret.management.node import Answer, ClusterOperations
from leveret.model.errors import InvalidCommand, LeveretError, NotFound, PreconditionFailed
from leveret.runtime.cluster.operations import ClusterCommands
from leveret.runtime.integrity.log_copies import LogCopy

Key = tuple[str, ...]


@dataclass
class Room:
    """What all nodes know.

    Attributes:
        nodes: by name, in the order in which they joined.
        down: those that do not run.
        silent: those that run and never answer.
        lost: those that run and whose link is cut.
        placements: of queues that are not led by whoever is asked.
        definitions_lock: who has it.
        is_etcd_full: whether etcd refuses all writes.
    """

    nodes: dict[str, FakeCluster] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    placements: dict[Key, QueuePlacement] = field(default_factory=dict)
    definitions_lock: str | None = None
    is_etcd_full: bool = False


class FakeCluster:
    """One node's view, see `management.node.ClusterOperations`.

    Attributes:
        calls: what it was told to do, and what it was asked.
        states: what it tells of the mirrors of queues that it leads.
        refusal: what the next operation ends with.
    """

    is_member = True

    def __init__(self, room: Room, name: str) -> None:
        self.name = name
        self.calls: list[Any] = []
        self.states: dict[Key, list[dict[str, Any]]] = {}
        self.refusal: LeveretError | None = None
        self.status_state = "member"
        self._room = room
        self._answer: Answer | None = None
        room.nodes[name] = self

    def members(self) -> Sequence[str]:
        return list(self._room.nodes)

    def alive(self) -> set[str]:
        return set(self._room.nodes) - self._room.down

    def status(self) -> dict[str, Any]:
        lost = sorted(self._room.lost & self.alive() - {self.name})
        return {
            "cluster_id": "c0ffee",
            "state": self.status_state,
            "members": [self._row(name) for name in self._room.nodes],
            "pen": self._room.definitions_lock,
            "has_pen": self._room.definitions_lock == self.name,
            "lease_s": 1.5,
            "revision": 77,
            "etcd": {
                "endpoints": ["http://etcd:2379"],
                "endpoint": "http://etcd:2379",
                "error": None,
                "is_full": self._room.is_etcd_full,
            },
            "partitions": {self.name: lost} if lost else {},
        }

    def _row(self, name: str) -> dict[str, Any]:
        is_alive = name in self.alive()
        known = {
            "uri": f"tcp://{name}:25672",
            "http_uri": "",
            "started_at_ms": 1_700_000_000_000,
            "version": "1.0",
            "connected": name not in self._room.lost,
        }
        return {
            "name": name,
            "alive": is_alive,
            "joined_at_ms": 1_600_000_000_000,
            **{key: value if is_alive else None for key, value in known.items()},
        }

    def placement(self, key: Key) -> QueuePlacement:
        return self._room.placements.get(key) or QueuePlacement(self.name)

    def mirror_states(self, key: Key) -> list[dict[str, Any]]:
        return self.states.get(key, [])

    async def ask(self, node: str, what: str, about: Any) -> Any:
        self.calls.append(("ask", node, about["method"], about["path"]))
        if node not in self._room.nodes or node in self._room.down | self._room.lost:
            raise NotFound(f"{node} is not to be reached")
        if node in self._room.silent:
            await asyncio.Event().wait()
        answer = self._room.nodes[node]._answer
        assert answer is not None, f"{node} answers nobody"
        # Whatever goes over a link is taken apart and made anew.
        question = msgspec.msgpack.decode(msgspec.msgpack.encode(about))
        return msgspec.msgpack.decode(msgspec.msgpack.encode(await answer(what, question)))

    def answer_with(self, answer: Answer) -> None:
        self._answer = answer

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        if self.refusal is not None:
            raise self.refusal
        if self._room.definitions_lock not in (None, self.name):
            await asyncio.Event().wait()
        self._room.definitions_lock = self.name
        self.calls.append("changing")
        yield
        self._room.definitions_lock = None

    async def sync_queue(self, vhost: str, name: str) -> None:
        self._do("sync", vhost, name)

    async def cancel_sync_queue(self, vhost: str, name: str) -> None:
        self._do("cancel_sync", vhost, name)

    async def add_replica(self, vhost: str, name: str, node: str) -> None:
        self.calls.append(("add_replica", vhost, name, node))

    async def delete_replica(self, vhost: str, name: str, node: str) -> None:
        self.calls.append(("delete_replica", vhost, name, node))

    async def restart_stream(self, vhost: str, name: str, preferred: str) -> str:
        self.calls.append(("restart_stream", vhost, name, preferred))
        return preferred or self.name

    async def copies(self, vhost: str, name: str) -> list[LogCopy]:
        return []

    async def quarantine_copies(self, vhost: str, name: str) -> None:
        self.calls.append(("quarantine_copies", vhost, name))

    def _do(self, what: str, vhost: str, name: str) -> None:
        if not self.placement((vhost, name)).is_mirrored:
            raise PreconditionFailed("not_mirrored")
        self.calls.append((what, vhost, name))

    async def forget_node(self, name: str) -> list[dict[str, Any]]:
        if name in self.alive():
            raise InvalidCommand(f"{name} runs")
        if name not in self._room.nodes:
            raise InvalidCommand(f"{name} is no member")
        del self._room.nodes[name]
        return [{"vhost": "/", "name": "q", "leader": self.name, "note": "down"}]

    async def join(self, node: str) -> bool:
        if node not in self._room.nodes:
            raise InvalidCommand(f"{node} is no member")
        self.calls.append(("join", node))
        return self.status_state != "member"

    async def rebalance(self, kind: str, vhost_pattern: str, queue_pattern: str) -> list[dict[str, Any]]:
        self.calls.append(("rebalance", kind, vhost_pattern, queue_pattern))
        if self.refusal is not None:
            raise self.refusal
        return [{"node": name, "classic": 2, "quorum": 0, "stream": 0} for name in self._room.nodes]


def real(commands: ClusterCommands) -> ClusterOperations:
    """What stands there in a node; held to the protocol like the fake."""
    return commands


def as_operations(cluster: FakeCluster) -> ClusterOperations:
    """The same; the type checker holds the fake to the protocol here."""
    return cluster
