"""RabbitMQ's suites about mirrored queues, case by case: the same stories leave the same transcripts.

`make conformance` plays them on a cluster of RabbitMQ 3.10.8, which must show what transcripts.txt says. Leveret must
show the same, but for what it does otherwise on purpose (DIFFERENT): `make test` plays a few cases on it
(IN_EACH_TEST), `make test-stories` the others, and `make torture` those whose faults a quicker test finds (FOUND_BY).
LEVERET_RECORD_TRANSCRIPTS=1 has RabbitMQ's transcripts written anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.testing.mirror_scenarios import (
    clustering_management,
    dynamic_ha,
    eager_sync,
    firehose,
    many_node_ha,
    priority_queue,
    queue_master_location,
    simple_ha,
    sync_detection,
)
from leveret.testing.mirror_scenarios.stage import Case
from tests.cluster.conftest import LEVERET, RABBITMQ, RECORD, House, unavailable

SUITES: Final = (
    simple_ha,
    dynamic_ha,
    sync_detection,
    eager_sync,
    priority_queue,
    queue_master_location,
    clustering_management,
    firehose,
    many_node_ha,
)
# Those that can use the same cluster one after the other; in it, as their suites have them.
CASES: Final = sorted(
    (case for suite in SUITES for case in suite.CASES), key=lambda case: (case.alone, case.nodes, case.config)
)
DIFFERENT: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    # A mirror that comes back is told what it lacks: nothing of what it has is thrown away.
    "sync_detection.returning_mirror": (("ha.two.test: 0 synchronised", "ha.two.test: 1 synchronised"),),
    # A leader that stops in order synchronises what it can before another one leads.
    "dynamic_ha.promote_on_shutdown": (
        ("B declares ha.promote.test: 0 messages", "B declares ha.promote.test: 10 messages"),
    ),
    "eager_sync.eager_sync": (("C takes from ha.two.test: nothing", "C takes from ha.two.test: 0-999"),),
}
"""By case, lines of RabbitMQ's and what stands there instead."""

FOUND_BY: Final = {
    "unit/core/replication/test_leader_and_mirrors.py": """
        dynamic_ha.change_cluster dynamic_ha.failing_random_policies dynamic_ha.random_policy
        dynamic_ha.promote_follower_after_standalone_restart_of_the_other""",
    "unit/core/replication/test_new_queue_leader.py": """
        queue_master_location.calculate_client_local queue_master_location.calculate_random
        queue_master_location.calculate_min_master_with_bindings queue_master_location.declare_policy
        queue_master_location.declare_policy_all queue_master_location.declare_policy_nodes
        queue_master_location.declare_with_random_and_some_nodes_under_maintenance""",
    "conformance/test_dead_letters.py": "simple_ha.rejects_survive_stop_dlx simple_ha.rejects_survive_policy_dlx",
    "unit/session/forwarding/test_failover.py": "simple_ha.auto_resume_no_ccn_client simple_ha.consume_survives_stop",
    "unit/testing/simulation/test_worlds.py": "many_node_ha.kill_intermediate simple_ha.confirms_survive_stop",
    "cluster/test_operators.py": """
        clustering_management.forget_cluster_node clustering_management.forget_removes_things""",
    # Each asks less than another case: rebalance_exactly, mirror_queue_sync_order, follower_synchronization.
    "cluster/test_suites.py": """
        dynamic_ha.rebalance_nodes priority_queue.mirror_queue_order sync_detection.follower_synchronization_ttl""",
}
"""By the file that finds their faults, too: cases that are played on Leveret by hand, in `make torture`."""
BY_HAND: Final = set(" ".join(FOUND_BY.values()).split())

IN_EACH_TEST: Final = frozenset(
    {
        "dynamic_ha.rapid_change",
        "eager_sync.eager_sync_auto",
        "priority_queue.mirror_queue_sync_order",
        "simple_ha.consume_survives_sigkill",
        "simple_ha.declare_synchrony",
        "sync_detection.follower_synchronization",
    }
)
"""Cases that `make test` plays on Leveret, of what mirrors are for; `make test-stories` plays all others."""


def on_rabbitmq(case: Case) -> Any:
    marks = [pytest.mark.oracle, pytest.mark.rabbitmq, pytest.mark.timeout(900)]
    group = pytest.mark.xdist_group("rabbitmq-cluster")
    return pytest.param(case, RABBITMQ, marks=[*marks, group], id=f"{case.name}-{RABBITMQ}")


def on_leveret(case: Case) -> Any:
    marks = [pytest.mark.torture] if case.name in BY_HAND else []
    if case.name not in BY_HAND | IN_EACH_TEST:
        marks = [pytest.mark.story]
    group = pytest.mark.xdist_group("cluster-suites")
    return pytest.param(case, LEVERET, marks=[*marks, group], id=f"{case.name}-{LEVERET}")


@pytest.mark.parametrize(("case", "kind"), [*map(on_rabbitmq, CASES), *map(on_leveret, CASES)])
def test_a_case_leaves_the_transcript_that_rabbitmq_leaves(
    case: Case, kind: str, house: House, recorded: dict[str, list[str]], tmp_path: Path
) -> None:
    if reason := unavailable(kind):
        pytest.skip(reason)
    if kind == RABBITMQ and not case.shown:
        pytest.skip("RabbitMQ 3.10.8 does not do what its suite of 3.13 says")
    stage = house.stage(kind, case, tmp_path)
    failed = True
    try:
        case.play(stage)
        failed = False
    finally:
        house.leave(case, stage, failed=failed)
    if kind == RABBITMQ and os.environ.get(RECORD):
        recorded[case.name] = stage.lines
    assert stage.lines == expected(case, kind, recorded[case.name])


def expected(case: Case, kind: str, lines: list[str]) -> list[str]:
    """What a cluster of this kind must show."""
    differs = dict(DIFFERENT.get(case.name, ())) if kind == LEVERET else {}
    return [differs.get(line, line) for line in lines]


def test_every_case_has_a_transcript_and_every_difference_is_one(recorded: dict[str, list[str]]) -> None:
    assert {case.name for case in CASES} == recorded.keys()
    assert recorded.keys() >= BY_HAND | IN_EACH_TEST
    for name, differences in DIFFERENT.items():
        assert {theirs for theirs, _ in differences} <= set(recorded[name])
