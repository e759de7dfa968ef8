"""Queues of a tortured cluster that are idle, drained, or hold one message that nobody acks.

What they hold is known for certain after each step: it is published with confirms and settled in transactions, and what
was not answered is done again. None of them may be down, lose its message, or take room for what is settled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pika

from leveret.testing.sites.cluster_site import ClusterSite, SiteNode

EMPTY: Final = "empty"
"""Never used: an empty log has to outlive everything as well."""
IDLE: Final = "idle"
"""Filled and drained once, at the beginning."""
IDLE_GROUP: Final = "idle-group"
"""The same, a quorum queue."""
DRAINED: Final = "drained"
"""Filled and drained now and then."""
STRAGGLER: Final = "straggler"
"""The same, but for its first message, which is never acked."""
MIRRORED: Final = (EMPTY, IDLE, DRAINED, STRAGGLER)
ALL: Final = (*MIRRORED, IDLE_GROUP)
_EMPTIED: Final = (IDLE, IDLE_GROUP, DRAINED)
_FIRST: Final = b"straggler"
_BODY_BYTES: Final = 60_000
_COUNT_MAX: Final = 40
"""Of messages at a time: more than two segments of 1 MiB."""
_ROOM_BYTES: Final = 64 << 10


class QuietQueues:
    """See the module."""

    def __init__(self, site: ClusterSite, chance: random.Random) -> None:
        self._site = site
        self._chance = chance
        self._directories: dict[str, str] = {}

    def begin(self) -> None:
        """Declare them, and use those that are used at all."""
        for queue in ALL:
            before = directories(self._site)
            with self._site.channel(self._chance.choice(self._site.members)) as channel:
                arguments = {"x-queue-type": "quorum"} if queue == IDLE_GROUP else {}
                channel.queue_declare(queue, durable=True, arguments=arguments)
                if queue == STRAGGLER:
                    _publish(channel, queue, [_FIRST])
                elif queue != EMPTY:
                    _publish(channel, queue, self._bodies())
            if queue in _EMPTIED:
                [self._directories[queue]] = directories(self._site) - before
                self._take_all(queue, self._site.members[0])

    def use(self, done: Callable[[Callable[[SiteNode], object], str], None]) -> None:
        """Fill and drain; `done` does that at any node until one has answered."""
        queue = self._chance.choice([DRAINED, STRAGGLER])
        bodies = self._bodies()
        done(partial(self._fill, queue, bodies), f"{queue} to be filled")
        done(partial(self._take_all, queue), f"{queue} to be drained")

    def hold_what_they_must(self, node: SiteNode) -> bool:
        """Whether nothing is in them but the straggler, as a consumer at this node finds it."""
        with self._site.channel(node, confirms=False) as channel:
            for queue in ALL:
                found = [body for _, body in iter(partial(_got, channel, queue), None)]
                expected = [_FIRST] if queue == STRAGGLER else []
                assert found == expected, (
                    f"{queue}: {len(found)} messages where {len(expected)} must be: {found[:3]}"
                )
        return True

    def take_room(self) -> dict[str, int]:
        """Octets, by node and queue, of what is drained and takes more than a little."""
        sizes = {
            f"{node.name} {queue}": _octets(node.data_dir / "queues" / name)
            for node in self._site.members
            for queue, name in self._directories.items()
        }
        return {place: size for place, size in sizes.items() if size > _ROOM_BYTES}

    def _bodies(self) -> list[bytes]:
        return [
            b"%06d" % number * (_BODY_BYTES // 6) for number in range(self._chance.randint(1, _COUNT_MAX))
        ]

    def _fill(self, queue: str, bodies: list[bytes], node: SiteNode) -> None:
        with self._site.channel(node) as channel:
            _publish(channel, queue, bodies)

    def _take_all(self, queue: str, node: SiteNode) -> None:
        """Settle all there is; of what has a straggler, all but that."""
        with self._site.channel(node, confirms=False) as channel:
            channel.tx_select()
            if queue == STRAGGLER:
                held = _got(channel, queue)
                assert held is not None, f"{queue} is empty"
                assert held[1] == _FIRST, f"{queue}: {held[1]!r} is first"
            while (got := _got(channel, queue)) is not None:
                channel.basic_ack(got[0])
            channel.tx_commit()


def directories(site: ClusterSite) -> set[str]:
    """Names of the logs of queues that any node has."""
    return {each.name for node in site.members for each in (node.data_dir / "queues").glob("*")}


def _publish(channel: Any, queue: str, bodies: list[bytes]) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def _got(channel: Any, queue: str) -> tuple[int, bytes] | None:
    method, _, body = channel.basic_get(queue)
    return None if method is None else (method.delivery_tag, body)


def _octets(directory: Path) -> int:
    total = 0
    for path in directory.glob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
