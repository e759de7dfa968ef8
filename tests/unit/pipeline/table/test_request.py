"""What a reader of the table may ask for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from leveret.model.errors import InvalidCommand
from leveret.pipeline.table.columns import MESSAGES
from leveret.pipeline.table.request import request_of

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
        ({"from": "2026-11-21T14:00:00Z", "to": "2026-11-21T14:00:00Z"}, "to is not later than from"),
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
