"""RabbitMQ's suites about mirrored queues, case by case: the same stories leave the same transcripts.

`make conformance` plays them on a cluster of RabbitMQ 3.10.8, which must show what transcripts.txt says, and `make
test` on Leveret, which must show the same, but for what it does otherwise on purpose (DIFFERENT).
LEVERET_RECORD_TRANSCRIPTS=1 has RabbitMQ's transcripts written anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

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

KINDS: Final = [
    pytest.param(
        RABBITMQ,
        marks=[
            pytest.mark.oracle,
            pytest.mark.rabbitmq,
            pytest.mark.xdist_group("rabbitmq-cluster"),
            pytest.mark.timeout(900),
        ],
    ),
    # A group of its own, beside the other clusters: most of its time it waits for leases.
    pytest.param(LEVERET, marks=pytest.mark.xdist_group("cluster-suites")),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
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
    for name, differences in DIFFERENT.items():
        assert {theirs for theirs, _ in differences} <= set(recorded[name])
