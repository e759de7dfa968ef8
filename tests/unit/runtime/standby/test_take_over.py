"""A new owner of a vhost needs what the holder has, and under load no more than that."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from leveret.core.replication.vhost_owners import VhostOwner
from leveret.runtime.standby.take_over import TakeOvers


def row(
    *logs: tuple[int, int], state: str = "connected", heard: int | None = 10, **more: Any
) -> dict[str, Any]:
    """A vhost's transfer; of each log the records that are here, and those that are not."""
    nodes = [
        {"node": f"n{number}", "transferred": here, "lag_records": lag}
        for number, (here, lag) in enumerate(logs)
    ]
    told = {
        "virtual_host": "v",
        "state": state,
        "heard_ago_ms": heard,
        "transferred": sum(here for here, _ in logs),
        "lag_records": sum(lag for _, lag in logs),
        "missing_records": 0,
        "missing_messages": 0,
        "error": "",
        "nodes": nodes if len(nodes) > 1 else [],
    }
    return told | more


@pytest.mark.parametrize(
    ("told", "is_level"),
    [
        (row((9, 0)), True),
        (row((9, 1)), False),
        (row((9, 0), heard=None), False),
        (row((9, 0), state="connecting"), False),
        (row((9, 0), missing_records=1), False),
        (row((9, 0), missing_messages=1), False),
        (row((9, 0), error="the disk is full"), False),
    ],
    ids=[
        "everything is here",
        "a record is not",
        "a silent upstream",
        "a link that does not work",
        "dropped records",
        "dropped messages",
        "an error",
    ],
)
def test_an_owner_is_level_with_a_running_holder(told: dict[str, Any], is_level: bool) -> None:
    assert TakeOvers().is_level(told) is is_level


LOST = VhostOwner("b", 2, holder="a", claimed=2, beside=("b",))
TAKEN = VhostOwner("b", 2, claimed=2, beside=("b", "a"))
Step = tuple[float, VhostOwner, dict[str, Any], bool]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("everything is enough", [(0, TAKEN, row((9, 0)), False), (3, TAKEN, row((9, 0)), True)]),
        (
            "what the upstream had at the end of the other transfer is enough",
            [(0, LOST, row((5, 5)), False), (3, LOST, row((9, 4)), False), (4, LOST, row((13, 6)), True)],
        ),
        (
            "each log has to be that far",
            [
                (0, LOST, row((1, 1), (0, 1)), False),
                (3, LOST, row((5, 5), (0, 8)), False),
                (4, LOST, row((30, 1), (7, 9)), False),
                (5, LOST, row((30, 1), (8, 9)), True),
            ],
        ),
        (
            "older reports do not count",
            [(0, TAKEN, row((9, 0)), False), (3, TAKEN, row((9, 0), heard=1500), False)],
        ),
        (
            "reports of a link that does not work do not count",
            [(0, TAKEN, row((9, 0)), False), (3, TAKEN, row((9, 0), state="connecting"), False)],
        ),
        (
            "a link that fails meanwhile is waited for",
            [
                (0, TAKEN, row((5, 5)), False),
                (3, TAKEN, row((5, 5)), False),
                (4, TAKEN, row((10, 0), state="connecting"), False),
                (5, TAKEN, row((10, 3)), True),
            ],
        ),
        (
            "another term begins anew",
            [
                (0, LOST, row((9, 0)), False),
                (3, VhostOwner("b", 4, holder="a", claimed=4, beside=("b",)), row((9, 0)), False),
            ],
        ),
        (
            "a holder that is lost after it was taken over begins nothing anew, and the logs' ids neither",
            [(0, TAKEN, row((9, 0)), False), (3, replace(TAKEN, origins={"v": 7}), row((9, 0)), True)],
        ),
    ],
)
def test_a_take_over_is_done_when(name: str, steps: list[Step]) -> None:
    take_overs = TakeOvers()
    for now_s, owner, told, done in steps:
        assert take_overs.has_all(owner, told, now_s) is done, (name, now_s)


def test_a_holder_that_came_back_meanwhile_is_ahead_again() -> None:
    take_overs = TakeOvers()
    assert not take_overs.has_all(LOST, row((9, 0)), 0.0)
    assert not take_overs.is_level(row((9, 1)))
    assert not take_overs.has_all(LOST, row((10, 0)), 3.0)
