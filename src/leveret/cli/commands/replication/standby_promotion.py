"""Recovery of a downstream's transferred data: promotion, dry run, rehearsal, another broker."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from typer import Option

from leveret.cli import exits
from leveret.cli.api import AnswerLost, CtlError
from leveret.cli.command import Session, command
from leveret.cli.output.ages import age
from leveret.cli.output.progress_bar import ProgressBar
from leveret.cli.output.values import ReportLines, Table
from leveret.cli.secrets import password_of
from leveret.model.job_progress import blocked_by

TO_PASSWORD: Final = "LEVERETCTL_TO_PASSWORD"
_SUMMARY: Final = ("first_timestamp", "last_timestamp", "message_count", "virtual_host")
_COUNTS: Final = {
    "reader_offsets": "readers of streams continue at their offsets",
    "publisher_ids": "publishers of streams continue at their ids",
    "clamped_offsets": "of those readers had stored an offset beyond the end, and continue at the end",
    "unreadable_records": "records could not be read and are left out",
}
"""The counts without a column for people, whose terminal may have 80: each that is not 0 is a line."""
_STORED_POSITIONS: Final = ("reader_offsets", "publisher_ids")
_QUEUES: Final = ("virtual_host", "queue", "message_count", "first_timestamp", "last_timestamp")
_UNREADABLE: Final = "unreadable_records"
_PROMOTION: Final = "the promotion; promote again to continue it"
_LEFT_OUT: Final = (
    "The messages that were left out are kept: promote_standby_replication_downstream without options recovers them, "
    "and with --dry-run lists them by queue"
)
_NOT_FOLLOWED: Final = (
    "all messages: the virtual host is not here, or not tagged standby_replication, so messages may have been settled "
    "that the archive still has; make it with the tag to recover them"
)
_NOTHING: Final = "Nothing was transferred to this node: no message was recovered"
_SPOKEN_EVERY_S: Final = 5.0
_LOOK: Final = "the count; nothing was changed"

FromScratch = Annotated[
    bool,
    Option("--start-from-scratch", help="Recover consumed and previously recovered messages too."),
]
AllAvailable = Annotated[
    bool,
    Option(
        "--all-available",
        help="Recover all readable messages, even if settlements are unknown or files are damaged.",
    ),
]
ExcludeVirtualHosts = Annotated[
    str | None, Option("--exclude-virtual-hosts", help="Virtual hosts to leave out, separated by commas.")
]
Queues = Annotated[str | None, Option("--queues", help="Recover only these queues, separated by commas.")]
AsOf = Annotated[
    str | None,
    Option(
        "--as-of",
        help="Recover the queues as of a time, such as 2026-11-21T14:00:00Z; UTC without an offset.",
    ),
]


@command("", "promote_standby_replication_downstream --exclude-virtual-hosts tmp")
def promote_standby_replication_downstream(
    ctl: Session,
    start_from_scratch: FromScratch = False,
    all_available: AllAvailable = False,
    exclude_virtual_hosts: ExcludeVirtualHosts = None,
    queues: Queues = None,
    as_of: AsOf = None,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run", help="Only show the recoverable messages of each queue and the loss; change nothing."
        ),
    ] = False,
    to: Annotated[
        str | None,
        Option(
            "--to",
            help="Recover into this AMQP broker, and leave this node unchanged: amqp://USER@HOST:PORT/VHOST. The "
            f"password is typed, piped or set in {TO_PASSWORD}, never in the URI.",
        ),
    ] = None,
    yes: Annotated[
        bool, Option("--yes", "-y", help="Do not ask for a confirmation, even if the upstream is alive.")
    ] = False,
) -> Table | ReportLines:
    """Promote this standby: end the links, and return every unsettled message to its queue."""
    body = _body(start_from_scratch, all_available, exclude_virtual_hosts, queues, as_of)
    if to is not None:
        body["to"] = {"uri": _target(_given("--to", to)), "password": _password()}
    if dry_run:
        ctl.announce("Counting the recoverable messages ...")
        found = carry_out(ctl, "dry-run", body, _LOOK)
        come_back = ("Would come back", _amount(found["queues"]))
        lines = [come_back, *_counts(found["queues"]), *_losses(found), *_unfollowed(found)]
        return ReportLines(lines, found, _queues(ctl, found))
    if to is not None:
        ctl.announce(f"Recovering into {urlsplit(to).hostname} ...")
        rows = carry_out(ctl, "promote", body, "the recovery; run the command again to continue it")
        if not rows:
            ctl.announce(_NOTHING)
        return _summary(ctl, (*_SUMMARY, "in_doubt"), rows)
    _warn_of_alive(ctl, yes=yes)
    ctl.announce("Will promote cluster to upstream...")
    rows = carry_out(ctl, "promote", body, _PROMOTION)
    left_out = ctl.api.get("replication", "standby", "details").get("left_out")
    if left_out:
        ctl.announce(_LEFT_OUT)
        for title, text in lines_of_left_out(left_out):
            ctl.announce(f"{title}: {text}")
    elif not rows:
        ctl.announce(_NOTHING)
    return _summary(ctl, (*_SUMMARY, *_STORED_POSITIONS), rows)


def _warn_of_alive(ctl: Session, *, yes: bool) -> None:
    """Warn that a promotion does not stop a living upstream, and ask for confirmation at a terminal.

    Raises:
        CtlError: the answer was no.
    """
    status = ctl.api.get("replication", "standby", "details")
    alive = [row for row in status["vhosts"] if row["state"] == "connected"]
    if not alive:
        return
    typer.echo(
        f"Warning: the upstream at {alive[0]['endpoint']} is alive, heard {age(alive[0]['heard_ago_ms'] or 0)} ago. A "
        "promotion does not stop it: two sites would serve applications, and messages that the upstream accepts "
        "from now on are missing here.",
        err=True,
    )
    if sys.stdin.isatty() and not yes and not typer.confirm("Promote nevertheless?", err=True):
        raise CtlError(exits.RETRY, "not promoted: stop the upstream first, or answer y")


@command("Rehearsing a promotion in scratch virtual hosts ...", "rehearse_promotion")
def rehearse_promotion(
    ctl: Session,
    all_available: AllAvailable = False,
    exclude_virtual_hosts: ExcludeVirtualHosts = None,
    queues: Queues = None,
    as_of: AsOf = None,
) -> ReportLines:
    """Rehearse a promotion in scratch virtual hosts: compare every message, and measure the time."""
    body = _body(False, all_available, exclude_virtual_hosts, queues, as_of)
    found = carry_out(
        ctl, "rehearse", body, "the rehearsal; the next start of the node deletes its virtual hosts"
    )
    lines = [
        ("Recovered", f"{found['compared']} messages in {found['recovered_s']:.1f} s"),
        ("Compared", f"all of them equal the transferred messages, in {found['compared_s']:.1f} s"),
        *_counts(found["queues"]),
        *_losses(found),
        *_unfollowed(found),
    ]
    return ReportLines(lines, found, _queues(ctl, found))


@command("Displaying standby promotion summary ...", "display_standby_promotion_summary")
def display_standby_promotion_summary(ctl: Session) -> Table:
    """Show the messages that promotions recovered."""
    rows = ctl.api.get("replication", "standby", "summary")
    return _summary(ctl, (*_SUMMARY, *_STORED_POSITIONS), rows)


def _summary(ctl: Session, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Table:
    """A row a virtual host; unreadable messages only if there are any."""
    if any(row.get(_UNREADABLE) for row in rows):
        columns = (*columns, _UNREADABLE)
    if ctl.is_for_people and not ctl.quiet:
        columns = tuple(name for name in columns if name not in _COUNTS)
        for title, text in _counts(rows):
            ctl.announce(f"{title}: {text}")
    return Table.of(columns, rows, unknown=None)


def _counts(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The counts without a column for people, by virtual host."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        mine = found.setdefault(row["virtual_host"], {})
        for name in _COUNTS:
            mine[name] = mine.get(name, 0) + (row.get(name) or 0)
    return [
        (f"Of {vhost}", ", ".join(f"{count} {_COUNTS[name]}" for name, count in mine.items() if count))
        for vhost, mine in found.items()
        if any(mine.values())
    ]


def _queues(ctl: Session, found: dict[str, Any]) -> Table:
    """A row a queue; the state of streams only if there is any."""
    rows = found["queues"]
    streams = (*_STORED_POSITIONS, "clamped_offsets")
    is_needed = not ctl.is_for_people and any(row.get(name) for row in rows for name in streams)
    return Table.of((*_QUEUES, *streams) if is_needed else _QUEUES, rows, unknown=None)


def _body(
    start_from_scratch: bool,
    all_available: bool,
    exclude_virtual_hosts: str | None,
    queues: str | None,
    as_of: str | None,
) -> dict[str, Any]:
    return {
        "start_from_scratch": start_from_scratch,
        "all_available": all_available,
        "exclude_virtual_hosts": _names("--exclude-virtual-hosts", exclude_virtual_hosts),
        "queues": _names("--queues", queues),
        "as_of": None if as_of is None else _given("--as-of", as_of),
    }


def _names(option: str, text: str | None) -> list[str]:
    """The names of a list, without surrounding quotes, which RabbitMQ's guide prints for a shell."""
    if text is None:
        return []
    given = _given(option, text)
    if len(given) > 1 and given.startswith('"') and given.endswith('"'):
        given = _given(option, given[1:-1])
    return [name for name in given.split(",") if name]


