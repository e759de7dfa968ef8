"""Simulated worlds that do what a story says, without chance: each message and each sync takes the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from pamqp import commands

from leveret.core.replication.cluster import Placement
from leveret.core.replication.election import ElectedLeader, ElectionKeys
from leveret.runtime.logs.log_home import directory_of
from leveret.testing.simulation.applications.application import drain
from leveret.testing.simulation.applications.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.nodes.patches import EPOCH_S
from leveret.testing.simulation.worlds.cluster import PLACEMENTS, POLICY, ClusterWorld
from leveret.testing.simulation.worlds.followers import FollowerWorld
from leveret.testing.simulation.worlds.with_etcd import ETCD_SETTINGS, EtcdWorld
from leveret.testing.simulation.worlds.world import START_TIMEOUT_S, SimulatedWorld
from leveret.testing.transcripts.recording import LinkRecording
from leveret.testing.transcripts.script import StoryLine

DELAY_S: Final = 0.001
REST_S: Final = 0.6
CONFIRM_S: Final = 1.0
_SEED: Final = 1
_ELECTION: Final = ElectionKeys.under(ETCD_SETTINGS["cluster.etcd.prefix"])


class StoryFault(Exception):
    """A story has a command that is none, or one that cannot be done."""


class _Steady(Random):
    """Chance without surprises: always the middle."""

    def random(self) -> float:
        """See random.Random."""
        return 0.5


class StoryWorld(SimulatedWorld):
    """What the worlds of stories share.

    Attributes:
        recording: of what happens.
    """

    small_logs_share = 0.0

    def tell(self, folder_lines: list[StoryLine]) -> list[StoryLine]:
        """Do what the lines say; return them with what happened."""
        self._story_lines = folder_lines
        self._played: list[StoryLine] = []
        self._bodies = 0
        self._client: SimulatedClient | None = None
        self._queues: dict[str, str] = {}
        self.recording = LinkRecording(lambda log: self._queues.get(log, ""))
        self.loop.random = self.network.random = _Steady()
        self.loop.threads_delay_s = self.network.delay_s = DELAY_S
        with self.recording.listening():
            self.run(0.0)
        return self._played

    def add_node(self, name: str, settings: dict[str, str]) -> SimulatedNode:
        """See SimulatedWorld: all clocks agree."""
        node = super().add_node(name, settings)
        node.clock_offset_s, node.clock_rate, node.disk_delay_s = 0.0, 1.0, 0.0
        return node

    async def _play(self, seconds: float) -> int:
        self.prepare()
        await self._operator.spawn(self._tell())
        return 0

    async def _tell(self) -> None:
        for line in self._story_lines:
            happened: list[str] = []
            if line.is_command:
                await self._do(line.text)
                happened = self.recording.take()
            self._played.append(StoryLine(line.text, happened))

    async def _do(self, text: str) -> None:
        name, *given = text.split()
        command = getattr(self, f"do_{name}", None)
        if command is None:
            raise StoryFault(f"{text}: there is no such command")
        try:
            result = command(*given)
            if result is not None:
                await result
        except ConnectionRefusedError:
            self.recording.note("client    nobody listens")
        except (ClientClosed, OSError, TimeoutError) as error:
            self.recording.note(f"client    {type(error).__name__}: {error}".rstrip(": "))
        if name != "at":
            await asyncio.sleep(REST_S)

    def node(self, name: str) -> SimulatedNode:
        """Return the node of a name."""
        found = next((each for each in self.nodes if each.name == name), None)
        if found is None:
            raise StoryFault(f"there is no node {name}")
        return found

    # -- commands -----------------------------------------------------------------------------

    def do_kill(self, name: str) -> None:
        """`kill -9`."""
        self.node(name).kill()

    def do_power(self, name: str) -> None:
        """The machine loses power."""
        self.node(name).lose_power(Random(_SEED))

    def do_stop(self, name: str) -> Awaitable[None]:
        """Stop in order."""
        return self.node(name).stop()

    def do_start(self, name: str) -> None:
        """Start again."""
        self.recording.forget(name)
        self.node(name).start()

    def do_pause(self, name: str) -> None:
        """The process stands still."""
        self.node(name).pause()

    def do_resume(self, name: str) -> None:
        """It goes on."""
        self.node(name).resume()

    def do_cut(self, one: str, other: str) -> None:
        """The link between two nodes carries nothing, in both directions."""
        self.network.cut(one, other)

    def do_reset(self, one: str, other: str) -> None:
        """The connections between two nodes end."""
        self.network.reset(one, other)

    def do_mend(self) -> None:
        """All links carry again."""
        self.network.mend()

    def do_full(self, name: str) -> None:
        """Nothing fits on a node's disk any more."""
        self.disks.fill(self.node(name).data_dir, 0)

    def do_free(self, name: str) -> None:
        """There is room again."""
        self.disks.limit(self.node(name).data_dir, None)

    async def do_wait(self, seconds: str) -> None:
        """Let so much time go by."""
        await asyncio.sleep(float(seconds))

    async def do_declare(self, queue: str, kind: str = "classic") -> None:
        """Declare a durable queue."""
        client = await self._connect("")
        arguments: Any = {"x-queue-type": kind} if kind != "classic" else {}
        await client.call(commands.Queue.Declare(0, queue, durable=True, arguments=arguments))
        client.close()
        self.queues.append(queue)
        for node in self.nodes:
            found = node.roles.node.broker.find_queue(("/", queue)) if node.is_open and node.roles else None
            if found is not None and found.epoch:
                self._queues[f"queues/{directory_of(found.epoch)}"] = queue

    async def do_delete(self, queue: str) -> None:
        """Delete a queue."""
        client = await self._connect("")
        await client.call(commands.Queue.Delete(0, queue))
        client.close()

    async def do_publish(self, queue: str, count: str, at: str = "") -> None:
        """Publish so many messages at once, and tell how many are confirmed within a second."""
        client = await self._connect(at)
        await client.call(commands.Confirm.Select())
        confirmed = 0

        def on_confirm(tag: int, multiple: bool, ok: bool) -> None:
            nonlocal confirmed
            confirmed = tag if ok else confirmed

        client.on_confirm = on_confirm
        for _ in range(int(count)):
            self._bodies += 1
            client.publish(queue, str(self._bodies), b"message %d" % self._bodies)
        await wait_until(lambda: confirmed == int(count) or client.is_closed, CONFIRM_S, DELAY_S)
        self.recording.note(f"client    {confirmed} of {count} confirmed")
        if confirmed == int(count):
            client.close()
        else:
            # It stays, and so does the message that waits.
            client.on_confirm = lambda tag, multiple, ok: self.recording.note(
                f"client    {'confirmed' if ok else 'refused'} up to {tag}, late"
            )

    async def do_take(self, queue: str, count: str = "1000000") -> None:
        """Get and acknowledge some messages, or all."""
        client = await self._connect("")
        got: list[str] = []

        def note(delivery: ClientDelivery) -> None:
            got.append(delivery.message_id + ("r" if delivery.redelivered else ""))

        await drain(client, queue, note, count_max=int(count))
        self.recording.note(f"client    takes {' '.join(got) or 'nothing'}")
        await asyncio.sleep(10 * DELAY_S)
        client.close()

    async def _connect(self, at: str) -> SimulatedClient:
        node = self.node(at) if at else self.opened[0]
        async with asyncio.timeout(CONFIRM_S):
            return await SimulatedClient.connect(self.network, node.amqp_port)


