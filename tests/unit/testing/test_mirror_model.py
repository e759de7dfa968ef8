"""The order of steps by which a mirrored queue is kept, in a model: whatever happens, nothing confirmed is lost.

What is done right is right for every seed; what is done wrong on purpose (mirror_model.WRONG) is found out by a seed
that is known to. Where a change of the model moves chance, `hunt(wrong, range(20_000))` finds another.
"""

from __future__ import annotations

import pytest

from leveret.testing.mirror_model import WRONG, Stuck, Violation, hunt, run

FOUND = {
    "recorded before promises wait": 22,
    "promises wait no longer before the record shrinks": 7,
    "a record that is not seen does not matter": 176,
    "what was fulfilled stays so": 903,
    "majority by policy": 2944,
    "a majority shrinks at once": 148,
    "all stay recorded after a majority": 1734,
    "hands over to all": 2587,
    "who is given a queue need not have it": 2613,
    "mirrors' acks need no lease": 245,
    "the lease outlives itself": 20,
    "served before it was followed": 2251,
    "ends are told before they are synced": 256,
    "an older answer counts": 18,
    "a move and a record at once": 198,
    "acks before the disk": 7,
    "a damaged copy is put away while it is recorded": 2723,
    "looked before it was announced": 8521,
    "begun anew while recorded": 5411,
}
"""By what is done wrong: a seed that shows what comes of it."""
FOUND_DRAINED = {
    "an empty copy leaves nothing on the disk": 11,
    "late by the oldest chunk alone": 0,
}
"""The same for a queue that is idle and drained most of the time, whose nodes stop and start."""


def test_nothing_confirmed_is_lost_and_all_comes_right_again() -> None:
    reports = [run(seed) for seed in range(200)]
    assert sum(report.confirmed for report in reports) > 2_000
    assert sum(report.promotions for report in reports) > 40
    assert sum(report.losses for report in reports) > 20, "allowed ones: nobody was left who had all"


def test_a_drained_queue_goes_round_with_its_nodes_restarts() -> None:
    reports = [run(seed, drains=True) for seed in range(150)]
    assert sum(report.promotions for report in reports) > 50
    assert all(run(seed, steps=2_000, drains=True).confirmed for seed in range(20_000, 20_005))


@pytest.mark.story
def test_long_runs() -> None:
    assert all(run(seed, steps=3_000).confirmed for seed in range(10_000, 10_012))


def test_a_run_is_its_seeds_alone() -> None:
    assert run(5) == run(5) != run(6)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_must_not_be_is_found_out(wrong: str) -> None:
    drains = wrong in FOUND_DRAINED
    seed = (FOUND | FOUND_DRAINED)[wrong]
    found = hunt(wrong, [seed], drains=drains)
    assert found is not None
    assert not isinstance(found[1], Stuck)
    assert run(seed, heals=False, drains=drains), "done right, the same chance does no harm"


def test_a_violation_tells_what_led_to_it() -> None:
    with pytest.raises(Violation, match=r"(?s)n\d .*\nn0 starts as n0\.1\n.*\nn0 leads in term 1"):
        run(FOUND["acks before the disk"], wrong=["acks before the disk"])