def _given(option: str, text: str) -> str:
    """The value of an option. An empty one, as of a script's unset variable, must not select everything."""
    if not text.strip(" ,"):
        raise CtlError(exits.USAGE, f"{option} is empty: give a value, or leave the option out")
    return text


def _target(uri: str) -> str:
    """The URI, which must have a host, and no password, because the process list shows it."""
    try:
        host, has_password = urlsplit(uri).hostname, urlsplit(uri).password is not None
    except ValueError:
        host, has_password = None, False
    if not host:
        raise CtlError(exits.USAGE, "--to names no host; its form is amqp://USER@HOST:PORT/VHOST")
    if has_password:
        raise CtlError(
            exits.USAGE,
            "the URI of --to has a password in it, which all users can see in the process list: change that "
            f"password, and pass it by a terminal, a pipe or {TO_PASSWORD}",
        )
    return uri


def _password() -> str:
    return os.environ.get(TO_PASSWORD) or password_of(None)


def lines_of_left_out(left_out: dict[str, Any]) -> list[tuple[str, str]]:
    """The messages left out by the last promotion and recoverable by a later one, if they were counted."""
    rows, unfollowed = left_out.get("vhosts"), _unfollowed(left_out)
    if rows == [] and not unfollowed:
        return [("Left out", "nothing that is not recovered")]
    return [*((f"Left out of {row['virtual_host']}", _left_out(row)) for row in rows or []), *unfollowed]


