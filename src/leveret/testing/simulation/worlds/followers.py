"""A simulated leader with followers: they elect the leader through etcd, and clients find it by trying."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from leveret.core.queues.queue import Queue
from leveret.core.replication.election import ElectionKeys
from leveret.runtime.replication.identity import FILE, NodeIdentity
from leveret.testing.simulation.nodes.audit import CountedOn
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.worlds.node_users import employ
from leveret.testing.simulation.worlds.with_etcd import ETCD_SETTINGS, EtcdWorld
from leveret.testing.simulation.worlds.world import SMALL_LOGS, START_TIMEOUT_S

PROXYING: Final = 0.5
"""The share of runs in which followers pass their clients on to the leader."""
HEARTBEAT_S: Final = 3
_KEYS: Final = ElectionKeys.under(ETCD_SETTINGS["cluster.etcd.prefix"])


class FollowerWorld(EtcdWorld):
    """See the module."""

    small_logs_share = SMALL_LOGS

    def __init__(self, *args: Any, **given: Any) -> None:
        """Begin without a running node."""
        super().__init__(*args, **given)
        self._ports_of: dict[str, int] = {}
        self._in_sync: tuple[bytes, frozenset[str]] = b"", frozenset()
        self._ids: dict[str, tuple[tuple[int, ...], str]] = {}

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        passes_on = str(self.habits.random() < PROXYING).lower()
        for number in range(self.size):
            name, port = f"n{number + 1}", self.network.free_port()
            self._ports_of[name] = port
            self.add_node(
                name,
                {
                    **ETCD_SETTINGS,
                    "replication.bind": "127.0.0.1",
                    "replication.port": str(port),
                    "replication.ack_timeout": "2s",
                    "replication.proxy": passes_on,
                },
            )
        self.start_all()
        await self.until(lambda: bool(self.opened), "one leads", START_TIMEOUT_S)
        await self.until_whole()
        await employ(self)
        for application in self.applications:
            # A node that passes clients on and loses power closes no connection, so the leader would wait for ever.
            application.heartbeat_s = HEARTBEAT_S if passes_on == "true" else 0

    def missing(self) -> list[str]:
        """See EtcdWorld: one node has to lead, and all others have to be in sync with it."""
        leaders = self.opened
        if len(leaders) != 1:
            return [f"leaders: {', '.join(node.name for node in leaders) or 'none'}"]
        roles = leaders[0].roles
        assert roles is not None
        status = roles.node.replication.status()
        if status["in_sync_count"] < self.size - 1:
            return [f"{leaders[0].name} leads, in sync are only {status['in_sync']}"]
        return []

    def copies(self) -> list[tuple[Path, Path, list[str]]]:
        """See EtcdWorld."""
        leaders = self.opened
        if len(leaders) != 1:
            return []
        home = leaders[0].data_dir
        logs = [
            "definitions",
            *(f"{kind}/{each.name}" for kind in ("queues", "streams") for each in (home / kind).glob("*")),
        ]
        return [(home, node.data_dir, logs) for node in self.nodes if node not in leaders]

    def may_be_damaged(self, path: Path) -> bool:
        """See EtcdWorld: a file of any log may, including the definitions."""
        return bool({"queues", "streams", "definitions"}.intersection(path.parts))

    def leader_of(self, queue: Queue) -> str:
        """See EtcdWorld: one node leads all queues."""
        elected = self.etcd.state.entries.get(_KEYS.leader)
        ports = self._ports_of.items()
        return next((name for name, port in ports if elected and f":{port}".encode() in elected.value), "")

    def has_lease(self, node: str) -> bool:
        """See EtcdWorld: the leader's key lasts as long as its lease."""
        elected = self.etcd.state.entries.get(_KEYS.leader)
        return elected is not None and f":{self._ports_of[node]}".encode() in elected.value

    def counted_on(self, key: tuple[str, ...], epoch: int) -> CountedOn | None:
        """See EtcdWorld: the nodes recorded as in sync that may lead; None for a stream, which is not judged."""
        entry = self.etcd.state.entries.get(_KEYS.in_sync)
        if entry is None:
            return None
        if self._in_sync[0] is not entry.value:
            self._in_sync = entry.value, msgspec.json.decode(entry.value, type=frozenset[str])
        ids = self._in_sync[1]
        nodes = frozenset(
            node.name for node in self.nodes if self._id_of(node) in ids and not self._is_rewriting(node)
        )
        return CountedOn(nodes, len(nodes))

    def records(self, since: int) -> Iterable[tuple[int, CountedOn]]:
        """See EtcdWorld: one record for all queues."""
        entry = self.etcd.state.entries.get(_KEYS.in_sync)
        if entry is not None and entry.modified > since:
            counted_on = self.counted_on(("", ""), 0)
            if counted_on is not None:
                yield from ((epoch, counted_on) for epoch in self.audit.confirmed)

    def _id_of(self, node: SimulatedNode) -> str:
        """Return the node's id in etcd's record; empty before it has one."""
        path = f"{node.data_dir}/{FILE}"
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return ""
        version = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        known = self._ids.get(path)
        if known is None or known[0] != version:
            with open(path, "rb") as file:
                found = str(msgspec.json.decode(file.read()).get("node_id", ""))
            known = self._ids[path] = version, found
        return known[1]

    def _is_rewriting(self, node: SimulatedNode) -> bool:
        """Return whether a node's identity says, durably, that its logs are being rewritten, so that it must not lead.

        A former leader's logs are, once it follows its successor; it may still be recorded as in sync from before.
        """
        files = dict(self.disk.durable(node.data_dir, ""))
        return FILE in files and msgspec.json.decode(files[FILE].synced, type=NodeIdentity).rewriting

    def leaders(self) -> set[str]:
        """See EtcdWorld: the elected leader; without one, any node."""
        elected = self.etcd.state.entries.get(_KEYS.leader)
        return {
            f"{name}@localhost"
            for name, port in self._ports_of.items()
            if elected is None or f":{port}".encode() in elected.value
        }
