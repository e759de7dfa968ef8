"""A rebalance at a node that leads nothing: other nodes report the lengths of their queues over the link."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from leveret.core.replication.cluster import Placement, StoredPlacement
from leveret.runtime.cluster.answers import AnswerOperator
from leveret.runtime.cluster.operations import ClusterCommands
from leveret.wire.link import Answer, Type, decode, pack

NODES = ("a", "b")
LENGTHS = {"first": 100, "second": 1}
"""The messages of the queues; `b` leads both, and `a` mirrors them."""


def placement() -> StoredPlacement:
    return StoredPlacement(Placement(1, "b", "b1", 1, mirrors=("a",), synchronised=("a",)), 1)


class Answers:
    """See ClusterAnswers: keeps requests to move a queue, and answers the operators' ones."""

    def __init__(self) -> None:
        self.moved: list[str] = []
        self.operator: AnswerOperator | None = None

    def answer_operators_with(self, answer: AnswerOperator) -> None:
        self.operator = answer

    async def over_the_link(self, what: str, about: Any) -> dict[str, Any]:
        """Answer a request, and read the answer as the asking node does."""
        if what == "move":
            self.moved.append(about["name"])
            return {"moved": True}
        assert self.operator is not None
        sent = pack(Type.ANSWER, Answer(1, "", await self.operator(what, about)))
        return decode(Type.ANSWER, memoryview(sent)[5:], Answer).found


def commands(name: str, answers: Answers, asked: Answers | None = None) -> ClusterCommands:
    """Return the commands of a node; it asks the node of `asked`."""

    async def ask(node: str, what: str, about: Any) -> dict[str, Any]:
        assert asked is not None
        return await asked.over_the_link(what, about)

    queues = {
        ("/", queue): SimpleNamespace(
            definition=SimpleNamespace(arguments={}), message_count=count if name == "b" else 0
        )
        for queue, count in LENGTHS.items()
    }
    member = SimpleNamespace(
        name=name,
        state=SimpleNamespace(placements={key: placement() for key in queues}),
        cluster_view=lambda: SimpleNamespace(members=NODES, alive=NODES),
        ask=ask,
    )
    node = SimpleNamespace(broker=SimpleNamespace(queues=queues))
    parts = SimpleNamespace(member=member, answers=answers)
    return ClusterCommands(cast("Any", node), cast("Any", parts))


async def _unused(what: str, about: Any) -> dict[str, Any]:
    raise AssertionError(what)


def test_the_shortest_queue_moves_first_whichever_node_leads_it() -> None:
    leader = Answers()
    commands("b", leader).answer_with(_unused)

    rows = asyncio.run(commands("a", Answers(), leader).rebalance("all", ".*", ".*"))

    assert leader.moved == ["second"]
    assert [row["node"] for row in rows] == ["a", "b"]