class EtcdStory(StoryWorld, EtcdWorld):
    """With an etcd."""

    def prepare(self) -> None:
        """See SimulatedWorld."""
        self.etcd_delay_s = DELAY_S
        super().prepare()
        self.etcd.paths._rng = _Steady()
        self.etcd.on_change = lambda transaction: self.record_changed()

    def record_changed(self) -> None:
        """Something in etcd has changed: note it if it is a record that is told of."""

    def do_etcd(self, what: str, name: str = "") -> None:
        """Cut a node off from etcd, heal that, stop or start etcd, or compact it, which ends all watches."""
        match what:
            case "cut":
                self.etcd.cut(name)
            case "heal":
                self.etcd.heal(name)
            case "stop":
                self.etcd.kill()
            case "start":
                self.etcd.start()
            case "compact":
                self.etcd.compact()
            case _:
                raise StoryFault(f"etcd {what}: there is no such command")


class ClusterStory(EtcdStory, ClusterWorld):
    """A cluster with mirrored queues."""

    _placements_seen: dict[str, Placement]

    async def do_nodes(self, count: str) -> None:
        """Start a cluster of so many nodes."""
        self._placements_seen = {}
        self.books.may_lose = True
        # A client of these stories is served by the node that it names, or by none.
        self._passes_on = False
        for _ in range(int(count)):
            self._add_member()
        self.start_all()
        await self.until(lambda: all(node.is_open for node in self.nodes), "all nodes start", START_TIMEOUT_S)

    async def do_policy(self, *given: str) -> None:
        """Mirror all queues by `key=value` of the policy."""
        definition: dict[str, Any] = {**POLICY, "ha-mode": "all"}
        for each in given:
            key, _, value = each.partition("=")
            names = [f"{name}@localhost" for name in value.split(",")]
            definition[key] = names if key == "ha-params" and not value.isdigit() else value
            if value.isdigit():
                definition[key] = int(value)
        node = self.opened[0]
        await self._mirror(node, definition)

    async def do_sync(self, queue: str) -> None:
        """Have the mirrors of a queue be sent the head that they lack."""
        node = self.opened[0]
        cluster: Any = node.roles and node.roles.node.cluster
        self.operator.at(node, partial(cluster.sync_queue, "/", queue))

    async def do_move(self, queue: str, to: str) -> None:
        """Have another node lead a queue."""
        node = self.opened[0]
        cluster: Any = node.roles and node.roles.node.cluster
        key = ("/", queue)
        planned = Placement(1, cluster.placement(key).leader, "", 1)
        self.operator.at(node, partial(cluster.ask_to_move, key, planned, f"{to}@localhost"))

    def record_changed(self) -> None:
        """See EtcdStory: of placements."""
        for key, entry in self.etcd.state.entries.items():
            if not key.startswith(PLACEMENTS):
                continue
            placement = msgspec.json.decode(entry.value, type=Placement)
            name = key.rpartition("/")[2]
            self._queues[f"queues/{directory_of(placement.epoch)}"] = name
            if self._placements_seen.get(name) != placement:
                self._placements_seen[name] = placement
                self.recording.note(f"etcd      {name}: {_placed(placement)}")


