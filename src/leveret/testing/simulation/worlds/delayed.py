"""A simulated leader with a delayed follower, which is promoted at the end: as of a noted time, or with all changes.

At some times, when the follower has all records of its leader, the world copies the books: the messages that are
confirmed and those that are settled then. At the end it chooses one of these times. The follower, promoted as of that
time, must have each message that was confirmed and not settled then, also if it was settled, purged or deleted with its
queue later. It must have no message that was settled then or published later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple

from pamqp import commands

from leveret.runtime.replication.delaying import Delaying
from leveret.testing.applications.run_books import BookedMessage, BooksFault
from leveret.testing.simulation.applications.application import ANSWER_TIMEOUT_S
from leveret.testing.simulation.applications.client import ClientClosed, ClientDelivery, SimulatedClient
from leveret.testing.simulation.applications.operator import NeverConverged
from leveret.testing.simulation.worlds.world import (
    SMALL_LOGS,
    START_TIMEOUT_S,
    PossibleFault,
    SimulatedWorld,
)

_QUEUES: Final = ("q1", "q2", "qq")
_BETWEEN_TIMES_S: Final = 0.5
_QUIET_S: Final = 0.01
"""The pause of all work around a noted time, so that later frames have later times."""
_MARGIN_S: Final = 30
"""The margin before the delay ends: an older time may be out of reach when an interrupted promotion is repeated."""
_PROMOTE_NOW: Final = 0.25
_BREAK_OFF: Final = 0.3


class NotedTime(NamedTuple):
    """The books at a time: the messages that must exist then, those that must not, and the `last` number published.

    `at_ms` is by the follower's index, `at_s` by the loop.
    """

    at_ms: int
    at_s: float
    last: int
    unsettled: frozenset[tuple[str, int]]
    settled: frozenset[tuple[str, int]]


class DelayedWorld(SimulatedWorld):
    """See the module."""

    small_logs_share = SMALL_LOGS
    times: list[NotedTime]

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        self.times = []
        self._watching = Random(f"times {self.seed}")
        self._mistaken: dict[str, int] = {}
        """Queues that the operator's mistake affects right now."""
        self._doubtful: dict[str, int] = {}
        """By queue, the number of the last message that a mistake may have removed."""
        port = self.network.free_port()
        self._delay_s = delay_s = self.habits.choice((60, 3600))
        small = {"segment_bytes_max": "65536"}
        self.add_node("n1", {**small, "replication.bind": "127.0.0.1", "replication.port": str(port)})
        follow = {
            "replication.follow": f"tcp://127.0.0.1:{port}",
            "replication.apply_delay": f"{delay_s}s",
        }
        self.add_node("n2", {**small, **follow})
        # Clocks that differ make the delay longer or shorter.
        self.nodes[1].clock_offset_s = self.nodes[0].clock_offset_s
        for node in self.nodes:
            self.give_secret(node)
            node.start()
        await self.until(lambda: self.nodes[0].is_open, "the leader starts", START_TIMEOUT_S)
        for queue in _QUEUES:
            await self.declare(queue, **({"x_queue_type": "quorum"} if queue == "qq" else {}))
        await self.until(self._is_even, "the follower has joined", START_TIMEOUT_S)
        self.publishers(2, 0.05)
        self.consumers(["q1", "qq"])
        self._operator.spawn(self._note_times())

    # -- times ------------------------------------------------------------------------------------

    async def _note_times(self) -> None:
        while True:
            await asyncio.sleep(self._watching.expovariate(1 / _BETWEEN_TIMES_S))
            before = self._position()
            if before is None:
                continue
            await asyncio.sleep(_QUIET_S)
            delaying = self._delaying()
            if self._position() == before and delaying is not None and not self._mistaken:
                at_ms = delaying.delayed_changes().newest_at_ms
                if at_ms is not None:
                    self.times.append(self._noted(at_ms))

    def _noted(self, at_ms: int) -> NotedTime:
        messages = self.books.messages
        return NotedTime(
            at_ms,
            self.loop.time(),
            max((number for _, number in messages), default=0),
            frozenset(key for key, each in messages.items() if self._is_certain(each)),
            frozenset(key for key, each in messages.items() if each.is_settled),
        )

    def _is_certain(self, message: BookedMessage) -> bool:
        """Return whether the message must be in its queue."""
        is_doubtful = self._is_doubtful((message.queue, message.number))
        return message.is_confirmed and not message.is_tried and not is_doubtful

    def _is_doubtful(self, key: tuple[str, int]) -> bool:
        queue, number = key
        return number <= self._doubtful.get(queue, 0)

    def _taken_back(self, time: NotedTime) -> int:
        """Return how many messages of a time were settled, purged or deleted since."""
        return sum(self.books.messages[key].is_tried or self._is_doubtful(key) for key in time.unsettled)

    def _delaying(self) -> Delaying | None:
        roles = self.nodes[1].roles if self.nodes[1].is_up else None
        return roles.following.delaying if roles is not None and roles.following is not None else None

    def _position(self) -> int | None:
        """Return the leader's position if the follower has all records before it on disk, else None."""
        roles = self.nodes[0].roles if self.nodes[0].is_open else None
        server = roles.follower_server if roles is not None else None
        if server is None or not server.listener.followers or self._delaying() is None:
            return None
        [link, *_] = server.listener.followers
        position = server.feed.position
        return position if (link.state, link.acked_position) == ("delayed", position) else None

    def _is_even(self) -> bool:
        return self._position() is not None

    # -- faults -----------------------------------------------------------------------------------

    def possible_faults(self) -> Sequence[PossibleFault]:
        """See SimulatedWorld."""
        found: list[PossibleFault] = []
        for node in self.nodes:
            if node.is_up:
                found += self.faults_of(node)
            else:
                found += [PossibleFault("start", node.start, node.name)] * 4
        queue = self.random.choice(_QUEUES)
        return [
            *found,
            PossibleFault("purge", lambda: self._by_mistake(queue, [commands.Queue.Purge(0, queue)]), queue),
            PossibleFault("delete", lambda: self._by_mistake(queue, _deleted_and_declared(queue)), queue),
            PossibleFault("cut", self._cut),
            PossibleFault("reset", lambda: self.network.reset("n1", "n2")),
        ]

    def stops_s(self) -> float:
        """See SimulatedWorld."""
        return self.random.choice((0.3, 1.0, 3.0))

    async def _cut(self) -> None:
        self.network.cut("n1", "n2")
        await asyncio.sleep(self.random.choice((0.1, 1.0, 5.0)))
        self.network.mend()

    def _by_mistake(self, queue: str, methods: list[Any]) -> None:
        """Let the operator remove messages of a queue by mistake."""
        self._mistaken[queue] = self._mistaken.get(queue, 0) + 1
        self._operator.spawn(self._until_done(queue, methods))

    async def _until_done(self, queue: str, methods: list[Any]) -> None:
        while methods:
            await asyncio.sleep(0.1)
            if not self.nodes[0].is_open:
                continue
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    client = await SimulatedClient.connect(self.network, self.nodes[0].amqp_port)
                    await client.call(methods[0])
                    methods.pop(0)
                    client.close()
            except (ClientClosed, OSError, TimeoutError):
                continue
        self._doubtful[queue] = max((number for _, number in self.books.messages), default=0)
        self._mistaken[queue] -= 1
        if not self._mistaken[queue]:
            del self._mistaken[queue]

    async def heal(self) -> None:
        """See SimulatedWorld."""
        self.network.mend()
        for node in self.nodes:
            node.resume()
            node.start()
        await self.until(lambda: self.nodes[0].is_open, "the leader starts", START_TIMEOUT_S)
        await self.until(lambda: not self._mistaken, "no mistake is under way")

    # -- the end ----------------------------------------------------------------------------------

    async def _count(self) -> int:
        """See SimulatedWorld: promotes the follower, and checks its messages."""
        await self.rest()
        await self.until(self._is_even, "the follower has all")
        now_s = self.loop.time()
        times = [each for each in self.times if now_s - each.at_s < self._delay_s - _MARGIN_S]
        chosen = None
        if times and self.random.random() > _PROMOTE_NOW:
            # Most times are noted when all faults are over: those would take back nothing.
            [chosen] = self.random.choices(times, [1 + self._taken_back(each) for each in times])
        self.story.note(f"-- promote n2 as of {chosen.at_ms if chosen else 'now'}")
        if self.random.random() < 0.5:
            self.nodes[0].kill()
        await self._promote(chosen)
        self.nodes[0].kill()
        found = {queue: await self.operator.take_all(queue, self._booked) for queue in _QUEUES}
        if chosen is None:
            for message in self.books.messages.values():
                message.is_tried |= message.number <= self._doubtful.get(message.queue, 0)
            self.books.judge(found)
        else:
            self._judge(chosen, found)
        return sum(map(len, found.values()))

    async def _promote(self, chosen: NotedTime | None) -> None:
        follower = self.nodes[1]
        until_ms = (1 << 62) - 1 if chosen is None else chosen.at_ms
        if self.random.random() < _BREAK_OFF:
            assert follower.process is not None
            assert follower.roles is not None
            promotion = follower.roles.node.replication.promote(
                dry_run=False, force=False, apply_until_ms=until_ms
            )
            follower.process.spawn(promotion)
            await asyncio.sleep(self.random.expovariate(1 / 0.1))
            power = self.random.random() < 0.5
            follower.lose_power(self.random) if power else follower.kill()
            follower.start()
            await self.until(lambda: follower.is_open or self._delaying() is not None, "n2 is back")
            if follower.is_open:
                return
        assert follower.process is not None
        assert follower.roles is not None
        operations = follower.roles.node.replication
        outcome = await follower.process.spawn(
            operations.promote(dry_run=False, force=chosen is None, apply_until_ms=until_ms)
        )
        if not outcome["promoted"]:
            raise NeverConverged(f"n2 is not promoted: {outcome['reason']}")
        await self.until(lambda: follower.is_open, "n2 leads")

    def _booked(self, queue: str, got: ClientDelivery) -> BookedMessage:
        """Look a message up in the books of all times; `_judge` decides as of the chosen time."""
        return self.books.look_up(queue, got.message_id, got.body, got.properties)

    def _judge(self, chosen: NotedTime, found: dict[str, list[int]]) -> None:
        every = [(queue, number) for queue, numbers in found.items() for number in numbers]
        faults = {
            "duplicated": {key for key in every if every.count(key) > 1},
            "lost": chosen.unsettled - set(every),
            "resurrected": chosen.settled & set(every),
            "later": {key for key in every if key[1] > chosen.last},
        }
        for what, keys in faults.items():
            if keys:
                some = ", ".join(f"{number} of {queue}" for queue, number in sorted(keys)[:10])
                raise BooksFault(f"{what} as of {chosen.at_ms}: {len(keys)} messages, first {some}")


def _deleted_and_declared(queue: str) -> list[Any]:
    arguments: Any = {"x-queue-type": "quorum"} if queue == "qq" else {}
    return [
        commands.Queue.Delete(0, queue),
        commands.Queue.Declare(0, queue, durable=True, arguments=arguments),
    ]
