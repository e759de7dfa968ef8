"""What would lack something if a node stopped: a table of states and sentences."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.replication.placement import QueuePlacement
from leveret.core.replication.safe_to_stop import StopDanger, follower_dangers, queue_lack

ME, B, C = "rabbit@me", "rabbit@b", "rabbit@c"
MAJORITY = "would be without a majority of its members"
COPY = "would be without a synchronised copy"
HOME = f"would be without a home: no policy has it mirrored, and its only copy is at node {ME}"
ONLY = f"would be without a home: its only copy is at node {ME}"
GONE = "would be gone: it is transient, and transient queues are not mirrored"


def mirrored(leader: str, *synchronised: str, mirrors: tuple[str, ...] = (B, C)) -> QueuePlacement:
    return QueuePlacement(
        leader,
        mirrors=mirrors,
        synchronised_mirrors=synchronised,
        recoverable_mirrors=mirrors,
        is_mirrored=True,
    )


@pytest.mark.parametrize(
    ("kind", "durable", "placed", "lack"),
    [
        ("classic", True, mirrored(ME, B), ""),
        ("classic", True, mirrored(ME), COPY),
        ("classic", True, mirrored(ME, mirrors=()), COPY),
        ("classic", True, mirrored(B, ME, mirrors=(ME, C)), ""),
        ("classic", True, mirrored(B, mirrors=(ME, C)), ""),
        ("classic", True, QueuePlacement(ME), HOME),
        ("classic", True, QueuePlacement(B), ""),
        ("classic", False, QueuePlacement(ME), GONE),
        ("classic", False, QueuePlacement(B), ""),
        ("classic", False, QueuePlacement(ME, is_exclusive=True), ""),
        ("classic", True, QueuePlacement(ME, is_exclusive=True), ""),
        ("stream", True, QueuePlacement(ME), ONLY),
        ("stream", True, QueuePlacement(B), ""),
        ("quorum", True, mirrored(ME, B, C), ""),
        ("quorum", True, mirrored(ME, B), MAJORITY),
        ("quorum", True, mirrored(B, ME, C, mirrors=(ME, C)), ""),
        ("quorum", True, mirrored(B, ME, mirrors=(ME, C)), MAJORITY),
        ("quorum", True, mirrored(B, C, mirrors=(ME, C)), ""),
        ("quorum", True, mirrored(ME, mirrors=()), MAJORITY),
        ("quorum", True, mirrored(B, ME, C, mirrors=(ME, C))._replace(state="down"), ""),
    ],
)
def test_the_lack_of_a_queue_is_said_in_a_sentence(
    kind: str, durable: bool, placed: QueuePlacement, lack: str
) -> None:
    assert queue_lack(kind, placed, ME, durable=durable) == lack


def row(name: str, *, in_sync: bool, lag_records: int | None = 0) -> dict[str, Any]:
    return {"name": name, "in_sync": in_sync, "lag_records": lag_records}


def status(role: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": role, "node_id": "me", "followers": list(rows), "leader": None, "etcd": None, **more}


def elected(*in_sync: str, leader: str | None = "a") -> dict[str, Any]:
    found = {"node_id": leader, "uri": "tcp://a:5679", "epoch": 3} if leader else None
    return {"leader": found, "in_sync": list(in_sync) or None}


LAST = StopDanger("leader", "leveret@a", "", "would be without a follower in sync")
LED = {"name": "leveret@a"}


@pytest.mark.parametrize(
    ("found", "dangers"),
    [
        (status("leader"), []),
        (status("leader", row("f", in_sync=True)), []),
        (status("leader", row("f", in_sync=True), row("g", in_sync=False, lag_records=5)), []),
        (
            status("leader", row("f", in_sync=False, lag_records=5), row("g", in_sync=False, lag_records=1)),
            [
                "would be without 5 changes that only this node has, and no other follower is in sync",
                "would be without 1 change that only this node has, and no other follower is in sync",
            ],
        ),
        (
            status("leader", row("f", in_sync=False, lag_records=None)),
            ["would be without changes that only this node has, and no other follower is in sync"],
        ),
        (
            status("leader", row("f", in_sync=False)),
            ["would be without a leader: neither it nor another follower is in sync"],
        ),
        (status("follower", row("f", in_sync=True)), ["would be without a node to follow"]),
        (status("follower", leader=LED, etcd=elected("a", "me")), [LAST.lack]),
        (status("follower", leader=LED, etcd=elected("a", "me", "c")), []),
        (status("follower", leader=LED, etcd=elected("a", "c")), []),
        (status("follower", etcd=elected()), []),
        (status("follower", etcd=elected(leader=None)), []),
        (status("fenced", row("f", in_sync=False)), []),
        (status("suspended"), []),
    ],
)
def test_the_lack_of_a_follower_or_its_leader_is_said_in_a_sentence(
    found: dict[str, Any], dangers: list[str]
) -> None:
    assert [each.lack for each in follower_dangers(found)] == dangers


def test_an_object_is_named_as_rabbitmq_names_it() -> None:
    [last] = follower_dangers(status("follower", leader=LED, etcd=elected("me", "a")))
    assert last == LAST
    assert last.readable_name == "leader 'leveret@a'"
    assert StopDanger("stream", "s", "v", ONLY).readable_name == "stream 's' in vhost 'v'"
