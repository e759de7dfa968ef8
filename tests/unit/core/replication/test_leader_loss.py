"""What becomes of a queue whose leader's node is lost."""

from __future__ import annotations

import pytest

from leveret.core.replication.leader_loss import DELETED, PROMOTED, WAITS, outcome


@pytest.mark.parametrize(
    ("durable", "exclusive", "has_successor", "expected"),
    [
        (True, False, True, PROMOTED),
        (True, False, False, WAITS),
        (False, False, True, DELETED),
        (True, True, True, DELETED),
    ],
)
def test_a_queue_is_promoted_waits_or_is_deleted(
    durable: bool, exclusive: bool, has_successor: bool, expected: str
) -> None:
    assert outcome(durable=durable, is_exclusive=exclusive, has_successor=has_successor) == expected
