from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from io import StringIO
from typing import Any, cast

import httpx
import pytest

from leveret.cli import exits
from leveret.cli.api import AnswerLost, Api, CtlError
from leveret.cli.command import Session
from leveret.cli.commands.replication import rejoin
from leveret.cli.commands.replication import standby_promotion as commands
from leveret.cli.commands.replication.standby_promotion import TO_PASSWORD, follow
from leveret.cli.output.formatters import as_table
from leveret.cli.output.values import ReportLines

ROW = {"first_timestamp": "a", "last_timestamp": "b", "message_count": 3, "virtual_host": "v"}
LEFT = "the promotion; promote again"
NEWS: list[dict[str, Any]] = [
    {"progress": {"event": "started"}},
    {"progress": {"event": "planned", "queues": {"q": 2, "r": 1}}},
    {"progress": {"event": "published", "messages": 3}},
    {"progress": {"event": "comparing"}},
    {"progress": {"event": "compared", "messages": 3}},
]


def steps(*last: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from NEWS
    yield from last


class FakeApi:
    """Answers each request with one last step."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Any]] = []
        self.links: list[dict[str, Any]] = []
        self.left_out: dict[str, Any] | None = None

    def get(self, *path: str) -> Any:
        return self.answer if path[-1] == "summary" else {"vhosts": self.links, "left_out": self.left_out}

    def post_without_timeout(self, *path: str, body: Any) -> Any:
        self.asked.append((path[-1], body))
        return self.answer

    def stream(self, *path: str, body: Any) -> Iterator[dict[str, Any]]:
        self.asked.append((path[-1], body))
        return steps({"summary": self.answer})


def session(api: FakeApi) -> Session:
    return Session(lambda: nullcontext(cast(Api, api)), ExitStack(), quiet=True)


@pytest.mark.parametrize("shows", [True, False])
def test_a_promotion_is_followed_to_its_summary(shows: bool) -> None:
    assert follow(steps({"summary": [ROW]}), shows=shows, left=LEFT) == [ROW]


def test_a_node_that_goes_away_in_the_middle_is_told_with_what_that_means() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        def lines() -> Iterator[bytes]:
            yield b'{"progress": {"event": "started"}}\n'
            raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")

        return httpx.Response(200, content=lines())

    api = Api(httpx.Client(transport=httpx.MockTransport(broken), base_url="http://node"), "the node")
    with pytest.raises(CtlError, match=r"^the node went away during the promotion; promote again") as caught:
        follow(api.stream("promote", body={}), shows=False, left=LEFT)
    assert caught.value.status == exits.UNAVAILABLE
    with pytest.raises(AnswerLost, match=r"^the node closed the connection before its answer: peer closed"):
        list(api.stream("promote", body={}))


def test_a_promotion_that_fails_ends_the_command_with_its_reason() -> None:
    with pytest.raises(CtlError, match="the disk is full") as caught:
        follow(steps({"error": "PipelineFailed", "reason": "the disk is full"}), shows=False, left=LEFT)
    assert caught.value.status == 70


def test_a_node_that_goes_away_half_way_is_told_from_one_that_finished() -> None:
    with pytest.raises(CtlError, match="promote again") as caught:
        follow(steps(), shows=False, left=LEFT)
    assert caught.value.status == 69


def test_nothing_is_drawn_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    follow(steps({"summary": []}), shows=False, left=LEFT)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_queues_messages_and_the_time_left_are_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    seen: list[str] = []

    def watched() -> Iterator[dict[str, Any]]:
        for number, step in enumerate(NEWS):
            yield step
            if number == 2:
                seen.append("published")
        yield {"summary": []}

    follow(watched(), shows=True, left=LEFT)
    drawn = capsys.readouterr()
    assert drawn.out == ""
    assert "queues" in drawn.err
    assert "left" in drawn.err
    assert seen == ["published"]


def test_what_is_inspected_is_counted_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    again = [{"event": "counting", "messages": 12}, {"event": "counted", "messages": 5}]
    counted = [*again, {"event": "counting", "messages": 17}, {"event": "counted", "messages": 17}]

    def progress() -> Iterator[dict[str, Any]]:
        yield from ({"progress": each} for each in counted)
        yield {"summary": [ROW]}

    assert follow(progress(), shows=True, left=LEFT) == [ROW]
    drawn = capsys.readouterr()
    assert drawn.out == ""
    assert "counting" in drawn.err
    assert "17/17" in drawn.err


def test_the_password_of_a_target_is_not_taken_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi([{**ROW, "in_doubt": 0}])
    monkeypatch.setenv(TO_PASSWORD, "s3kRe7")
    with pytest.raises(CtlError, match="process list") as caught:
        promote(api, to="amqp://user:open@host")
    assert "open" not in str(caught.value)
    assert api.asked == []
    promote(api, to="amqp://user@host")
    [(path, body)] = api.asked
    assert (path, body["to"]) == ("promote", {"uri": "amqp://user@host", "password": "s3kRe7"})


def test_a_dry_run_has_a_row_a_queue_and_says_what_would_be_lost() -> None:
    row = {
        "virtual_host": "v",
        "queue": "q",
        "message_count": 3,
        "first_timestamp": "a",
        "last_timestamp": "b",
    }
    api = FakeApi({"queues": [row], "vhosts": [loss(lag_records=7, missing_records=2)]})
    report = promote(api, dry_run=True, queues="q,r", as_of="2026-11-21")
    assert report.table.rows == [["v", "q", 3, "a", "b"]]
    assert report.lines == [
        ("Would come back", "3 messages, of 1 queues"),
        (
            "Would be lost of v",
            "7 records of the upstream that this node does not have yet; and 2 records that its retention "
            "dropped too early",
        ),
    ]
    [(path, body)] = api.asked
    assert (path, body["queues"], body["as_of"]) == ("dry-run", ["q", "r"], "2026-11-21")


@pytest.mark.parametrize("uri", ["amqp://", "amqp://u@[::1/x", "host"])
def test_a_target_without_a_host_is_refused_before_a_password_is_asked_for(uri: str) -> None:
    api = FakeApi([ROW])
    with pytest.raises(CtlError, match=r"^--to names no host; its form is amqp://") as caught:
        promote(api, to=uri)
    assert (caught.value.status, api.asked) == (exits.USAGE, [])


@pytest.mark.parametrize("option", ["to", "queues", "as_of", "exclude_virtual_hosts"])
@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_option_that_is_empty_is_no_wish_for_everything(option: str, text: str) -> None:
    api = FakeApi([ROW])
    with pytest.raises(CtlError, match=f"^--{option.replace('_', '-')} is empty") as caught:
        promote(api, **{option: text})
    assert caught.value.status == exits.USAGE
    assert api.asked == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "nothing"),
        ({"state": "connecting", "lag_records": 4}, "4 records .* last heard"),
        ({"state": "disconnected", "is_upstream_known": False}, "not known"),
        ({"missing_messages": 9}, "^up to 9 messages .* raise .* delete_internal_streams"),
        ({"missing_messages": 9, "lag_records": 4}, "^4 records .*; and up to 9 messages"),
        ({"state": "recover", "is_replaced": True}, "^all records of an outgoing log .* made again"),
        ({"is_replaced": True, "is_upstream_known": False}, "^all records of an outgoing log"),
    ],
)
def test_the_loss_is_told_as_far_as_it_is_known(fields: dict[str, Any], text: str) -> None:
    outcome = cast(ReportLines, promote(FakeApi({"queues": [], "vhosts": [loss(**fields)]}), dry_run=True))
    [_, (_, said)] = outcome.lines
    assert re.search(text, said)


def test_a_rehearsal_says_how_long_it_took_and_that_all_was_compared() -> None:
    found = {"queues": [], "vhosts": [loss()], "compared": 12, "recovered_s": 3.25, "compared_s": 1.5}
    report = cast(ReportLines, commands.rehearse_promotion.action(session(FakeApi(found))))
    assert [text for _, text in report.lines] == [
        "12 messages in 3.2 s",
        "all of them equal the transferred messages, in 1.5 s",
        "nothing",
    ]


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            "r1",
            [
                "b:5552",
                "2 messages, kept here",
                "1 messages, which are there again",
                "list_divergent_messages --report r1",
                "list_divergent_messages --report r1-2",
            ],
        ),
        ("", ["b:5552", "nothing"]),
    ],
)
def test_coming_back_says_what_was_kept_and_how_to_see_it(report: str, said: list[str]) -> None:
    queue = {"virtual_host": "v", "queue": "q", "messages": 2, "settlements_lost": 1}
    count = 2 if report else 0
    answer = {"upstream_endpoints": ["b:5552"], "report": report, "messages": count, "settlements_lost": 1}
    reports = [report, f"{report}-2"] if report else []
    api = FakeApi({**answer, "reports": reports, "queues": [queue] if report else []})
    found = cast(ReportLines, rejoin.rejoin_as_downstream.action(session(api)))
    assert found.table is not None
    assert [text for _, text in found.lines] == said
    assert found.table.rows == ([["v", "q", 2, 1]] if report else [])
    rejoin.rejoin_as_downstream.action(session(api), set_all_aside=True)
    assert api.asked == [("rejoin", {"set_all_aside": wanted}) for wanted in (False, True)]


def loss(**fields: Any) -> dict[str, Any]:
    row = {"virtual_host": "v", "state": "connected", "lag_records": 0, "lag_ms": 0, "missing_records": 0}
    return row | {"last_timestamp": 5, "is_upstream_known": True} | fields


def promote(api: FakeApi, **options: Any) -> Any:
    return commands.promote_standby_replication_downstream.action(session(api), **options)


ALIVE = {"state": "connected", "endpoint": "a:5552", "heard_ago_ms": 300}


@pytest.mark.parametrize(
    ("is_terminal", "options", "answer", "promotes"),
    [
        (True, {}, "n", False),
        (True, {}, "y", True),
        (True, {"yes": True}, None, True),
        (False, {}, None, True),
    ],
)
def test_an_upstream_that_is_alive_is_told_and_a_person_is_asked(
    is_terminal: bool,
    options: dict[str, bool],
    answer: str | None,
    promotes: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Scripts, and the line as guides print it, go on with a warning."""
    typed = StringIO(f"{answer}\n" if answer else "")
    monkeypatch.setattr(typed, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stdin", typed)
    api = FakeApi([ROW])
    api.links = [{"state": "connecting"}, ALIVE]
    if promotes:
        promote(api, **options)
    else:
        with pytest.raises(CtlError, match="not promoted"):
            promote(api, **options)
    assert [what for what, _ in api.asked] == (["promote"] if promotes else [])
    printed = capsys.readouterr().err
    assert "the upstream at a:5552 is alive, heard 0.3 s ago" in printed
    assert ("Promote nevertheless?" in printed) == (answer is not None)


def test_nobody_is_asked_where_the_upstream_is_lost_or_nothing_is_promoted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    api = FakeApi([ROW])
    api.links = [{"state": "connecting"}, {"state": "recover"}]
    promote(api)
    api = FakeApi({"queues": [], "vhosts": []})
    api.links = [ALIVE]
    promote(api, dry_run=True)
    assert capsys.readouterr().err == ""


def test_in_a_pipe_each_step_and_the_end_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    follow(steps({"summary": [ROW]}), shows=False, says=True, left=LEFT)
    assert capsys.readouterr().err.splitlines() == [
        "looking for unconsumed messages",
        "recovering 3 messages",
        "3 of 3 messages done",
        "comparing 3 messages",
        "3 of 3 messages done",
    ]


def test_in_a_pipe_a_broker_that_blocks_its_publishers_is_named_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocked = {"target": "h:5672", "reason": "low on disk"}
    news = [{"progress": {"event": "blocked", **blocked}}, {"progress": {"event": "unblocked", **blocked}}]
    follow(iter([*news, {"summary": [ROW]}]), shows=False, says=True, left=LEFT)
    assert capsys.readouterr().err.splitlines() == [
        "h:5672 blocks its publishers until its alarm ends: low on disk; waiting for that",
        "h:5672 takes messages again",
    ]


def test_what_was_left_out_is_counted_with_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    api = FakeApi([ROW])
    api.left_out = {"vhosts": [{"virtual_host": "tmp", "queues": 2, "messages": 9, "unreadable_records": 0}]}
    ctl = session(api)
    ctl.quiet = False
    commands.promote_standby_replication_downstream.action(ctl, queues="q")
    said = capsys.readouterr().out
    assert "without options recovers them" in said
    assert "Left out of tmp: 9 messages in 2 queues" in said


def test_virtual_hosts_that_are_not_followed_any_more_are_named_without_any_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    api = FakeApi([])
    api.left_out = {"vhosts": None, "unfollowed": ["gone"]}
    ctl = session(api)
    ctl.quiet = False
    commands.promote_standby_replication_downstream.action(ctl)
    said = capsys.readouterr().out
    assert (
        "Left out of gone: all messages: the virtual host is not here, or not tagged standby_replication"
        in said
    )
    assert "Nothing was transferred" not in said


@pytest.mark.parametrize(
    "command", ["promote_standby_replication_downstream", "display_standby_promotion_summary"]
)
def test_a_summary_fits_a_terminal_and_hides_nothing(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ROW | {"virtual_host": "orders", "reader_offsets": 2, "publisher_ids": 0, "unreadable_records": 7}
    ctl = session(FakeApi([row]))
    ctl.quiet = False
    table = getattr(commands, command).action(ctl)
    assert all(len(line.expandtabs(8)) <= 80 for line in as_table(table, headers=True).splitlines())
    said = capsys.readouterr().out
    assert (
        "Of orders: 2 readers of streams continue at their offsets, 7 records could not be read and are left out\n"
        in said
    )
    ctl.formatter = "json"
    for_programs = getattr(commands, command).action(ctl)
    assert {"reader_offsets", "publisher_ids", "unreadable_records"} < {*for_programs.columns}


@pytest.mark.parametrize("options", [{}, {"to": "amqp://guest@a.example"}])
def test_that_nothing_was_there_to_recover_is_said(
    options: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TO_PASSWORD, "s3kRe7")
    ctl = session(FakeApi([]))
    ctl.quiet = False
    commands.promote_standby_replication_downstream.action(ctl, **options)
    assert "Nothing was transferred to this node: no message was recovered" in capsys.readouterr().out


def test_quotes_that_a_guide_prints_about_a_list_are_no_part_of_its_names() -> None:
    api = FakeApi([ROW])
    promote(api, exclude_virtual_hosts='"a,b"')
    assert api.asked[-1][1]["exclude_virtual_hosts"] == ["a", "b"]
    with pytest.raises(CtlError, match="--exclude-virtual-hosts is empty"):
        promote(api, exclude_virtual_hosts='""')
