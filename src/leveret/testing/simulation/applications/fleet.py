"""A fleet of queues that come and go: applications declare, delete, bind and use its queues, all at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pamqp import commands

from leveret.testing.simulation.applications.churn_books import ChurnBooks


class QueueKind(NamedTuple):
    """A kind of queues; `m` at the begin of a name is mirrored by policy.

    Attributes:
        durable, exclusive, auto_delete, arguments: see AMQP.
        is_fleeting: whether its queues may end without a request.
    """

    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = MappingProxyType({})
    is_fleeting: bool = False


STREAM: Final = "ms"
EXCLUSIVE: Final = "mx"
KINDS: Final = {
    "ma": QueueKind(),
    "mq": QueueKind(arguments={"x-queue-type": "quorum"}),
    STREAM: QueueKind(arguments={"x-queue-type": "stream"}),
    "c": QueueKind(),
    "mt": QueueKind(durable=False, is_fleeting=True),
    EXCLUSIVE: QueueKind(durable=False, exclusive=True, is_fleeting=True),
    "cd": QueueKind(auto_delete=True, is_fleeting=True),
    "me": QueueKind(arguments={"x-expires": 2000}, is_fleeting=True),
}
LASTING: Final = tuple(name for name, kind in KINDS.items() if not kind.is_fleeting)
FLEETING: Final = tuple(name for name, kind in KINDS.items() if kind.is_fleeting)


def kind_of(queue: str) -> str:
    """Return the kind of a queue by its name."""
    return queue.partition(".")[0]


class Fleet:
    """See the module.

    Attributes:
        name: its own name, which is in the names of its queues.
        books: the books of the run.
        size: the most queues at a time.
        names: the queues that somebody has asked for, and that nobody has asked to delete since, oldest first.
        doubtful: those whose deletion was not answered; their names are not used again.
        exchange: the fanout exchange in use; one that was to be deleted gets a successor of another name.
    """

    def __init__(self, name: str, books: ChurnBooks, size: int) -> None:
        """Begin without queues."""
        self.name = name
        self.books = books
        self.size = size
        self.names: list[str] = []
        self.doubtful: list[str] = []
        self.bound: list[str] = []
        self._numbers: Counter[str] = Counter()
        self.exchange = ""
        self.new_exchange()

    def new_exchange(self) -> None:
        """Use another exchange from now on."""
        self.exchange = self.fresh("x")
        self.bound.clear()

    def fresh(self, kind: str) -> str:
        """Return a name that was never used."""
        self._numbers[kind] += 1
        return f"{kind}.{self.name}.{self._numbers[kind]}"

    def add(self, kind: str) -> str:
        """Return the name of a new queue of this kind."""
        queue = self.fresh(kind)
        if KINDS[kind].is_fleeting:
            self.books.fleeting.add(queue)
        self.names.append(queue)
        return queue

    def some(self, random: Random, count: int = 1, *, streams: bool = False) -> list[str]:
        """Return up to `count` queues, newer ones more often; with streams among them only on request."""
        names = [name for name in self.names if streams or kind_of(name) != STREAM]
        if random.random() < 0.5:
            names = names[-8:]
        return random.sample(names, min(count, len(names)))


def declaration(queue: str) -> commands.Queue.Declare:
    """Return the method that declares a queue of a fleet."""
    kind = KINDS[kind_of(queue)]
    return commands.Queue.Declare(
        0,
        queue,
        durable=kind.durable,
        exclusive=kind.exclusive,
        auto_delete=kind.auto_delete,
        arguments=dict(kind.arguments),
    )
