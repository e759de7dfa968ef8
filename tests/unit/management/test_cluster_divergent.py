"""Quarantined messages of a cluster: any node lists those of all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from leveret.management.resources.replication import divergent
from leveret.model.errors import LeveretError
from tests.unit.management.fake_replication import message
from tests.unit.management.trio import A, B, C, Trio


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(tmp_path)


def test_every_node_lists_what_all_nodes_have_quarantined(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divergent, "PIECE_BYTES", 300)
    trio.nodes[A].replication.quarantine(message(1))
    trio.nodes[C].replication.quarantine(*(message(offset) for offset in range(2, 8)))
    trio.nodes[C].replication.quarantine(message(9, report="r2"), report="r2")
    for asked in (A, B, C):
        rows = trio.get(asked, "/api/replication/divergent")
        assert sorted((row["node"], row["id"], row["messages"]) for row in rows) == [
            (A, "r1", 1),
            (C, "r1", 6),
            (C, "r2", 1),
        ]
        for query, wanted in (
            ("", [(A, 1), *((C, offset) for offset in (*range(2, 8), 9))]),
            ("?report=r1", [(A, 1), *((C, offset) for offset in range(2, 8))]),
            ("?report=r2", [(C, 9)]),
        ):
            text = trio.at(asked).get(f"/api/replication/divergent/messages{query}").text
            found = [msgspec.json.decode(line) for line in text.splitlines()]
            assert sorted((each["node"], each["offset"]) for each in found) == wanted


def test_a_report_that_no_node_has_is_not_found(trio: Trio) -> None:
    reply = trio.at(A).get("/api/replication/divergent/messages?report=r7")
    assert (reply.status_code, reply.json()["reason"]) == (404, "there is no report 'r7'")


def test_a_node_whose_quarantined_messages_cannot_be_read_is_named_in_the_last_line(trio: Trio) -> None:
    trio.nodes[B].replication.quarantine(message(1))
    trio.nodes[B].replication.failure = LeveretError("cannot be read")
    text = trio.at(A).get("/api/replication/divergent/messages").text
    assert f"{B}: cannot be read" in msgspec.json.decode(text.splitlines()[-1])["reason"]
