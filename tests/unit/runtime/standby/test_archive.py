from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from leveret.runtime.standby import archive as standby_archive
from leveret.runtime.standby.archive import SHOWN_BYTES_MAX, StandbyArchive

PROPERTIES = b"\x10\x00\x02"
"""Delivery mode 2."""


def asked(monkeypatch: pytest.MonkeyPatch, done: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Have every pipeline process answer with this; what they were asked for."""
    found: list[tuple[str, dict[str, Any]]] = []

    async def ask(task: str, job: dict[str, Any]) -> dict[str, Any]:
        found.append((task, job))
        return done

    monkeypatch.setattr(standby_archive, "ask", ask)
    return found


def archive(folder: Path) -> StandbyArchive:
    return StandbyArchive(str(folder), folder, "leveret@us", {})


def test_the_kept_history_begins_where_all_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [
        {"vhost": "v", "oldest_ms": 10, "timestamp": 50},
        {"vhost": "v", "oldest_ms": 20, "timestamp": 90},
        {"vhost": "w", "oldest_ms": 5, "timestamp": 6},
    ]
    vhosts = [{"vhost": name, "known_from_ms": since} for name, since in (("v", 0), ("w", 6), ("empty", 0))]
    asked(monkeypatch, {"queues": queues, "vhosts": vhosts})
    assert asyncio.run(archive(tmp_path).moments()) == [
        {"virtual_host": "v", "earliest_ms": 10, "newest_ms": 90},
        {"virtual_host": "w", "earliest_ms": 6, "newest_ms": 6},
    ]


def test_an_archived_message_is_shown_as_a_divergent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    octets = {"exchange": b"ex", "routing_key": b"\xff", "properties": PROPERTIES, "body": b"\x00\xff"}
    row: dict[str, Any] = {name: base64.b64encode(value).decode() for name, value in octets.items()}
    row |= {"offset": 7, "timestamp_ms": 9, "settled": True, "body_bytes": 100_000}
    found = asked(monkeypatch, {"rows": [row]})
    [message] = asyncio.run(archive(tmp_path).messages("v", "q", 5, 3))
    [(task, job)] = found
    assert (task, job["vhost"], job["queue"], job["from_ms"], job["count"]) == ("browse", "v", "q", 5, 3)
    assert job["body_bytes_max"] == SHOWN_BYTES_MAX
    assert message == {
        "vhost": "v",
        "queue": "q",
        "offset": 7,
        "timestamp_ms": 9,
        "settled": True,
        "exchange": "ex",
        "routing_key": "\ufffd",
        "properties": {"delivery_mode": 2},
        "payload": "AP8=",
        "payload_encoding": "base64",
        "payload_bytes": 100_000,
    }
