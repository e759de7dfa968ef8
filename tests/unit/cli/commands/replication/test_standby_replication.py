"""What the status of message replication says to somebody who was woken for it."""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.cli.api import Api
from leveret.cli.command import Session
from leveret.cli.commands.replication.standby_replication import (
    export_standby_data,
    standby_replication_status,
)
from leveret.cli.output.formatters import as_table
from leveret.cli.output.values import ReportLines

SIDE = {
    "node": "leveret@b",
    "operating_mode": "downstream",
    "state": "connected",
    "upstream_endpoints": ["a:5552"],
    "upstream_username": "replicator",
    "operating_mode_source": "configuration",
    "error": "",
    "promotion": None,
    "left_out": None,
    "vhosts": [],
    "collected": [],
    "downstreams": [],
    "untagged": [],
}
LINK = {
    "virtual_host": "orders",
    "state": "connected",
    "endpoint": "a:5552",
    "transferred": 1_234_567,
    "is_archive_read": True,
    "lag_records": 0,
    "lag_ms": 0,
    "heard_ago_ms": 200,
    "missing_records": 0,
    "missing_messages": 0,
    "last_timestamp": 5,
    "newest_age_ms": 41_000,
    "error": "",
}


def shown(**status: Any) -> dict[str, str]:
    """The lines for a person, and under `table` the columns."""
    api = SimpleNamespace(get=lambda *path: {**SIDE, **status})
    ctl = Session(lambda: nullcontext(cast(Api, api)), ExitStack(), quiet=True)
    report = cast(ReportLines, standby_replication_status.action(ctl))
    assert report.table is not None
    printed = as_table(report.table, headers=True)
    assert all(len(line.expandtabs(8)) <= 80 for line in printed.splitlines()), printed
    return {title: str(text) for title, text in report.lines} | {"table": ",".join(report.table.columns)}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "all records of the upstream are here; the newest record here is 41 s old"),
        (
            {"heard_ago_ms": 40_000, "state": "connecting", "error": "refused"},
            "no news from the upstream for 40 s: its records since then are not known; all earlier records are here; "
            "the newest record here is 41 s old; refused",
        ),
        (
            {"heard_ago_ms": 200_000, "lag_records": 7},
            "no news from the upstream for 3 min 20 s (200 s): its records since then are not known; 7 records that "
            "the upstream had when it was last heard, 3 min 20 s (200 s) ago are not here; the newest record here is "
            "41 s old",
        ),
        (
            {"heard_ago_ms": None, "newest_age_ms": None},
            "no news from the upstream since this node started: its records are not known; no record is here",
        ),
        (
            {"heard_ago_ms": None, "newest_age_ms": None, "is_archive_read": False},
            "no news from the upstream since this node started: its records are not known; "
            "the stored records are not counted yet",
        ),
        (
            {"lag_records": 7, "lag_ms": 900},
            "7 records are missing, a lag of 0.9 s; the newest record here is 41 s old",
        ),
        (
            {"missing_records": 3, "missing_messages": 2},
            "all records of the upstream are here; the newest record here is 41 s old; 3 records never arrived, "
            "because its retention was too short; up to 2 messages of its queues will not arrive: see the dry run",
        ),
    ],
)
def test_what_is_here_is_told_in_words(fields: dict[str, Any], text: str) -> None:
    assert shown(vhosts=[LINK | fields])["Of orders"] == text


