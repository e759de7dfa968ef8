"""State files that threads write: followers hear of them from the event loop, which gathers the changes for them.

A change that a thread added broke the check of the frame that the loop gathered meanwhile, and so all links.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from leveret.core.schema.decisions import SchemaDecided
from leveret.core.schema.operating_mode import OperatingMode
from leveret.runtime.process.event_history import EventHistory
from leveret.runtime.schema_sync.apply import AppliedDelta, SyncHistory
from leveret.runtime.schema_sync.decisions import NodeSchemaDecisions
from leveret.storage.state_file import StateFile

_DELTA = AppliedDelta(
    stamp=1, upstream="u", upstream_cluster="c", duration_ms=1, sent_bytes=1, received_bytes=1, puts=1, deletes=0,
    conflicts=0, refused=0, changes=[],
)  # fmt: skip


@pytest.mark.parametrize(
    "save",
    [
        lambda file: EventHistory(file, lambda: 1).add("fail_over"),
        lambda file: SyncHistory(file).add(_DELTA),
        lambda file: NodeSchemaDecisions(file, "a").decide(
            lambda _: SchemaDecided(True, OperatingMode.DOWNSTREAM)
        ),
    ],
)
async def test_followers_hear_of_what_a_thread_wrote_from_the_loop(
    tmp_path: Path, save: Callable[[StateFile], Awaitable[None]]
) -> None:
    heard: list[tuple[int, bytes | None]] = []
    file = StateFile(tmp_path / "a.json", lambda _, octets: heard.append((threading.get_ident(), octets)))
    await save(file)
    assert heard == [(threading.get_ident(), file.octets())]