class FollowerStory(EtcdStory, FollowerWorld):
    """A leader with followers, chosen by etcd."""

    async def do_nodes(self, count: str) -> None:
        """Start a leader and its followers."""
        self._seen: dict[str, str] = {}
        self.size = int(count)
        self.books.may_lose = True
        for number in range(self.size):
            name, port = f"n{number + 1}", self.network.free_port()
            self._ports_of[name] = port
            settings = {"replication.bind": "127.0.0.1", "replication.port": str(port)}
            node = self.add_node(name, {**ETCD_SETTINGS, **settings, "replication.ack_timeout": "2s"})
            self.give_secret(node)
            node.start()
            if not number:
                await self.until(lambda node=node: node.is_open, "one leads")  # type: ignore[misc]
        await self.until_whole()

    def record_changed(self) -> None:
        """See EtcdStory: who leads, and who is in sync."""
        state = self.etcd.state.entries
        leader, in_sync = state.get(_ELECTION.leader), state.get(_ELECTION.in_sync)
        if leader is None:
            self._changed("leader", "no node leads")
        else:
            found = msgspec.json.decode(leader.value, type=ElectedLeader)
            name = next((name for name, port in self._ports_of.items() if f":{port}" in found.uri), "?")
            self._changed("leader", f"{name} leads in epoch {found.epoch}")
        if in_sync is not None:
            ids = msgspec.json.decode(in_sync.value, type=frozenset[str])
            names = [node.name for node in self.nodes if self._id_of(node) in ids]
            self._changed("in_sync", f"in sync: {' '.join(names)}")

    def _changed(self, what: str, now: str) -> None:
        if self._seen.get(what) != now:
            self._seen[what] = now
            self.recording.note(f"etcd      {now}")


class DelayedStory(StoryWorld):
    """A leader with a delayed follower."""

    async def do_nodes(self, count: str) -> None:
        """Start a leader and delayed followers."""
        port = self.network.free_port()
        for number in range(int(count)):
            bind = {"replication.bind": "127.0.0.1", "replication.port": str(port)}
            follow = {"replication.follow": f"tcp://127.0.0.1:{port}", "replication.apply_delay": "3600s"}
            node = self.add_node(f"n{number + 1}", follow if number else bind)
            self.give_secret(node)
            node.start()
        await self.until(lambda: self.nodes[0].is_open, "the leader starts")

    def do_mark(self) -> None:
        """Remember the time."""
        self._marked_ms = round((self.loop.time() + EPOCH_S) * 1000)

    async def do_promote(self, name: str, as_of: str = "") -> None:
        """Have a follower lead, as of the time that was marked, or with everything."""
        node = self.node(name)
        assert node.process is not None
        assert node.roles is not None
        until_ms = self._marked_ms if as_of else (1 << 62) - 1
        promoting = node.roles.node.replication.promote(
            dry_run=False, force=not as_of, apply_until_ms=until_ms
        )
        outcome = await node.process.spawn(promoting)
        self.recording.note(f"{name}        {'promoted' if outcome['promoted'] else outcome['reason']}")
        await self.until(lambda: node.is_open, "it leads")


def _placed(placement: Placement) -> str:
    def names(nodes: tuple[str, ...]) -> str:
        return " ".join(each.partition("@")[0] for each in nodes) or "none"

    how = ", by majority" if placement.majority else ""
    return (
        f"{names((placement.leader,))} leads in term {placement.term}, mirrors {names(placement.mirrors)}, "
        f"synchronised {names(placement.synchronised)}{how}"
    )


WORLDS: Final[dict[str, type[StoryWorld]]] = {
    "cluster": ClusterStory,
    "followers": FollowerStory,
    "delayed": DelayedStory,
}


def played(world: str, lines: list[StoryLine], folder: Path) -> list[StoryLine]:
    """Return the lines of a story with what happens."""
    return WORLDS[world](_SEED, folder).tell(lines)