def test_a_promotion_is_told_from_any_shell_and_one_that_ended_half_way_is_not_told_as_running() -> None:
    begun = {"begun_ms": time.time() * 1000 - 12_000, "error": "", "plans_error": "", "vhosts": []}
    row = {"virtual_host": "orders", "queues": 2, "messages": 9, "queues_left": 1, "messages_left": 5}
    runs = shown(promotion={**begun, "is_running": True, "step": "recovering", "vhosts": [row]})
    assert runs["Promotion"] == "begun 12 s ago; recovering"
    assert runs["Left of orders"] == "5 of 9 messages, in 1 of 2 queues"
    ended = shown(promotion={**begun, "is_running": False, "vhosts": [row]})
    assert "was interrupted and does not run" in ended["Promotion"]
    assert "downstream continues it" in ended["Promotion"]
    assert ended["Left of orders"] == "5 of 9 messages, in 1 of 2 queues"
    assert shown(promotion={**begun, "is_running": False})["Left"] == "not counted yet"
    damaged = shown(promotion={**begun, "is_running": False, "plans_error": "plan.json: gone"})
    assert damaged["Left"] == "not known, its plans cannot be read: plan.json: gone"


def test_what_promotions_left_out_is_named_and_counted() -> None:
    left: dict[str, Any] = {"exclude": ["tmp"], "only_queues": ["q", "r"], "as_of_ms": None}
    row = {"virtual_host": "tmp", "queues": 2, "messages": 9, "unreadable_records": 0}
    told = shown(operating_mode="upstream", left_out={**left, "vhosts": [row]})
    assert told["Left out by the last promotion"].startswith("all queues but q, r; virtual hosts tmp (")
    assert told["Left out of tmp"] == "9 messages in 2 queues"
    damaged = shown(left_out={**left, "vhosts": [row | {"unreadable_records": 3}]})["Left out of tmp"]
    assert damaged == "9 messages in 2 queues, and 3 unreadable records"
    assert shown(left_out={**left, "vhosts": []})["Left out"] == "nothing that is not recovered"
    before_there_was_a_count = shown(left_out={**left, "vhosts": None})
    assert not {"Left out", "Left out of tmp"} & before_there_was_a_count.keys()


def test_a_virtual_host_that_is_replicated_in_vain_is_told() -> None:
    assert "does not have the tag standby_replication" in shown(untagged=["w"])["Of w"]


def test_an_upstream_shows_what_it_collects_and_who_has_it() -> None:
    row = {
        "virtual_host": "orders",
        "queues": 3,
        "records": 900,
        "kept": 400,
        "bytes": 2_500_000,
        "oldest_ms": time.time() * 1000 - 7_200_000,
        "downstreams": 2,
        "slowest_lag_records": 12,
        "missing_messages": 0,
        "error": "",
    }
    downstream = {
        "virtual_host": "orders",
        "downstream": "eu.2",
        "transferred": 888,
        "lag_records": 12,
        "last_seen": 5,
    }
    found = shown(operating_mode="upstream", collected=[row], downstreams=[downstream])
    assert found["Of orders"] == (
        "3 replicated queues, 900 records collected, 400 of them kept (2.5 MB, the oldest 2 h (7200 s) old); "
        "2 downstreams, the slowest 12 records behind"
    )
    assert found["table"] == "virtual_host,downstream,transferred,lag_records,last_seen"


def test_an_export_says_what_it_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    """A row a queue; in a pipe the progress is lines of text."""
    asked: list[Any] = []
    row = {"vhost": "v", "queue": "q", "messages": 3, "pending": 1}

    def stream(*path: str, body: Any) -> Any:
        asked.append((path[-1], body))
        yield {"progress": {"event": "exporting", "messages": 3}}
        yield {"progress": {"event": "exported", "messages": 3}}
        yield {"summary": [row]}

    api = SimpleNamespace(stream=stream)
    session = Session(lambda: nullcontext(cast(Api, api)), ExitStack())
    table = export_standby_data.action(session, "/exports/today", queue="q", as_of="2026-11-24")
    assert "".join(as_table(table, headers=True)).split() == [
        "vhost",
        "queue",
        "messages",
        "pending",
        "v",
        "q",
        "3",
        "1",
    ]
    assert capsys.readouterr().err == "exporting 3 messages\n3 of 3 messages done\n"
    [(what, body)] = asked
    assert what == "export"
    assert {name: value for name, value in body.items() if value} == {
        "target": "/exports/today",
        "format": "parquet",
        "queue": "q",
        "as_of": "2026-11-24",
    }
