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
