from __future__ import annotations

from bench.queues import definitions


def test_there_is_a_binding_for_each_queue_and_no_two_are_alike() -> None:
    found = definitions(300)
    names = [one["name"] for one in found["queues"]]
    assert len(set(names)) == 300
    assert [one["destination"] for one in found["bindings"]] == names
    assert len({one["routing_key"] for one in found["bindings"]}) == 300
