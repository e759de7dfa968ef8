"""The end of a run of ChurnWorld: all nodes agree, each queue works at each node, and deletions leave nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final, cast

from pamqp import commands

from leveret.core.replication.cluster import ClusterKey, ClusterKeys
from leveret.model import definitions as d
from leveret.runtime.cluster.operations import ClusterCommands
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.applications.application import ANSWER_TIMEOUT_S
from leveret.testing.simulation.applications.churn_books import ChurnBooks
from leveret.testing.simulation.applications.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.applications.fleet import FLEETING, STREAM, declaration, kind_of
from leveret.testing.simulation.applications.operator import NeverConverged, SimulatedOperator
from leveret.testing.simulation.etcd.server import SimulatedEtcd
from leveret.testing.simulation.machine.network import SimulatedNetwork
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.left_behind import in_memory, on_disk
from leveret.testing.simulation.nodes.node import SimulatedNode

_PROBED_MAX: Final = 8
_PROBE_S: Final = 20.0
_LEFT_S: Final = 60.0
_LOOK_S: Final = 1.0
_QUIET_S: Final = 1.0
_OF_QUEUES: Final = ("queues", "bindings")
_VHOST: Final = "/"
_FAMILIES: Final = ("placements", "collected")


class ChurnRest:
    """See the module; all of it is done by an operator of a cluster at rest."""

    def __init__(
        self,
        operator: SimulatedOperator,
        network: SimulatedNetwork,
        etcd: SimulatedEtcd,
        keys: ClusterKeys,
        nodes: Sequence[SimulatedNode],
        books: ChurnBooks,
        random: Random,
    ) -> None:
        """Begin with a cluster whose applications have ended."""
        self._operator, self._network, self._etcd, self._keys = operator, network, etcd, keys
        self._nodes, self._books, self._random = nodes, books, random
        self._queues: list[str] = []

    # -- definitions ------------------------------------------------------------------------------

    def compare_definitions(self) -> None:
        """Raises BooksFault: a node has other definitions than etcd."""
        stored = self._stored()
        for node in self._nodes:
            known = _definitions(node)
            differing = sorted(
                str(key) for key in stored.keys() | known.keys() if stored.get(key) != known.get(key)
            )
            if differing:
                raise BooksFault(f"definitions: {node.name} and etcd differ in {', '.join(differing[:5])}")

    def _stored(self) -> dict[tuple[str, ...], d.AnyEntity]:
        """Return etcd's definitions, without exclusive queues."""
        exclusive = {
            parsed.names for parsed, value in self._records("placements") if b'"exclusive":true' in value
        }
        found: dict[tuple[str, ...], d.AnyEntity] = {}
        for parsed, value in self._records("definitions"):
            change = d.decode_change(value)
            if isinstance(change, d.Put) and parsed.names[1:] not in exclusive:
                found[parsed.names] = change.entity
        return found

    def _records(self, family: str) -> list[tuple[ClusterKey, bytes]]:
        entries = self._etcd.state.entries
        parsed = ((self._keys.parse(key), entry.value) for key, entry in entries.items())
        return [(key, value) for key, value in parsed if key is not None and key.family == family]

    # -- messages ---------------------------------------------------------------------------------

    async def count(self) -> int:
        """Take all messages of all queues, and compare them with the books; return their number. Raises BooksFault."""
        placed = [parsed.names for parsed, _ in self._records("placements")]
        self._queues = [name for vhost, name in placed if vhost == _VHOST]
        self._books.judge_queues(self._queues)
        found: dict[str, list[int]] = {
            name: [] for name in self._books.names() if name not in self._books.fleeting
        }
        asked = self._books.moment()
        for name in self._queues:
            if kind_of(name) == STREAM:
                found[name] = await self._read(name, asked)
            elif kind_of(name) not in FLEETING:
                found[name] = await self._operator.take_all(
                    name, lambda queue, delivery: self._taken(queue, delivery, asked)
                )
        self._books.judge(found)
        return sum(map(len, found.values()))

    def _taken(self, queue: str, delivery: ClientDelivery, asked: int) -> Any:
        message = self._books.delivered(
            queue, delivery.message_id, delivery.body, delivery.properties, redelivered=delivery.redelivered
        )
        self._books.got(message, asked)
        return message

    async def _read(self, stream: str, asked: int) -> list[int]:
        """Read a stream from its first message on until no more come."""
        client = await self._operator.client()
        arrived: list[ClientDelivery] = []

        def note(delivery: ClientDelivery) -> None:
            arrived.append(delivery)
            client.send(commands.Basic.Ack(delivery.tag))

        client.on_delivery = note
        await _consume(client, stream, "first")
        count = -1
        while count < len(arrived):
            count = len(arrived)
            await asyncio.sleep(_QUIET_S)
        client.close()
        messages = [self._books.read(stream, each.message_id, each.body) for each in arrived]
        for message in messages:
            self._books.got(message, asked)
        return [message.number for message in messages]

    # -- probes -----------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Publish to some queues at each node, and get the message there. Raises NeverConverged."""
        lasting = [name for name in self._queues if kind_of(name) not in FLEETING]
        for name in self._random.sample(lasting, min(_PROBED_MAX, len(lasting))):
            for node in self._nodes:
                try:
                    async with asyncio.timeout(_PROBE_S):
                        await self._probe(node, name)
                except (ClientClosed, TimeoutError) as error:
                    raise NeverConverged(f"queue {name} does not work at {node.name}: {error!r}") from error

    async def _probe(self, node: SimulatedNode, queue: str) -> None:
        client = await SimulatedClient.connect(self._network, node.amqp_port)
        text, confirms, arrived = f"probe at {node.name}", list[bool](), list[str]()
        client.on_confirm = lambda tag, multiple, ok: confirms.append(ok)
        client.on_delivery = lambda delivery: arrived.append(delivery.message_id)
        await client.call(declaration(queue))
        await client.call(commands.Confirm.Select())
        if kind_of(queue) == STREAM:
            await _consume(client, queue, "next")
        client.publish(queue, text, b"probe", mandatory=True)
        await wait_until(lambda: bool(confirms), _PROBE_S)
        while text not in arrived:
            if kind_of(queue) != STREAM:
                got = await client.call(commands.Basic.Get(0, queue, no_ack=True))
                if not isinstance(got, ClientDelivery):
                    raise NeverConverged(f"queue {queue} has no message after a confirm at {node.name}")
                arrived.append(got.message_id)
            await asyncio.sleep(0.01)
        if confirms != [True]:
            raise NeverConverged(f"queue {queue} refuses a message at {node.name}")
        client.close()

    # -- deletion ---------------------------------------------------------------------------------

    async def delete_all(self) -> None:
        """Delete all queues, exchanges, virtual hosts and users of the run. Raises BooksFault: something is left."""
        names = {parsed.names[1] for parsed, _ in self._records("placements")} | self._books.names()
        client = await self._operator.client()
        async with asyncio.timeout(_LEFT_S):
            queues = [parsed.names for parsed, _ in self._records("placements")]
            await asyncio.gather(
                *(client.call(commands.Queue.Delete(0, name)) for vhost, name in queues if vhost == _VHOST)
            )
            for key in [key for key in self._stored() if key[0] == "exchanges" and key[2].startswith("x.")]:
                await client.call(commands.Exchange.Delete(0, key[2]))
        client.close()
        stored = self._stored()
        changes = [
            d.Delete(kind, name)
            for kind, *name_parts in stored
            for name in [tuple(name_parts)]
            if (kind, name) not in (("vhosts", (_VHOST,)), ("users", ("guest",)))
            and kind in ("vhosts", "users")
        ]
        if changes:
            done = self._operator.change(self._nodes[0], *changes)
            await wait_until(done.done, ANSWER_TIMEOUT_S)
        if not await wait_until(lambda: not self._left(names), _LEFT_S, _LOOK_S):
            raise BooksFault(f"left behind: {'; '.join(self._left(names))}")
        self.compare_definitions()

    def _left(self, names: Iterable[str]) -> list[str]:
        """Return what is left of deleted queues."""
        found = [
            f"etcd: {key.family} {key.names}" for family in _FAMILIES for key, _ in self._records(family)
        ]
        found += [
            f"etcd: {key.names}" for key, _ in self._records("definitions") if key.names[0] in _OF_QUEUES
        ]
        for node in self._nodes:
            found += [f"{node.name}: {each}" for each in on_disk(node.data_dir)]
            if not found:
                found += [f"{node.name}: {each}" for each in in_memory(_roots(node), set(names))]
        return found


async def _consume(client: SimulatedClient, stream: str, offset: str) -> None:
    arguments: Any = {"x-stream-offset": offset}
    await client.call(commands.Basic.Qos(0, 100))
    await client.call(commands.Basic.Consume(0, stream, "", arguments=arguments))


def _definitions(node: SimulatedNode) -> dict[tuple[str, ...], d.AnyEntity]:
    assert node.roles is not None
    by_kind = node.roles.node.broker.definitions.by_kind
    return {(kind, *key): entity for kind, entities in by_kind.items() for key, entity in entities.items()}


def _roots(node: SimulatedNode) -> dict[str, Any]:
    """Return the parts of a node that know queues."""
    assert node.roles is not None
    own = node.roles.node
    cluster = cast("ClusterCommands", own.cluster)
    return {
        "parts": cluster._parts,
        "broker": own.broker,
        "engine": own.engine,
        "commits": own.commits,
        "log_store": own.log_store,
        "tree": own.tree,
        "collector": own.collector,
    }
