from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from leveret.management.resources.replication.divergent import lines_of
from leveret.model.errors import Corrupt, LeveretError
from tests.unit.management.fake_replication import follower, message

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

REPLICATION = "/api/replication"
MESSAGES = f"{REPLICATION}/divergent/messages"


def lines(text: str) -> list[Any]:
    return [msgspec.json.decode(line) for line in text.split("\n") if line]


def test_the_status_is_told_as_the_node_has_it(admin: Client, node: FakeNode) -> None:
    node.replication.followers = [follower("b", "2")]
    assert admin.get(f"{REPLICATION}/node").json() == node.replication.status()
    assert admin.get(f"{REPLICATION}/node?columns=role,epoch").json() == {"role": "leader", "epoch": 3}


def test_a_follower_is_promoted(admin: Client, node: FakeNode) -> None:
    node.replication.follow()
    reply = admin.post(f"{REPLICATION}/promote")
    assert reply.status_code == 200
    assert reply.json() == {
        "would_lose": node.replication.would_lose,
        "state": "leader",
        "epoch": 4,
        "promoted": True,
        "took_ms": 42,
        "held_back": None,
        "set_aside": None,
        "reason": None,
    }
    assert node.replication.calls == [("promote", False, False, None)]


def test_of_a_delayed_follower_it_is_said_what_it_applies_first(admin: Client, node: FakeNode) -> None:
    node.replication.follow("delayed")
    assert (
        admin.post(f"{REPLICATION}/promote", dry_run=True, apply_until_ms=1_700_000_000_000).status_code
        == 200
    )
    assert admin.post(f"{REPLICATION}/promote", dry_run=True, apply_delayed=True).status_code == 200
    asked = [until_ms for *_, until_ms in node.replication.calls]
    assert (asked[0], asked[1] > 1 << 60) == (1_700_000_000_000, True)
    both = admin.post(f"{REPLICATION}/promote", apply_delayed=True, apply_until_ms=1)
    assert (both.status_code, len(node.replication.calls)) == (400, 2)
    assert admin.post(f"{REPLICATION}/promote", apply_until_ms=-1).status_code == 400


def test_a_dry_run_promotes_nothing_and_is_no_failure(admin: Client, node: FakeNode) -> None:
    node.replication.follow("catching_up")
    reply = admin.post(f"{REPLICATION}/promote", dry_run=True)
    assert (reply.status_code, reply.json()["promoted"]) == (200, False)
    assert "catching_up" in reply.json()["reason"]
    assert node.replication.role == "follower"


def test_a_promotion_that_is_declined_tells_why_and_what_is_missing(admin: Client, node: FakeNode) -> None:
    node.replication.follow("joining")
    reply = admin.post(f"{REPLICATION}/promote")
    assert (reply.status_code, reply.json()["error"]) == (400, "not_promoted")
    assert reply.json()["reason"] == "this follower is joining: it does not have all that the leader has"
    assert reply.json()["would_lose"] == node.replication.would_lose
    assert admin.post(f"{REPLICATION}/promote", force=True).json()["promoted"] is True


def test_a_leader_is_not_promoted(admin: Client) -> None:
    reply = admin.post(f"{REPLICATION}/promote")
    assert (reply.status_code, reply.json()["reason"]) == (400, "this node is no follower")


def test_logs_are_compared_and_told_by_follower(admin: Client, node: FakeNode) -> None:
    node.replication.followers = [follower("b", "2")]
    node.replication.rows = [
        {"follower": name, "log": log, "match": True} for name in ("c", "b") for log in ("z", "a")
    ]
    rows = admin.post(f"{REPLICATION}/verify", follower="b", deep=True).json()
    assert [(row["follower"], row["log"]) for row in rows] == [("b", "a"), ("b", "z"), ("c", "a"), ("c", "z")]
    assert node.replication.calls == [("verify", "b", True)]


def test_a_follower_that_is_not_there_is_not_compared_with(admin: Client) -> None:
    reply = admin.post(f"{REPLICATION}/verify", follower="nosuch")
    assert (reply.status_code, reply.json()["reason"]) == (404, "no follower 'nosuch' is connected")


