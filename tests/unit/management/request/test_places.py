from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.management.trio import A, C, Trio


@pytest.mark.parametrize(
    ("method", "path"), [("delete", "reset"), ("get", "auth/attempts"), ("get", "healthchecks/node")]
)
def test_of_a_member_that_does_not_run_no_node_says_that_it_is_no_member(
    tmp_path: Path, method: str, path: str
) -> None:
    trio = Trio(tmp_path)
    trio.room.down.add(C)
    gone, unknown = (getattr(trio.at(A), method)(f"/api/{path}/{name}") for name in (C, "rabbit@d"))
    assert (gone.status_code, gone.json()["reason"]) == (503, f"node '{C}' does not answer")
    assert (unknown.status_code, unknown.json()["reason"]) == (
        404,
        "node 'rabbit@d' is not part of this cluster",
    )
