"""The commands of followers, over the control socket of a node whose followers are what the test says."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leveret.cli.ctl import _describe, build_app, common_options_first, wanted_command
from leveret.cli.program import run
from leveret.config import load
from leveret.management.http.server import ManagementServer
from leveret.model.errors import LeveretError
from tests.unit.management.conftest import FakeNode
from tests.unit.management.fake_replication import PROGRESS, FakeReplication, follower, message

Ctl = Callable[..., tuple[int, str, str]]


@contextmanager
def serving(node: FakeNode) -> Iterator[None]:
    """The node's HTTP doors, in a thread of their own."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        server = ManagementServer(node, load(None, {"management.tcp.port": "0"}))
        await server.start()
        ready.set()
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    node = FakeNode(tmp_path / "data")
    node.data_dir.mkdir()
    with serving(node):
        yield node


@pytest.fixture
def replication(node: FakeNode) -> FakeReplication:
    return node.replication


@pytest.fixture
def ctl(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Runs a command: exit status, standard output, standard error."""

    def command(*arguments: str) -> tuple[int, str, str]:
        words = common_options_first(["--data-dir", str(node.data_dir), *arguments])
        status = run(build_app(wanted_command(words)), "leveretctl", _describe, words)
        return (status, *capsys.readouterr())

    return command


def lines(text: str) -> list[str]:
    return text.splitlines()


def test_a_leader_shows_its_followers_with_its_status(ctl: Ctl, replication: FakeReplication) -> None:
    replication.followers = [
        follower("b", "2"),
        follower("c", "3", state="catching_up", in_sync=False, lag_s=None, progress=PROGRESS),
    ]
    status, out, _ = ctl("replication_status")
    assert (status, lines(out)) == (
        0,
        [
            "Replication status of node leveret@test ...",
            "Node: leveret@test",
            "Node id: 1a2b",
            "Role: leader",
            "State: leader",
            "Epoch: 3",
            "Scrub: last at 2023-11-14 22:13:20+00:00, 40 chunks read, 2 damaged, 1 repaired",
            "Followers connect to: 127.0.0.1:5679",
            "Position: 9000 bytes, 70 records",
            "Confirms wait for: this node and all followers in sync",
            "In sync: b",
            "name\taddress\tstate\tin_sync\tlag_records\tlag_bytes\tlag_s\tprogress",
            "b\t127.0.0.1:40000\tstreaming\ttrue\t0\t0\t0.0\t",
            "c\t127.0.0.1:40000\tcatching_up\tfalse\t0\t0\t\t250.0 MB of 1.0 GB, 200.0 MB/s, 4 s left",
        ],
    )


def test_a_follower_shows_whom_it_follows_and_how_far_it_is(ctl: Ctl, replication: FakeReplication) -> None:
    replication.follow("catching_up", progress={**PROGRESS, "rate_bytes_s": None, "seconds_left": None})
    replication.error = replication.leader["error"] = "refused"  # type: ignore[index]  # it has one
    out = lines(ctl("-q", "replication_status")[1])
    assert out == [
        "Node: leveret@test",
        "Node id: 1a2b",
        "Role: follower",
        "State: catching_up",
        "Error: refused",
        "Epoch: 3",
        "Scrub: last at 2023-11-14 22:13:20+00:00, 40 chunks read, 2 damaged, 1 repaired",
        "Followers connect to: 127.0.0.1:5679",
        "Leader: tcp://10.0.0.1:5679 (leveret@a)",
        "Leader's epoch: 3",
        "Connected since: 2023-11-14 22:13:20+00:00",
        "Newest record: 2023-11-14 22:13:20.123+00:00",
        "Position: 8000 of 9000 bytes",
        "Lag: 1234567 records, 1000 bytes, 1.5 s",
        "Received: 70000 bytes",
        "Progress: 250.0 MB of 1.0 GB",
    ]


def test_a_leader_says_how_many_followers_its_publishers_need(ctl: Ctl, replication: FakeReplication) -> None:
    replication.min_in_sync = 1
    waited_for = "this node and all followers in sync, at least 1; else publishers are blocked"
    assert f"Confirms wait for: {waited_for}" in lines(ctl("replication_status")[1])


def test_a_node_that_is_elected_says_what_etcd_says(ctl: Ctl, replication: FakeReplication) -> None:
    replication.etcd = etcd = {
        "endpoints": ["http://10.0.0.4:2379", "http://10.0.0.5:2379"],
        "reachable": True,
        "leader": {"node_id": "1a2b", "uri": "tcp://10.0.0.1:5679", "epoch": 3},
        "epoch": 3,
        "in_sync": ["1a2b", "3c4d"],
        "holds_lease": True,
        "lease_ttl_ms": 2000,
        "lease_left_ms": 1731,
        "last_error": None,
    }
    assert lines(ctl("-q", "replication_status")[1])[5:9] == [
        "etcd: http://10.0.0.4:2379, http://10.0.0.5:2379, reached",
        "Elected: tcp://10.0.0.1:5679 in epoch 3",
        "Lease: held, 1.7 s left",
        "May be elected: 1a2b, 3c4d",
    ]
    etcd |= {"reachable": False, "leader": None, "in_sync": None, "last_error": "no answer"}
    etcd |= {"holds_lease": False, "lease_left_ms": None}
    assert lines(ctl("-q", "replication_status")[1])[5:9] == [
        "etcd: http://10.0.0.4:2379, http://10.0.0.5:2379, not reached",
        "etcd's error: no answer",
        "Elected: (none)",
        "May be elected: any node",
    ]


def test_a_fenced_node_says_who_has_replaced_it(ctl: Ctl, replication: FakeReplication) -> None:
    replication.fence()
    out = lines(ctl("-q", "replication_status")[1])
    assert (out[2], out[-1]) == ("Role: fenced", "Followers connect to: 127.0.0.1:5679")
    replication.follow()
    replication.fence()
    assert lines(ctl("-q", "replication_status")[1])[-2:] == [
        "Replaced by: tcp://10.0.0.1:5679",
        "Leader's epoch: 3",
    ]
    replication.leader["uri"] = ""  # type: ignore[index]  # it has one
    assert "no other node can follow" in lines(ctl("-q", "replication_status")[1])[-2]


def test_a_node_that_passes_clients_on_says_to_whom(ctl: Ctl, replication: FakeReplication) -> None:
    replication.follow()
    replication.proxy = {
        "leaders": ["tcp://10.0.0.1:5679"],
        "connections": 3,
        "passed_on": 70,
        "refused": 2,
        "last_refusal": "no node that serves clients is known at present",
    }
    lines = ctl("-q", "replication_status")[1].splitlines()
    assert lines[lines.index("Clients are passed on to: tcp://10.0.0.1:5679") :][:3] == [
        "Clients are passed on to: tcp://10.0.0.1:5679",
        "Passed on: 3 connections now, 70 so far, 2 refused",
        "Last refusal: no node that serves clients is known at present",
    ]
    replication.role = "leader"
    assert "passed on" not in ctl("-q", "replication_status")[1]


def test_a_follower_that_was_never_connected_says_so(ctl: Ctl, replication: FakeReplication) -> None:
    unknown = dict.fromkeys(
        ("name", "connected_at_ms", "position", "applied_position", "lag_bytes", "lag_records", "lag_s")
    )
    replication.follow("connecting", **unknown)
    out = lines(ctl("replication_status")[1])
    assert "Leader: tcp://10.0.0.1:5679" in out
    assert "Connected since: (not connected)" in out
    assert "Position: not known" in out
    assert "Lag: not known" in out


def test_programs_get_the_status_as_the_node_has_it(ctl: Ctl, replication: FakeReplication) -> None:
    replication.follow(progress=PROGRESS)
    assert json.loads(ctl("--formatter", "json", "replication_status")[1]) == replication.status()


def test_followers_are_listed_by_the_columns_asked_for(ctl: Ctl, replication: FakeReplication) -> None:
    replication.followers = [follower("b", "2", progress=PROGRESS)]
    assert (
        ctl("-q", "list_followers", "name", "node_id,joined_ms")[1] == "name\tnode_id\tjoined_ms\nb\t2\t12\n"
    )
    [row] = json.loads(ctl("--formatter", "json", "list_followers", "name", "progress")[1])
    assert row == {"name": "b", "progress": PROGRESS}
    status, _, error = ctl("list_followers", "nosuch")
    assert (status, "Info key(s) nosuch are not supported" in error) == (64, True)


def test_the_check_passes_and_fails_with_the_reason(ctl: Ctl, replication: FakeReplication) -> None:
    assert ctl("-q", "check_replication") == (
        0,
        "Node leveret@test is a leader, its replication is as it should be\n",
        "",
    )
    replication.min_in_sync = 1
    assert ctl("-q", "check_replication") == (
        69,
        "",
        "leveretctl: 0 of the 1 in-sync followers asked for are there\n",
    )


def test_a_dry_run_tells_what_would_be_lost(ctl: Ctl, replication: FakeReplication) -> None:
    replication.follow()
    assert ctl("promote_follower", "--dry-run") == (
        0,
        "Estimating the loss of a promotion ...\nPromoted: no\nWould lose: 12 messages, 3456 bytes, 0.8 s\n"
        "State: streaming\nEpoch: 3\n",
        "",
    )
    assert replication.calls == [("promote", True, False, None)]


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (
            {"messages": None, "bytes": None, "seconds": 12.34},
            "not known, the leader was last heard 12.3 s ago",
        ),
        (
            {"messages": 5, "bytes": 700, "seconds": 12.34},
            "not known, the leader was last heard 12.3 s ago; 5 messages, 700 bytes were missing then",
        ),
        (
            {"messages": None, "bytes": 700, "seconds": 12.34},
            "not known, the leader was last heard 12.3 s ago; 700 bytes and an unknown number of messages were missing "
            "then",
        ),
        (
            {"messages": None, "bytes": None, "seconds": None},
            "not known, the leader was not reached since the start",
        ),
    ],
)
def test_what_is_not_known_to_be_lost_is_called_so(
    ctl: Ctl, replication: FakeReplication, lost: dict[str, Any], text: str
) -> None:
    replication.follow("connecting")
    replication.would_lose = {"known": False, **lost}
    assert f"Would lose: {text}" in lines(ctl("promote_follower", "--dry-run")[1])


def test_a_follower_is_promoted(ctl: Ctl, replication: FakeReplication) -> None:
    replication.follow()
    assert ctl("-q", "promote_follower") == (
        0,
        "Promoted: in 42 ms\nLost: 12 messages, 3456 bytes, 0.8 s\nState: leader\nEpoch: 4\n",
        "",
    )


HELD = {
    "messages": 7,
    "records": 9,
    "bytes": 1234,
    "oldest_at_ms": 1_700_000_000_000,
    "newest_at_ms": 1_700_000_060_000,
}


def test_a_delayed_follower_shows_what_it_holds_back(ctl: Ctl, replication: FakeReplication) -> None:
    replication.follow("delayed", apply_delay_s=1800.0, held_back=HELD)
    shown = lines(ctl("-q", "replication_status")[1])
    assert "Apply delay: 1800 s" in shown
    assert (
        "Held back: 7 messages, 9 records, 1.2 kB; done by the leader from 2023-11-14 22:13:20+00:00 to "
        "2023-11-14 22:14:20+00:00"
    ) in shown


@pytest.mark.parametrize(
    ("option", "until_ms"),
    [
        (("--apply-until", "2023-11-14T22:13:20"), 1_700_000_000_000),
        (("--apply-until", "2023-11-14T23:13:20.250+01:00"), 1_700_000_000_250),
        (("--apply-delayed",), (1 << 62) - 1),
    ],
)
def test_what_a_delayed_follower_applies_first_is_the_operator_s_choice(
    ctl: Ctl, replication: FakeReplication, option: tuple[str, ...], until_ms: int
) -> None:
    replication.follow("delayed", held_back=HELD)
    replication.held_back = {**HELD, "oldest_at_ms": None, "newest_at_ms": None}
    shown = lines(ctl("-q", "promote_follower", *option)[1])
    assert replication.calls == [("promote", False, False, until_ms)]
    assert "Not applied: 7 messages, 9 records, 1.2 kB" in shown
    assert "Quarantined as: r1" in shown


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--apply-until", "noon"), "'noon' is no time such as 2026-11-21T14:30:00"),
        (
            ("--apply-until", "2023-11-14T22:13:20", "--apply-delayed"),
            "--apply-delayed applies all changes, --apply-until some: use one of the two",
        ),
    ],
)
def test_a_choice_that_is_none_is_refused(
    ctl: Ctl, replication: FakeReplication, options: tuple[str, ...], error: str
) -> None:
    replication.follow("delayed")
    assert ctl("-q", "promote_follower", *options) == (64, "", f"leveretctl: {error}\n")
    assert replication.calls == []


def test_a_follower_that_has_not_all_is_promoted_by_force_only(
    ctl: Ctl, replication: FakeReplication
) -> None:
    replication.follow("catching_up")
    reason = "this follower is catching_up: it does not have all that the leader has"
    assert ctl("-q", "promote_follower") == (65, "", f"leveretctl: {reason}\n")
    status, out, error = ctl("-q", "promote_follower", "--dry-run")
    assert (status, error) == (65, f"leveretctl: a promotion would be refused: {reason}\n")
    assert f"Reason: {reason}" in lines(out)
    assert json.loads(ctl("--formatter", "json", "promote_follower", "--force")[1])["promoted"] is True


def test_a_leader_is_not_promoted(ctl: Ctl) -> None:
    assert ctl("-q", "promote_follower") == (65, "", "leveretctl: this node is no follower\n")


def compared(**fields: Any) -> dict[str, Any]:
    return {
        "follower": "b",
        "log": "queues/1",
        "vhost": "/",
        "queue": "q",
        "first_offset": 0,
        "next_offset": 9,
        "chunks": 2,
        "octets": 300,
        "match": True,
        "detail": "",
        **fields,
    }


def test_logs_that_are_alike_are_listed(ctl: Ctl, replication: FakeReplication) -> None:
    replication.followers = [follower("b", "2")]
    replication.rows = [compared()]
    status, out, _ = ctl("-q", "replication_verify", "--follower", "b", "--deep")
    assert (status, lines(out)[1]) == (0, "b\tqueues/1\t/\tq\t0\t9\t2\t300\ttrue\t")
    assert replication.calls == [("verify", "b", True)]


def test_logs_that_differ_are_listed_and_fail_the_command(ctl: Ctl, replication: FakeReplication) -> None:
    replication.rows = [compared(), compared(log="queues/2", match=False, detail="chunk at offset 4")]
    status, out, error = ctl("--formatter", "json", "replication_verify")
    assert (status, error) == (69, "leveretctl: 1 of 2 logs differ\n")
    assert [row["match"] for row in json.loads(out)] == [True, False]


def test_comparing_with_nobody_is_no_success(ctl: Ctl) -> None:
    assert ctl("-q", "replication_verify")[::2] == (
        69,
        "leveretctl: nothing was compared: no other node is connected\n",
    )
    assert ctl("replication_verify", "--follower", "b")[::2] == (
        65,
        "leveretctl: no follower 'b' is connected\n",
    )


def test_a_scrub_that_mends_all_succeeds(ctl: Ctl) -> None:
    assert ctl("-q", "scrub") == (0, "Chunks read: 40 (123.5 MB)\nDamaged: 1\nRepaired: 1\n", "")


def test_a_scrub_that_cannot_mend_names_what(ctl: Ctl, replication: FakeReplication) -> None:
    replication.unrepaired = ["queues/2 at offset 7"]
    status, out, error = ctl("-q", "scrub")
    assert (status, lines(out)[-1]) == (69, "Not repaired: queues/2 at offset 7")
    assert error == "leveretctl: not repaired: 1 of 2 damaged chunks\n"


def test_reports_are_shown_by_queue_and_then_messages(ctl: Ctl, replication: FakeReplication) -> None:
    replication.quarantine(message(7), message(8, settled=True, payload="y" * 61))
    replication.quarantine(report="r2")
    assert lines(ctl("list_divergent_messages")[1]) == [
        "Listing quarantined messages ...",
        "report\tat\tfrom_epoch\tlogs\tvhost\tqueue\tmessages",
        "r1\t2023-11-14 22:13:20+00:00\t2\t3\t/\tq\t2",
        "r2\t2023-11-14 22:13:20+00:00\t2\t3\t\t\t0",
        "report\tvhost\tqueue\toffset\ttimestamp_ms\texchange\trouting_key\tsettled\tpayload\tpayload_encoding",
        "r1\t/\tq\t7\t1700000000000\t\tq\tfalse\tmessage 7\tstring",
        f"r1\t/\tq\t8\t1700000000000\t\tq\ttrue\t{'y' * 60}...\tstring",
    ]


def test_only_some_messages_are_shown_and_that_is_said(ctl: Ctl, replication: FakeReplication) -> None:
    replication.quarantine(*map(message, range(103)))
    out = lines(ctl("list_divergent_messages")[1])
    assert sum("message " in line for line in out) == 100
    assert "The first 100 messages; --limit shows more, --export has all of them:" in out
    out = lines(ctl("list_divergent_messages", "--limit", "103")[1])
    assert sum("message " in line for line in out) == 103
    assert not any("--limit" in line for line in out)


def test_programs_get_reports_and_all_messages(ctl: Ctl, replication: FakeReplication) -> None:
    replication.quarantine(*map(message, range(103)))
    found = json.loads(ctl("--formatter", "json", "list_divergent_messages")[1])
    assert found == {"reports": replication.reports, "messages": replication.messages}
    found = json.loads(ctl("--formatter", "json", "list_divergent_messages", "--limit", "2")[1])
    assert [each["offset"] for each in found["messages"]] == [0, 1]
    assert len(lines(ctl("--formatter", "csv", "list_divergent_messages")[1])) == 104


def test_one_report_is_chosen(ctl: Ctl, replication: FakeReplication) -> None:
    replication.quarantine(message(7))
    replication.quarantine(message(8, report="r2"), report="r2")
    found = json.loads(ctl("--formatter", "json", "list_divergent_messages", "--report", "r2")[1])
    assert [each["id"] for each in found["reports"]] == ["r2"]
    assert [each["offset"] for each in found["messages"]] == [8]
    assert ctl("-q", "list_divergent_messages", "--report", "r3") == (
        65,
        "",
        "leveretctl: there is no report 'r3'\n",
    )


def test_where_nothing_was_set_aside_nothing_is_listed(ctl: Ctl) -> None:
    assert ctl("-q", "list_divergent_messages") == (0, "", "")


def test_messages_are_exported_to_a_private_file_whatever_is_in_them(
    ctl: Ctl, replication: FakeReplication, tmp_path: Path
) -> None:
    replication.quarantine(message(7), message(8, payload="two\nlines\u2028and\x85three"), message(9))
    file = tmp_path / "divergent.json"
    file.write_text("former")
    file.chmod(0o644)
    status, out, _ = ctl("list_divergent_messages", "--export", str(file))
    assert (status, out) == (
        0,
        f'Exporting messages in JSON to a file at "{file}" ...\n3 messages were exported\n',
    )
    assert json.loads(file.read_text()) == replication.messages
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["data", "divergent.json"]


def test_an_export_that_fails_leaves_the_former_file(
    ctl: Ctl, replication: FakeReplication, tmp_path: Path
) -> None:
    replication.quarantine(message(7))
    replication.failure = LeveretError("the disk is broken")
    file = tmp_path / "divergent.json"
    file.write_text("former")
    assert ctl("-q", "list_divergent_messages", "--export", str(file)) == (
        70,
        "",
        "leveretctl: the disk is broken\n",
    )
    assert file.read_text() == "former"
    assert sorted(os.listdir(tmp_path)) == ["data", "divergent.json"]


def test_the_report_of_a_node_has_its_replication(ctl: Ctl) -> None:
    assert "Followers connect to: 127.0.0.1:5679" in lines(ctl("report")[1])


def test_a_command_that_a_follower_declines_names_its_leader(ctl: Ctl, replication: FakeReplication) -> None:
    replication.follow()
    status, _, error = ctl("-q", "add_vhost", "v")
    assert (status, "tcp://10.0.0.1:5679 (leveret@a)" in error) == (69, True)
    assert ctl("-q", "reset_node_auth_attempt_metrics")[0] == 0
    assert ctl("-q", "ping")[0] == 0
