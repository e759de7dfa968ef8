from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leveret.model.definitions import Change, Put, Queue
from leveret.model.patterns import compiled

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

COSTLY = "^(?=(a+)+$)a"


@pytest.mark.parametrize("path", ["/api/policies/%2F/p", "/api/operator-policies/%2F/p"])
def test_a_costly_pattern_was_asked_for_all_queues_before_its_policy_is_applied(
    admin: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    names = [f"{'a' * number}" for number in range(1, 40)]
    for name in names:
        node.broker.declare_queue(Queue(name=name, vhost="/"))
    kept = compiled(COSTLY)._answers
    kept.clear()
    before: list[int] = []
    apply = node.broker.apply

    def counting(change: Change) -> None:
        if isinstance(change, Put) and change.entity.key[-1] == "p":
            before.append(len(kept))
        apply(change)

    monkeypatch.setattr(node.broker, "apply", counting)
    reply = admin.put(path, pattern=COSTLY, definition={"max-length": 5}, priority=0)
    assert reply.status_code == 201
    assert before == [len(names)]
    assert all(node.broker.policies_of_queue(queue).definition for queue in node.broker.queues.values())
