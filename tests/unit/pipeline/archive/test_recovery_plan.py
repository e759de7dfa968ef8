"""The documents of a plan: it counts as done when all that a later recovery asks it for is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from leveret.pipeline.archive import recovery_plan as module
from leveret.pipeline.archive.recovery_plan import PlanDirectory, PlanOutcome
from leveret.pipeline.recovery.publish import PlanReader, queue_outcome
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.pipeline.recovery.test_unsettled import VHOST, Standby


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("step", ["write_table", "write_document", "delete_tree"])
@pytest.mark.parametrize("is_made", [False, True], ids=["before", "behind"])
def test_a_plan_that_is_done_has_what_it_recovered_and_one_that_is_not_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_made: bool
) -> None:
    upstream = StandbyUpstream()
    upstream.publish(VHOST, "a", [stored_message(b"%d" % number) for number in range(3)])
    standby = Standby(tmp_path)
    standby.transfer(upstream)
    directory = cast(PlanDirectory, standby.plan())
    plan = directory.load()
    orders = PlanReader(directory).orders(["a"])
    outcome = PlanOutcome(
        plan_id=plan.plan_id,
        vhost=VHOST,
        number=plan.number,
        selection=plan.selection,
        finished_ms=1,
        queues=[queue_outcome("a", orders["a"])],
    )
    works = getattr(module, step)

    def killed(*arguments: Any, **named: Any) -> None:
        if is_made:
            works(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, step, killed)
        with pytest.raises(Killed):
            directory.finish(outcome)
    if not directory.is_done:
        directory.finish(outcome)
    assert directory.outcome() == outcome
    assert directory.recovered().num_rows == 1
    assert standby.promote() == 0


@pytest.mark.parametrize("settled", [[], [0], [4], [9], [0, 1, 5, 9]])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_what_a_plan_recovered_is_the_same_by_what_its_parts_say_and_by_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: list[int], count: int
) -> None:
    upstream = StandbyUpstream()
    for number in range(10):
        upstream.publish(VHOST, "a", [stored_message(b"%d" % number)])
    for offset in settled:
        upstream.settle(VHOST, "a", [(offset, 1)])
    standby = Standby(tmp_path, chunks_per_file=3)
    standby.transfer(upstream)
    directory = cast(PlanDirectory, standby.plan())
    parts = directory.load().parts
    offsets = PlanReader(directory).orders(["a"])["a"].offsets[:count].tolist()
    count, spans = len(offsets), module.spans_in_order(parts)
    assert spans is not None
    assert spans[0].first == offsets[0]
    for by_parts in (True, False):
        if not by_parts:
            monkeypatch.setattr(module, "_dense_ranges", lambda *given: None)
        directory._keep_identities({"a": count})
        ranges = directory.recovered().select(["first", "count"]).to_pylist()
        found = [offset for each in ranges for offset in range(each["first"], each["first"] + each["count"])]
        assert found == offsets
