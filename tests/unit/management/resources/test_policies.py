from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leveret.model.definitions import Queue
from leveret.model.patterns import compiled

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

COSTLY = "^(?=(a+)+$)a"
POLICY = {"pattern": COSTLY, "definition": {"max-length": 5}, "priority": 0}


@pytest.mark.parametrize("place", ["policies", "operator-policies", "definitions"])
def test_a_costly_pattern_is_asked_for_one_queue_at_a_time_wherever_its_policy_comes_from(
    admin: Client, node: FakeNode, place: str
) -> None:
    for number in range(1, 40):
        node.broker.declare_queue(Queue(name="a" * number, vhost="/"))
    kept = compiled(COSTLY)._answers
    kept.clear()
    if place == "definitions":
        policies = [POLICY | {"vhost": "/", "name": "p", "apply-to": "all"}]
        assert admin.post("/api/definitions", policies=policies).status_code == 204
    else:
        assert admin.put(f"/api/{place}/%2F/p", **POLICY).status_code == 201
    assert not kept, "the change itself asks nothing"
    for count in range(1, 4):
        assert node.broker.refresh_policies(lambda: True)
        assert len(kept) == count
    node.broker.refresh_policies()
    assert all(node.broker.policies_of_queue(queue).definition for queue in node.broker.queues.values())
