"""Groups of a stream whose readers are at several nodes, when one node after the other leads the stream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from leveret.core.queues.queue_types import make_queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream_groups import ConsumerGroups
from leveret.core.replication.cluster import Presence
from leveret.model import definitions as d
from leveret.model.errors import LeveretError
from leveret.runtime.cluster import stream_groups
from leveret.runtime.cluster.stream_groups import ClusterStreamGroups
from leveret.testing.network.waiting import until
from tests.unit.core.broker.test_broker import no_read

KEY = ("/", "s")
GROUP = ("/", "s", "g")
ABOUT = {"vhost": "/", "stream": "s", "group": "g"}


class Member:
    """A subscription of a client."""

    def __init__(self) -> None:
        self.is_active = self.is_ended = False

    def activate(self, active: bool) -> None:
        self.is_active = active

    def end(self) -> None:
        self.is_ended = True


async def test_a_member_from_before_is_not_the_active_one_when_a_node_leads_the_stream_again() -> None:
    sent: list[tuple[str, str, Any]] = []

    async def ask(node: str, what: str, about: Any) -> dict[str, Any]:
        sent.append((node, what, about))
        return {}

    stream = make_queue(d.Queue(vhost="/", name="s", arguments={"x-queue-type": "stream"}), no_read)
    led = ConsumerGroups()
    node: Any = SimpleNamespace(
        broker=SimpleNamespace(queues={KEY: stream}), stream_server=SimpleNamespace(groups=led)
    )
    member: Any = SimpleNamespace(name="a", ask=ask, state=SimpleNamespace(alive={"b": None, "c": None}))
    groups = ClusterStreamGroups(member, node)

    def joins(at: str, number: int) -> None:
        about = {"number": number, "vhost": "/", "stream": "s", "group": "g", "partition": None}
        groups.answer(at, "join_group", about)

    joins("b", 1)
    local = Member()
    led.join(("/", "s", "g"), local, None)
    await until(lambda: sent == [("b", "activate_consumer", {"number": 1, "active": True})])
    # Another node leads it, and this one again; the members have joined elsewhere meanwhile, and ended there.
    groups.leader_changed(KEY)
    groups.leader_changed(KEY)
    led.leave(("/", "s", "g"), local)
    joins("c", 2)
    await until(lambda: sent[1:] == [("c", "activate_consumer", {"number": 2, "active": True})])
    # What comes late of a member from before changes nothing.
    groups.answer("b", "leave_group", {"number": 1, "vhost": "/", "stream": "s", "group": "g"})
    assert (local.is_active, len(sent)) == (False, 2)
    groups.stop()


async def test_a_node_that_announces_something_else_keeps_its_members_until_its_run_ends() -> None:
    """A node announces its stream listeners when readers may have connected already, and maintenance."""

    async def ask(node: str, what: str, about: Any) -> dict[str, Any]:
        return {}

    stream = make_queue(d.Queue(vhost="/", name="s", arguments={"x-queue-type": "stream"}), no_read)
    led, alive = ConsumerGroups(), {"b": Presence("b1", "uri", "", 0, "")}
    node: Any = SimpleNamespace(
        broker=SimpleNamespace(queues={KEY: stream}), stream_server=SimpleNamespace(groups=led)
    )
    member: Any = SimpleNamespace(name="a", ask=ask, state=SimpleNamespace(alive=alive))
    groups, local = ClusterStreamGroups(member, node), Member()
    groups.answer("b", "join_group", ABOUT | {"number": 1, "partition": None})
    led.join(GROUP, local, None)
    alive["b"] = replace(alive["b"], streams=("host", 5552))
    groups.node_changed("b")
    active = [local.is_active]
    alive["b"] = replace(alive["b"], run_id="b2")
    groups.node_changed("b")
    assert [*active, local.is_active] == [False, True]
    groups.stop()


class _Nodes:
    """Two nodes with a stream that the first one leads, and the link between them."""

    def __init__(self) -> None:
        self.is_cut, self.lost = False, 0
        self.led = ConsumerGroups()
        stream = make_queue(d.Queue(vhost="/", name="s", arguments={"x-queue-type": "stream"}), no_read)
        elsewhere = RemoteQueue(stream.definition, "a")
        alive = {"a": None, "b": None}
        self.groups: dict[str, ClusterStreamGroups] = {}
        for name, queue, led in (("a", stream, self.led), ("b", elsewhere, ConsumerGroups())):
            member: Any = SimpleNamespace(
                name=name, ask=partial(self.ask, name), state=SimpleNamespace(alive=alive)
            )
            node: Any = SimpleNamespace(
                broker=SimpleNamespace(queues={KEY: queue}), stream_server=SimpleNamespace(groups=led)
            )
            self.groups[name] = ClusterStreamGroups(member, node)

    async def ask(self, me: str, node: str, what: str, about: Any) -> Any:
        if self.is_cut:
            self.lost += 1
            raise LeveretError("not reached")
        return self.groups[node].answer(me, what, about)

    def stop(self) -> None:
        for each in self.groups.values():
            each.stop()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Nodes]:
    monkeypatch.setattr(stream_groups, "_TRY_AGAIN_S", 0.001)
    monkeypatch.setattr(stream_groups, "_TRIES", 3)
    made = _Nodes()
    yield made
    made.stop()


async def test_a_member_that_left_while_the_leader_was_not_reached_is_not_active_for_ever(
    nodes: _Nodes,
) -> None:
    remote, local = Member(), Member()
    nodes.groups["b"].join(GROUP, remote, None)
    await until(lambda: remote.is_active)
    nodes.led.join(GROUP, local, None)
    nodes.is_cut = True
    nodes.groups["b"].leave(GROUP, remote)
    await until(lambda: nodes.lost > stream_groups._TRIES)
    assert not local.is_active
    nodes.is_cut = False
    await until(lambda: local.is_active)


@pytest.mark.parametrize("at", ["join", "step down"])
async def test_a_member_that_ended_for_want_of_an_answer_leaves_its_group(nodes: _Nodes, at: str) -> None:
    remote, local = Member(), Member()
    if at == "step down":
        nodes.groups["b"].join(GROUP, remote, 1)
        await until(lambda: remote.is_active)
        nodes.led.join(GROUP, local, 1)
        await until(lambda: not remote.is_active)
        nodes.is_cut = True
        nodes.groups["b"].stepped_down(GROUP, remote)
    else:
        # The leader heard it; its answer was lost.
        nodes.groups["a"].answer("b", "join_group", {**ABOUT, "number": 1, "partition": None})
        await until(lambda: not nodes.groups["a"]._sending)
        nodes.led.join(GROUP, local, None)
        nodes.is_cut = True
        nodes.groups["b"].join(GROUP, remote, None)
    await until(lambda: remote.is_ended)
    nodes.is_cut = False
    await until(lambda: local.is_active)


async def test_a_member_that_did_not_hear_of_its_turn_subscribes_again(nodes: _Nodes) -> None:
    remote, local = Member(), Member()
    nodes.led.join(GROUP, local, None)
    nodes.groups["b"].join(GROUP, remote, None)
    await until(lambda: len(nodes.groups["a"]._members) == 1)
    nodes.is_cut = True
    nodes.led.leave(GROUP, local)
    await until(lambda: not nodes.groups["a"]._members)
    nodes.is_cut = False
    await until(lambda: remote.is_ended)
    assert not remote.is_active
