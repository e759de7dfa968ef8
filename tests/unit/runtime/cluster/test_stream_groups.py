"""Groups of a stream whose readers are at several nodes, when one node after the other leads the stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from leveret.core.queues.queue_types import make_queue
from leveret.core.queues.stream_groups import ConsumerGroups
from leveret.model import definitions as d
from leveret.runtime.cluster.stream_groups import ClusterStreamGroups
from leveret.testing.network.waiting import until
from tests.unit.core.broker.test_broker import no_read

KEY = ("/", "s")


class Member:
    """A subscription of a client of the leader's node."""

    def __init__(self) -> None:
        self.is_active = False

    def activate(self, active: bool) -> None:
        self.is_active = active

    def end(self) -> None:
        """Nobody tells it."""


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