def _unfollowed(found: dict[str, Any]) -> list[tuple[str, str]]:
    """A line a virtual host that this site does not follow any more; none from earlier versions."""
    return [(f"Left out of {vhost}", _NOT_FOLLOWED) for vhost in found.get("unfollowed", [])]


def _left_out(row: dict[str, Any]) -> str:
    text = f"{row['messages']} messages in {row['queues']} queues"
    if row["unreadable_records"]:
        text += f", and {row['unreadable_records']} unreadable records"
    return text


def _amount(queues: list[dict[str, Any]]) -> str:
    return f"{sum(row['message_count'] for row in queues)} messages, of {len(queues)} queues"


def _losses(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f"Would be lost of {row['virtual_host']}", _loss(row)) for row in found["vhosts"]]


def _loss(row: dict[str, Any]) -> str:
    """The loss in a disaster now, in words."""
    if row.get("is_replaced"):
        return (
            "all records of an outgoing log that the upstream has now, and that does not continue the records here: "
            "the virtual host was made again there, its log lost its end, or this is another upstream; what would come "
            "back is of the earlier log"
        )
    records = row["lag_records"]
    text = f"{records} records of the upstream that this node does not have yet"
    if row["state"] != "connected":
        text = f"{records} records that the upstream had {last_heard(row)}, and all later records"
        if not row["is_upstream_known"]:
            text = f"not known: no news from the upstream since this node started; {newest_age(row)}"
    elif not records:
        text = "nothing"
    if missing := row.get("missing_records"):
        text += f"; and {missing} records that its retention dropped too early"
    if missing := row.get("missing_messages"):
        text = "" if text == "nothing" else f"{text}; and "
        text += (
            f"up to {missing} messages of the upstream's queues that its retention had dropped before this node began: "
            "raise standby.replication.retention.* there, restart it, and have it "
            "delete_internal_streams_on_standby_replication_upstream_cluster"
        )
    return text


