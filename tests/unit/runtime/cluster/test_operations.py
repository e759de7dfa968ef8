"""Operators' commands at a node of a cluster, with the other nodes and etcd as one chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.core.replication.cluster import (
    ClusterKeys,
    ClusterState,
    Event,
    MemberRecord,
    Placement,
    StoredPlacement,
    encode,
)
from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.core.rules.mirror_policy import ALWAYS, WHEN_SYNCED, MirrorPolicy
from leveret.model.errors import LeveretError
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


@pytest.mark.parametrize(
    ("mirrors", "synchronised", "majority", "on_failure", "alive", "has_successor"),
    [
        ("", "", False, ALWAYS, "ab", False),
        ("b", "b", False, WHEN_SYNCED, "ab", True),
        ("b", "", False, WHEN_SYNCED, "ab", False),
        ("b", "", False, ALWAYS, "ab", True),
        ("b", "b", False, ALWAYS, "a", False),
        ("bc", "bc", True, WHEN_SYNCED, "abc", True),
        # One of the two may have what the other lacks.
        ("bc", "bc", True, WHEN_SYNCED, "ab", False),
        # The record says that one has everything, however many others have a copy.
        ("bc", "b", True, WHEN_SYNCED, "abc", True),
        ("b", "b", True, WHEN_SYNCED, "ab", True),
        ("bc", "b", True, WHEN_SYNCED, "ac", False),
    ],
)
def test_a_queue_has_a_successor_if_one_would_be_chosen_at_the_loss_of_its_leader(
    mirrors: str, synchronised: str, majority: bool, on_failure: str, alive: str, has_successor: bool
) -> None:
    """A count of its own said that a queue waits which another node led on in fact."""
    placed = Placement(
        1, "a", "a1", 1, tuple(mirrors), tuple(synchronised), stopped=("d",), majority=majority
    )
    policy = MirrorPolicy(mode="exactly", params=4, promote_on_failure=on_failure)
    here = commands("a", Answers())
    parts, state = cast("Any", here)._parts, cast("Any", here)._member.state
    state.alive = dict.fromkeys(alive)
    parts.locations = SimpleNamespace(known=lambda key: placed, policy=lambda definition: policy)
    parts.roles = SimpleNamespace(is_synchronising=lambda key: False)
    assert here.placement(("/", "first")).has_successor is has_successor


class RefusingLeader(Answers):
    """A leader of queues of which the first to move cannot, or is gone by then."""

    def __init__(self, refusal: str) -> None:
        super().__init__()
        self.refusal = refusal
        self.on_move: Callable[[], object] = lambda: None

    async def over_the_link(self, what: str, about: Any) -> dict[str, Any]:
        answer = await super().over_the_link(what, about)
        if what == "move" and len(self.moved) == 1:
            self.on_move()
            if self.refusal == "error":
                raise LeveretError("node a did not take all of queue 'second' in time")
            return {"moved": self.refusal == "gone"}
        return answer


@pytest.mark.parametrize(
    ("refusal", "moved"),
    [("error", ["second", "first"]), ("not now", ["second", "first"]), ("gone", ["second"])],
)
def test_a_queue_that_does_not_move_or_is_deleted_meanwhile_keeps_no_other_one(
    refusal: str, moved: list[str]
) -> None:
    """The rebalance ended there, with an error, and the remaining queues stayed."""
    leader = RefusingLeader(refusal)
    commands("b", leader).answer_with(_unused)
    here = commands("a", Answers(), leader)
    if refusal == "gone":
        leader.on_move = lambda: cast("Any", here)._member.state.placements.pop(("/", "first"))
    asyncio.run(here.rebalance("all", ".*", ".*"))
    assert leader.moved == moved


class ForgetfulStore:
    """An etcd in which a mirror takes over a queue while the first record is written."""

    def __init__(self, state: ClusterState) -> None:
        self.revision = 0
        self.entries: dict[str, int] = {}
        self.written: list[str] = []
        self._state = state

    def put(self, key: str, value: bytes) -> None:
        self.revision += 1
        self.entries[key] = self.revision
        self._state.apply([Event(key, value, self.revision)], self.revision)

    async def transact(self, transaction: StoreTransaction) -> int | None:
        for each in transaction.conditions:
            if self.entries.get(each.key, 0) != cast("Any", each).modified:
                return None
        for write in transaction.writes:
            assert isinstance(write, PutKey)
            self.written.append(write.key)
            self.put(write.key, write.value)
        self.put(self._state.keys.placement("/", "second"), encode(Placement(2, "d", "d1", 4)))
        return self.revision


def test_the_record_of_a_mirror_that_leads_by_now_is_not_replaced_when_the_leader_before_is_forgotten() -> (
    None
):
    keys = ClusterKeys.under("/test")
    state = ClusterState(keys)
    store = ForgetfulStore(state)
    for node in "abd":
        store.put(keys.member(node), encode(MemberRecord(node, node, 1)))
    for epoch, queue in enumerate(("first", "second"), 1):
        placed = Placement(epoch, "b", "b1", 3, mirrors=("a", "d"), synchronised=("a", "d"))
        store.put(keys.placement("/", queue), encode(placed))

    @asynccontextmanager
    async def changing() -> AsyncIterator[None]:
        yield

    parts = SimpleNamespace(member=SimpleNamespace(name="a", state=state, store=store))
    here = SimpleNamespace(broker=SimpleNamespace(queues={}))
    forgetting = ClusterCommands(cast("Any", here), cast("Any", parts))
    cast("Any", forgetting).changing = changing

    with pytest.raises(LeveretError, match="the placement of queue 'second' in vhost '/' is changing"):
        asyncio.run(forgetting.forget_node("b"))

    assert store.written == [keys.placement("/", "first")]
    assert state.placements["/", "second"].placement.leader == "d"
