"""What a promoted node says that it has of a former upstream's log, when that asks for its way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leveret.storage.state_file import StateFile
from leveret.wire.record import TRANSFERRED_FINGERPRINT_PREFIX, TRANSFERRED_PREFIX
from tests.unit.runtime.collecting.site import Site


def promotion(position: int, *, log_id: int = 7, **fields: Any) -> dict[str, Any]:
    """As standby.json keeps one; `fields` are of its vhost's row in the summary, and `wanted`."""
    wanted = fields.pop("wanted", {})
    row = {"virtual_host": "v", "unreadable_records": 0, "missing_records": 0, "missing_messages": 0}
    return {
        "begun_ms": 1,
        "done_ms": 2,
        "wanted": wanted,
        "summary": [row | fields],
        "transferred": {"v": [log_id, position]},
        "marks": {"v": position + 1},
    }


@pytest.mark.parametrize(
    ("promotions", "has"),
    [
        ([promotion(100)], 100),
        ([promotion(100), promotion(100)], 100),
        ([promotion(100, missing_messages=50)], 0),
        ([promotion(100, missing_records=50)], 0),
        ([promotion(100, unreadable_records=3)], 0),
        ([promotion(100, unreadable_records=3), promotion(100)], 0),
        ([promotion(100, wanted={"queues": ["a"]})], 0),
        ([promotion(100, wanted={"exclude": ["v"]})], 0),
        ([promotion(100, wanted={"as_of_ms": 5})], 0),
        ([promotion(100, wanted={"queues": ["a"]}), promotion(100)], 100),
        ([promotion(100), promotion(100, wanted={"queues": ["a"]})], 100),
        ([promotion(50, log_id=6, missing_messages=1), promotion(100)], 100),
        ([promotion(100), promotion(50, log_id=6)], None),
        ([], None),
    ],
)
async def test_a_promoted_node_claims_only_what_it_has_all_of(
    directory: Path, promotions: list[dict[str, Any]], has: int | None
) -> None:
    state = {"operating_mode": "upstream", "promotions": promotions}
    StateFile(directory / "standby.json").save(state)
    site = await Site.started(directory)
    assert site.node.stream_server.query_offset("v", f"{TRANSFERRED_PREFIX}7") == has
    assert site.node.stream_server.query_offset("v", f"{TRANSFERRED_FINGERPRINT_PREFIX}7") == (
        (has and has + 1) or None
    )