def test_a_scrub_tells_what_it_found(admin: Client, node: FakeNode) -> None:
    found = admin.post(f"{REPLICATION}/scrub").json()
    assert (found["chunks"], found["unrepaired"], node.replication.calls) == (40, [], ["scrub"])


def test_reports_of_what_was_set_aside_are_listed(admin: Client, node: FakeNode) -> None:
    node.replication.quarantine(message(7))
    assert admin.get(f"{REPLICATION}/divergent").json() == node.replication.reports


def test_messages_that_were_set_aside_come_one_a_line(admin: Client, node: FakeNode) -> None:
    odd = message(8, payload="two\nlines\u2028", payload_encoding="string")
    node.replication.quarantine(message(7), odd)
    node.replication.quarantine(message(9, report="r2"), report="r2")
    reply = admin.get(MESSAGES)
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert lines(reply.text) == node.replication.messages
    assert [each["offset"] for each in lines(admin.get(f"{MESSAGES}?report=r2").text)] == [9]


def test_where_nothing_was_set_aside_there_are_no_lines(admin: Client) -> None:
    reply = admin.get(MESSAGES)
    assert (reply.status_code, reply.text) == (200, "")


def test_a_report_that_is_not_there_is_not_found(admin: Client) -> None:
    reply = admin.get(f"{MESSAGES}?report=nosuch")
    assert (reply.status_code, reply.json()["reason"]) == (404, "there is no report 'nosuch'")


@pytest.mark.parametrize(
    "failure",
    [LeveretError("cannot be read"), Corrupt("log", "1", 9, 0, "cannot be read"), OSError("cannot be read")],
)
def test_a_message_that_cannot_be_read_ends_the_lines_with_the_reason(
    admin: Client, node: FakeNode, failure: Exception
) -> None:
    node.replication.quarantine(message(7))
    node.replication.failure = failure
    first, last = lines(admin.get(MESSAGES).text)
    assert first["offset"] == 7
    assert (last["error"], "cannot be read" in last["reason"]) == (type(failure).__name__, True)


def test_messages_are_read_no_faster_than_they_are_taken(node: FakeNode) -> None:
    """However many there are, only a few are held."""
    replication = node.replication
    replication.quarantine(*(message(offset, payload="x" * 1000) for offset in range(1000)))

    async def take_one() -> bytes:
        return await anext(lines_of(replication.divergent_messages(None)))

    piece = asyncio.run(take_one())
    assert 64 * 1024 < len(piece) < 2 * 64 * 1024
    assert replication.read == len(lines(piece.decode())) < 100


@pytest.mark.parametrize(
    ("tag", "method", "path", "is_let_in"),
    [
        ("monitoring", "GET", "node", True),
        ("monitoring", "GET", "divergent", True),
        ("monitoring", "GET", "divergent/messages", False),
        ("monitoring", "POST", "promote", False),
        ("monitoring", "POST", "verify", False),
        ("monitoring", "POST", "scrub", False),
        ("management", "GET", "node", False),
        ("administrator", "POST", "scrub", True),
    ],
)
def test_who_may_what(
    node: FakeNode, client_as: Callable[..., Client], tag: str, method: str, path: str, is_let_in: bool
) -> None:
    node.add_user("user", tag)
    reply = client_as("user").request(method, f"{REPLICATION}/{path}")
    assert reply.status_code == (200 if is_let_in else 401)


def test_followers_are_shown_with_their_node_by_lavinmqs_names(admin: Client, node: FakeNode) -> None:
    node.replication.followers = [follower("b", "2", lag_bytes=17, state="catching_up", in_sync=False)]
    for shown in (admin.get("/api/nodes").json()[0], admin.get("/api/nodes/leveret@test").json()):
        assert shown["followers"] == [
            {
                "id": "2",
                "name": "b",
                "remote_address": "127.0.0.1:40000",
                "state": "catching_up",
                "in_sync": False,
                "sent_bytes": 5000,
                "acked_bytes": 5000,
                "lag_in_bytes": 17,
                "compression_ratio": 2.5,
            }
        ]
