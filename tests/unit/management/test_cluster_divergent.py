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


def test_no_event_loop_waits_for_the_reading_of_quarantined_messages(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To skip the 9,000 messages of earlier pieces took longer than a lease, and the node left its cluster."""
    monkeypatch.setattr(divergent, "PIECE_BYTES", 300)
    for node in (A, C):
        trio.nodes[node].replication.quarantine(*(message(offset) for offset in range(5)))
    text = trio.at(A).get("/api/replication/divergent/messages").text
    assert len(text.splitlines()) == 10
    assert len(trio.get(A, "/api/replication/divergent")) == 2
    # A monitor asks often, and each report is a file.
    assert trio.get(A, "/api/health/checks/alarms")["status"] == "ok"
    assert trio.get(A, "/api/health/checks/local-alarms")["status"] == "ok"
    assert [trio.nodes[node].replication.reading_loops for node in (A, C)] == [[], []]


def test_a_node_that_ends_its_link_is_named_with_what_to_do(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.nodes[B].replication.quarantine(message(1))
    ask = trio.clusters[A].ask

    async def ask_once(node: str, what: str, about: dict[str, object]) -> object:
        if str(about["path"]).endswith("/messages"):
            raise LeveretError("the link ended")
        return await ask(node, what, about)

    monkeypatch.setattr(trio.clusters[A], "ask", ask_once)
    (line,) = trio.at(A).get("/api/replication/divergent/messages").text.splitlines()
    reason = msgspec.json.decode(line)["reason"]
    assert reason == f"{B} does not answer: the link ended; ask again, or ask that node itself"
