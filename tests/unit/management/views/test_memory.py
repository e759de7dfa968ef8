from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.management.views.memory import memory_of, relative
from leveret.model.definitions import Queue

if TYPE_CHECKING:
    from tests.unit.management.conftest import FakeNode


def test_the_uses_of_memory_add_up_to_what_is_resident(node: FakeNode) -> None:
    shown = memory_of(node)
    uses = {name: octets for name, octets in shown.items() if isinstance(octets, int)}
    assert sum(uses.values()) == shown["total"]["rss"]
    assert shown["code"] > 0
    assert relative(shown)["total"] == 100


def test_what_waits_counts_for_the_type_of_its_queue(node: FakeNode) -> None:
    for name in ("classic", "quorum"):
        queue = node.broker.declare_queue(
            Queue(name=name, vhost="/", durable=True, arguments={"x-queue-type": name})
        )
        node.add_messages(queue, 100 if name == "quorum" else 3)
    shown = memory_of(node)
    assert shown["quorum_queue_procs"] > shown["queue_procs"] > 0
    assert shown["stream_queue_procs"] == 0
