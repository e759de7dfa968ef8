"""collecting.queue_chunks: messages that a queue holds, as chunks for an outgoing log."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.messages import Messages, Run
from leveret.runtime.collecting.queue_chunks import relocated_chunks
from leveret.wire.chunk import split_entries
from tests.unit.core.queues.test_messages import gathered, singles


@given(singles, st.booleans(), st.data())
def test_each_message_is_copied_with_its_own_properties(
    parts: list[tuple[bytes, bytes, bytes, int]], by_columns: bool, data: st.DataObject
) -> None:
    found, each = gathered(parts, by_columns=by_columns)
    if by_columns and found:
        # One run of messages that differ, as a read of the log gives.
        routes, headers, bodies = (
            list(chain.from_iterable(getattr(one, name) for one in found))
            for name in ("routes", "headers", "bodies")
        )
        found = [Messages(routes, headers, bodies)]
    runs, offset = [], 7
    for messages in found:
        runs.append(Run(offset, messages))
        offset += len(messages)
    begin = data.draw(st.integers(7, offset))
    cut = [run.cut(max(begin, run.first), run.end) for run in runs if run.end > begin]
    queue: Any = SimpleNamespace(backlog=SimpleNamespace(each=lambda first, end: iter(cut)))
    chunks = list(relocated_chunks(queue, 1, begin, offset))
    copied = [entry for _, octets in chunks for entry in split_entries(octets)]
    wanted = [head.entry[4:] + body for head, body in each][begin - 7 :]
    assert [bytes(entry) for entry in copied] == wanted
    assert sum(header.records for header, _ in chunks) == offset - begin
