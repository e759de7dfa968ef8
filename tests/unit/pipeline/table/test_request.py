"""What a reader of the table may ask for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from leveret.model.errors import InvalidCommand
from leveret.pipeline.table.columns import MESSAGES
from leveret.pipeline.table.request import TableRequest, request_of
from leveret.pipeline.table.source import narrowed

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
NOON_MS = 1_795_521_600_000


def test_options_count_in_any_case_and_times_are_utc() -> None:
    request = request_of(
        {"path": "x", "ASOF": "2026-11-24 12:00:00", "from": "2026-11-24T13:00:00+01:00", "Queue": "q"}
    )
    assert (request.as_of_ms, request.from_ms, request.queues) == (NOON_MS, NOON_MS, frozenset({"q"}))
    assert request.end_ms == NOON_MS + 1
    assert request.columns == tuple(MESSAGES.names)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queues": "q"}, "there is no option 'queues': there are asOf, vhost"),
        ({"asOf": "yesterday"}, "option asOf: 'yesterday' is no moment"),
        ({"to": ""}, "option to: '' is no moment"),
        ({"state": "acked"}, "option state: 'acked' is none; there are pending, settled"),
        ({"columns": "queue,bodies"}, "there is no column 'bodies'"),
        ({"columns": "queue,queue"}, "column 'queue' is named twice"),
        ({"maxFilesPerTrigger": "0"}, "'0' is no number of files"),
        ({"maxFilesPerTrigger": "9" * 5000}, "is no number of files"),
    ],
)
def test_what_is_no_option_or_no_value_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidCommand, match=text):
        request_of(options)


@pytest.mark.parametrize(
    ("condition", "fields"),
    [
        (EqualTo(("vhost",), "v"), {"vhosts": frozenset("v")}),
        (In(("queue",), ("a", "b")), {"queues": frozenset("ab")}),
        (EqualTo(("state",), "pending"), {"state": "pending"}),
        (EqualTo(("state",), "lost"), {}),
        (GreaterThan(("timestamp",), NOON), {"from_ms": NOON_MS}),
        (GreaterThanOrEqual(("timestamp",), NOON), {"from_ms": NOON_MS}),
        (LessThan(("timestamp",), NOON), {"to_ms": NOON_MS + 1}),
        (LessThanOrEqual(("timestamp",), NOON), {"to_ms": NOON_MS + 1}),
        (EqualTo(("timestamp",), NOON), {"from_ms": NOON_MS, "to_ms": NOON_MS + 1}),
        (
            EqualTo(("timestamp",), datetime(2039, 1, 9, 1, 20, 24, 732000, tzinfo=UTC)),
            {"from_ms": 2178148824732, "to_ms": 2178148824733},
        ),
        (GreaterThan(("timestamp",), NOON.replace(tzinfo=None)), {}),
        (GreaterThan(("settled_at",), NOON), {}),
        (EqualTo(("headers", "queue"), "q"), {}),
        (Not(EqualTo(("queue",), "q")), {}),
        (IsNotNull(("queue",)), {}),
    ],
)
def test_a_filter_narrows_what_is_read_and_never_too_much(condition: Filter, fields: dict[str, Any]) -> None:
    assert narrowed(TableRequest(), condition) == TableRequest(**fields)


def test_filters_and_options_hold_together() -> None:
    request = request_of({"path": "x", "queue": "a", "from": "2026-11-24 13:00:00"})
    both = narrowed(narrowed(request, In(("queue",), ("a", "b"))), GreaterThan(("timestamp",), NOON))
    assert both == request
    assert narrowed(both, EqualTo(("queue",), "b")).queues == frozenset()