def last_heard(row: dict[str, Any]) -> str:
    """The time of the upstream's last message about a virtual host."""
    ago_ms = row.get("heard_ago_ms")
    return "when it was last heard" + ("" if ago_ms is None else f", {age(ago_ms)} ago")


def newest_age(row: dict[str, Any]) -> str:
    """The age of a virtual host's newest data here."""
    age_ms = row.get("newest_age_ms")
    if age_ms is not None:
        return f"the newest record here is {age(age_ms)} old"
    return (
        "no record is here" if row.get("is_archive_read", True) else "the stored records are not counted yet"
    )


def carry_out(ctl: Session, what: str, body: dict[str, Any], left: str) -> Any:
    """Carry out an operation; return its summary. On a terminal a bar shows its progress."""
    steps = ctl.api.stream("replication", "standby", what, body=body)
    is_terminal = sys.stderr.isatty()
    says = ctl.is_for_people and not ctl.quiet and not is_terminal
    return follow(steps, shows=is_terminal and not ctl.quiet, left=left, says=says)


def follow(steps: Iterator[dict[str, Any]], *, shows: bool, left: str, says: bool = False) -> Any:
    """Wait for the end; with `shows`, show a bar; with `says`, print the progress in lines instead.

    Raises:
        CtlError: it failed, or the node ended; then the text has `left`, the consequence.
    """
    with suppress(AnswerLost), ProgressBar(shows, "starting Spark", _columns) as bar:
        recovery, spoken = _Recovery(bar), _ProgressLines()
        for step in steps:
            if "summary" in step:
                return step["summary"]
            if "error" in step:
                raise CtlError(exits.SOFTWARE, step["reason"])
            recovery.show(step["progress"])
            if says:
                spoken.take(step["progress"])
    raise CtlError(exits.UNAVAILABLE, f"the node went away during {left}")


class _Recovery:
    """The progress of a recovery, or of a count of recoverable messages."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._total = 0
        self._queues = 0

    def show(self, progress: dict[str, Any]) -> None:
        """Take a report of the pipeline: `planned` raises the total, `published`, `compared`, `counted` are done."""
        match progress.get("event"):
            case "started":
                self._bar.update(description="looking for unconsumed messages")
            case "planned":
                self._total += sum(progress["queues"].values())
                self._queues += len(progress["queues"])
                self._bar.update(total=self._total, description=f"recovering {self._queues} queues")
            case "counting" | "exporting" as step:
                # Counted again, if files were replaced during the reading.
                self._bar.update(total=progress["messages"], completed=0, description=step)
            case "published" | "compared" | "counted" | "exported":
                self._bar.advance(progress["messages"])
            case "blocked":
                self._bar.update(description=f"waiting: {blocked_by(progress)}")
            case "unblocked":
                self._bar.update(description=f"recovering {self._queues} queues")
            case "comparing":
                self._bar.begin_again(total=self._total, description=f"comparing {self._queues} queues")


class _ProgressLines:
    """The same in lines: each step at its begin, and from time to time the number of messages done."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._said_s = time.monotonic()

    def take(self, progress: dict[str, Any]) -> None:
        """Take a report of the pipeline."""
        match progress.get("event"):
            case "started":
                self._say("looking for unconsumed messages")
            case "planned":
                self._total += sum(progress["queues"].values())
                self._say(f"recovering {self._total} messages")
            case "counting" | "exporting" as step:
                self._total, self._done = progress["messages"], 0
                self._say(f"{step} {self._total} messages")
            case "blocked":
                self._say(f"{blocked_by(progress)}; waiting for that")
            case "unblocked":
                self._say(f"{progress['target']} takes messages again")
            case "comparing":
                self._done = 0
                self._say(f"comparing {self._total} messages")
            case "published" | "compared" | "counted" | "exported":
                self._done += progress["messages"]
                if self._done >= self._total or time.monotonic() - self._said_s > _SPOKEN_EVERY_S:
                    self._say(f"{self._done} of {self._total} messages done")

    def _say(self, text: str) -> None:
        self._said_s = time.monotonic()
        typer.echo(text, err=True)


def _columns() -> list[Any]:
    """The columns of messages and time."""
    from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn

    return [MofNCompleteColumn(), TextColumn("messages,"), TimeElapsedColumn(), TextColumn("gone,")]
