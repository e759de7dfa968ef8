"""A new owner of a vhost needs what the holder has, and under load no more than that."""

from __future__ import annotations

from typing import Any

import pytest

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
    ("name", "steps"),
    [
        ("everything is enough", [(1, row((9, 0)), True, True)]),
        ("news of a silent upstream is not", [(1, row((9, 0), heard=None), False, False)]),
        ("a link that does not work is not", [(1, row((9, 0), state="connecting"), False, False)]),
        (
            "records that the upstream dropped are missing",
            [(1, row((9, 0), missing_records=1), False, False)],
        ),
        (
            "under load a holder that runs is ahead",
            [(1, row((5, 5)), True, False), (1, row((50, 5)), True, False)],
        ),
        (
            "of a lost holder what the upstream had after its loss is enough",
            [(1, row((5, 5)), False, False), (1, row((9, 4)), False, False), (1, row((10, 6)), False, True)],
        ),
        (
            "each log has to be that far",
            [
                (1, row((5, 5), (0, 8)), False, False),
                (1, row((30, 1), (7, 9)), False, False),
                (1, row((30, 1), (8, 9)), False, True),
            ],
        ),
        (
            "news from before the loss does not count",
            [(1, row((5, 5), heard=1500), False, False), (1, row((20, 5)), False, False)],
        ),
        (
            "a holder that came back meanwhile is ahead again",
            [(1, row((5, 5)), False, False), (1, row((6, 9)), True, False), (1, row((12, 9)), False, False)],
        ),
        (
            "another term begins anew",
            [(1, row((5, 5)), False, False), (2, row((12, 5)), False, False), (2, row((17, 5)), False, True)],
        ),
    ],
)
def test_a_take_over_is_done_when(name: str, steps: list[tuple[int, dict[str, Any], bool, bool]]) -> None:
    take_overs = TakeOvers()
    for number, (term, told, holder_runs, done) in enumerate(steps):
        assert take_overs.is_done(term, told, holder_runs=holder_runs) is done, (name, number)
