"""A failure that many things have at once is logged once in half a minute, and the others are counted."""

from __future__ import annotations

from leveret.runtime.process.sparse_log import SPARSE_MS, SparseLog


def test_the_first_failure_is_logged_and_the_others_are_counted_until_the_next_line() -> None:
    now_ms = 5
    failures = SparseLog(lambda: now_ms)
    assert failures.others() == 0
    assert [failures.others() for _ in range(200)] == [None] * 200
    now_ms += SPARSE_MS - 1
    assert failures.others() is None
    now_ms += 1
    assert failures.others() == 201
    assert failures.others() is None
    now_ms += 100 * SPARSE_MS
    assert failures.others() == 1
