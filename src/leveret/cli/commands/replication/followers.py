"""Followers: nodes that hold all of a leader's data, and can replace it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen, with_node
from leveret.cli.output.array_file import write_array
from leveret.cli.output.values import MessageLine, ReportLines, Table
from leveret.model.moment import moment_ms

_FOLLOWER: Final = (
    "name",
    "node_id",
    "address",
    "state",
    "in_sync",
    "lag_records",
    "lag_bytes",
    "lag_s",
    "apply_delay_s",
    "sent_bytes",
    "acked_bytes",
    "compression_ratio",
    "connected_at_ms",
    "joined_ms",
    "progress",
)
_FOLLOWER_SHOWN: Final = (
    "name",
    "address",
    "state",
    "in_sync",
    "lag_records",
    "lag_bytes",
    "lag_s",
    "progress",
)
_COMPARED: Final = (
    "follower",
    "log",
    "vhost",
    "queue",
    "first_offset",
    "next_offset",
    "chunks",
    "octets",
    "match",
    "detail",
)
_QUARANTINED: Final = ("report", "at", "from_epoch", "logs", "vhost", "queue", "messages")
_MESSAGE: Final = (
    "report",
    "vhost",
    "queue",
    "offset",
    "timestamp_ms",
    "exchange",
    "routing_key",
    "settled",
    "payload",
    "payload_encoding",
)
_MESSAGES_SHOWN: Final = 100
_PAYLOAD_CHARACTERS_SHOWN: Final = 60
_PIPE: Final = "-"
_SHORT: Final = {"block": "publishers are blocked", "nack": "publishes are nacked"}
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


@command("Replication status of node {node} ...", "replication_status")
def replication_status(ctl: Session) -> ReportLines:
    """Show the node's role, its leader or its followers, and the lag."""
    status = ctl.api.get("replication", "node")
    lines = _node_lines(status)
    match status["role"]:
        case "leader":
            lines += _promises(status)
        case "fenced":
            lines += _replacement(status["leader"])
        case _:
            lines += _leader_lines(status["leader"])
    return ReportLines(lines, status, _followers(ctl, status, _FOLLOWER_SHOWN))


@command("Listing followers of node {node} ...", "list_followers name state lag_s")
def list_followers(
    ctl: Session,
    columns: Annotated[
        list[str] | None, Argument(metavar="COLUMN", help=f"Any of {', '.join(_FOLLOWER)}.")
    ] = None,
) -> Table:
    """List the nodes that follow this one."""
    wanted = chosen(columns, _FOLLOWER_SHOWN, _FOLLOWER)
    return _followers(ctl, ctl.api.get("replication", "node"), wanted)


@command("Checking if the replication of node {node} is as it should be ...", "check_replication")
def check_replication(ctl: Session) -> MessageLine:
    """Fail if a leader has too few followers in sync, or a follower lags."""
    found = ctl.api.get("health", "checks", "replication")
    text = f"Node {ctl.node} is a {found['role']}, its replication is as it should be"
    return MessageLine(text, {"result": "ok", "node": ctl.node, "message": text, **found})


@command("", "promote_follower --dry-run")
def promote_follower(
    ctl: Session,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Only show the possible loss: changes of the leader that this follower lacks. Fail if the promotion "
            "would be refused.",
        ),
    ] = False,
    force: Annotated[
        bool, Option("--force", help="Promote even a follower that is known to lack data.")
    ] = False,
    apply_delayed: Annotated[
        bool, Option("--apply-delayed", help="Delayed follower: lead with all changes of the leader.")
    ] = False,
    apply_until: Annotated[
        str | None,
        Option(
            "--apply-until",
            metavar="TIME",
            help="Delayed follower: lead with the leader's changes up to this time, such as "
            "2026-11-21T14:30:00 (UTC, or with an offset); later changes are quarantined.",
        ),
    ] = None,
) -> ReportLines:
    """Promote this follower to leader. The previous leader is fenced.

    A delayed follower that can leave changes out is promoted only with --apply-delayed or --apply-until, because
    neither can be undone.
    """
    if apply_delayed and apply_until is not None:
        raise CtlError(
            exits.USAGE, "--apply-delayed applies all changes, --apply-until some: use one of the two"
        )
    what = "Estimating the loss of a promotion" if dry_run else "Promoting this follower to leader"
    ctl.announce(f"{what} ...")
    choice = {
        "apply_delayed": apply_delayed,
        "apply_until_ms": None if apply_until is None else _time_ms(apply_until),
    }
    body = {"dry_run": dry_run, "force": force, **choice}
    outcome = ctl.api.post_without_timeout("replication", "promote", body=body)
    lines = [
        ("Promoted", f"in {outcome['took_ms']} ms" if outcome["promoted"] else "no"),
        ("Would lose" if dry_run else "Lost", _loss(outcome["would_lose"])),
        ("Not applied", _delayed_changes(outcome["held_back"])),
        ("Quarantined as", outcome["set_aside"]),
        ("State", outcome["state"]),
        ("Epoch", outcome["epoch"]),
    ]
    lines = [line for line in lines if line[1] is not None]
    lines += [("Reason", outcome["reason"])] if outcome["reason"] else []
    report = ReportLines(lines, outcome)
    if outcome["reason"]:
        ctl.show(report)
        raise CtlError(exits.DATA, f"a promotion would be refused: {outcome['reason']}")
    return report


@command("Comparing logs with the other side ...", "replication_verify --deep")
def replication_verify(
    ctl: Session,
    follower: Annotated[str | None, Option(help="Compare with this follower only, by name or id.")] = None,
    deep: Annotated[
        bool, Option("--deep", help="Compare all stored data instead of the ends of logs.")
    ] = False,
) -> Table:
    """Compare leader and followers log by log while they run. Fail if logs differ."""
    rows = ctl.api.post_without_timeout("replication", "verify", body={"follower": follower, "deep": deep})
    if not rows:
        raise CtlError(exits.UNAVAILABLE, "nothing was compared: no other node is connected")
    table = Table.of(_COMPARED, rows, unknown=None)
    differing = sum(not row["match"] for row in rows)
    if differing:
        ctl.show(table)
        raise CtlError(exits.UNAVAILABLE, f"{differing} of {len(rows)} logs differ")
    return table


@command("Reading all stored data ...", "scrub")
def scrub(ctl: Session) -> ReportLines:
    """Read all data again and repair damaged chunks from the other side. Fail if damage remains."""
    found = ctl.api.post_without_timeout("replication", "scrub", body={})
    left = found["unrepaired"]
    lines = [
        ("Chunks read", f"{found['chunks']} ({_size(found['octets'])})"),
        ("Damaged", found["damaged"]),
        ("Repaired", found["repaired"]),
        *(("Not repaired", each) for each in left),
    ]
    report = ReportLines(lines, found)
    if left:
        ctl.show(report)
        raise CtlError(exits.UNAVAILABLE, f"not repaired: {len(left)} of {found['damaged']} damaged chunks")
    return report


@command("", "list_divergent_messages --export divergent.json")
def list_divergent_messages(
    ctl: Session,
    report: Annotated[str | None, Option(metavar="ID", help="Only messages of this report.")] = None,
    limit: Annotated[
        int | None,
        Option(
            min=0,
            help=f"Maximum number of messages to show; by default {_MESSAGES_SHOWN} in a table, else all of them.",
        ),
    ] = None,
    export: Annotated[
        str | None,
        Option(metavar="FILE", help="Write all messages as a JSON array to a file; - for standard output."),
    ] = None,
) -> ReportLines | Table | MessageLine | None:
    """List quarantined messages: those that only a previous leader, a mirror or a lost upstream had.

    In a cluster the list has those of all running nodes.
    """
    reports = ctl.api.get("replication", "divergent")
    if report is not None:
        reports = [each for each in reports if each["id"] == report]
        if not reports:
            raise CtlError(exits.DATA, f"there is no report '{report}'")
    with closing(_messages(ctl, report)) as messages:
        if export is not None:
            return _export(ctl, export, messages)
        if ctl.is_for_people:
            ctl.announce("Listing quarantined messages ...")
            ctl.show(Table.of(with_node(_QUARANTINED, reports), _by_queue(reports), unknown=None))
            return _first_messages(ctl, messages, _MESSAGES_SHOWN if limit is None else limit)
        shown = list(islice(messages, limit))
        table = Table.of(with_node(_MESSAGE, reports), shown, unknown=None)
        return ReportLines([], {"reports": reports, "messages": shown}, table)


def _messages(ctl: Session, report: str | None) -> Generator[dict[str, Any]]:
    """The quarantined messages, as the node reads them.

    Raises:
        CtlError: one of them cannot be read.
    """
    query = {} if report is None else {"report": report}
    with closing(ctl.api.get_lines("replication", "divergent", "messages", **query)) as lines:
        for line in lines:
            if "error" in line:
                raise CtlError(exits.SOFTWARE, line["reason"])
            yield line


def _export(ctl: Session, file: str, messages: Iterator[dict[str, Any]]) -> MessageLine | None:
    if file == _PIPE:
        write_array(None, messages)
        return None
    ctl.announce(f'Exporting messages in JSON to a file at "{file}" ...')
    count = write_array(Path(file), messages)
    return MessageLine(f"{count} messages were exported", {"result": "ok", "messages": count, "file": file})


def _first_messages(ctl: Session, messages: Iterator[dict[str, Any]], limit: int) -> Table:
    """The table of the first messages, with a note if there are more."""
    shown = [_abridged(each) for each in islice(messages, limit)]
    if next(messages, None) is not None:
        ctl.announce(f"The first {limit} messages; --limit shows more, --export has all of them:")
    return Table.of(with_node(_MESSAGE, shown), shown, unknown=None)


def _abridged(message: dict[str, Any]) -> dict[str, Any]:
    payload = message["payload"]
    if len(payload) <= _PAYLOAD_CHARACTERS_SHOWN:
        return message
    return {**message, "payload": payload[:_PAYLOAD_CHARACTERS_SHOWN] + "..."}


def _by_queue(reports: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row a report and queue; a report without messages also has one."""
    for each in reports:
        common = {**each, "report": each["id"], "at": _time(each["at_ms"]), "logs": len(each["logs"])}
        for queue in each["queues"] or [{}]:
            yield {**common, **queue}


def _followers(ctl: Session, status: Mapping[str, Any], columns: tuple[str, ...] | list[str]) -> Table:
    rows = status["followers"]
    if ctl.is_for_people:
        rows = [{**row, "progress": _progress(row["progress"])} for row in rows]
    return Table.of(columns, rows, unknown=None)


def _node_lines(status: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The lines for every node."""
    lines = [
        ("Node", status["node"]),
        ("Node id", status["node_id"]),
        ("Role", status["role"]),
        ("State", status["state"]),
        ("Error", status["error"]),
        ("Incomplete", status["incomplete"]),
        ("Epoch", status["epoch"]),
        *_election(status["etcd"]),
        ("Scrub", _scrubbed(status["scrub"])),
        ("Followers connect to", status["listener"] or "(no listener)"),
        ("Clients passed on to this node", status["proxied_here"] or None),
        *(_proxy(status["proxy"]) if status["role"] != "leader" else ()),
    ]
    return [line for line in lines if line[1] not in (None, "")]


def _proxy(proxy: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """The clients that a node passes on while it does not lead; nothing if it passes none on."""
    if proxy is None:
        return []
    counts = (
        f"{proxy['connections']} connections now, {proxy['passed_on']} so far, {proxy['refused']} refused"
    )
    return [
        ("Clients are passed on to", ", ".join(proxy["leaders"]) or "(no leader known)"),
        ("Passed on", counts),
        ("Last refusal", proxy["last_refusal"]),
    ]


def _election(etcd: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """The leader in etcd, and the possible leaders if there is none; nothing without etcd."""
    if etcd is None:
        return []
    leader, left_ms = etcd["leader"], etcd["lease_left_ms"]
    is_reached = "reached" if etcd["reachable"] else "not reached"
    return [
        ("etcd", f"{', '.join(etcd['endpoints'])}, {is_reached}"),
        ("etcd's error", etcd["last_error"]),
        ("Elected", f"{leader['uri']} in epoch {leader['epoch']}" if leader else "(none)"),
        ("Lease", f"held, {left_ms / 1000:.1f} s left" if etcd["holds_lease"] and left_ms else None),
        ("May be elected", "any node" if etcd["in_sync"] is None else ", ".join(etcd["in_sync"])),
        # A node of an older version does not say so.
        ("Not elected", etcd.get("not_elected")),
    ]


def _promises(status: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """A leader's lines: its position, and the followers that its confirms wait for."""
    return [
        ("Position", f"{status['position']} bytes, {status['records']} records"),
        ("Confirms wait for", _waited_for(status)),
        ("In sync", ", ".join(status["in_sync"]) or "(none)"),
    ]


def _replacement(leader: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """A fenced node's lines: the node that replaced it."""
    if leader is None:
        return []
    uri = leader["uri"] or "(a node without replication.bind, which no other node can follow)"
    return [("Replaced by", uri), ("Leader's epoch", leader["epoch"])]


def _waited_for(status: Mapping[str, Any]) -> str:
    if status["confirm"] == "local":
        return "this node"
    text = "this node and all followers in sync"
    if not status["min_in_sync"]:
        return text
    return f"{text}, at least {status['min_in_sync']}; else {_SHORT[status['below_min_in_sync']]}"


def _leader_lines(leader: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """A follower's lines: its leader, and its position."""
    if leader is None:
        return [("Leader", "(none known)")]
    since = _time(leader["connected_at_ms"]) if leader["connected_at_ms"] else "(not connected)"
    name = f" ({leader['name']})" if leader["name"] else ""
    lines = [
        ("Leader", f"{leader['uri']}{name}"),
        ("Leader's epoch", leader["epoch"]),
        ("Connected since", since),
        ("Newest record", _time(leader["newest_at_ms"], "milliseconds") if leader["newest_at_ms"] else None),
        ("Position", _applied(leader)),
        ("Lag", _lag(leader)),
        ("Apply delay", f"{leader['apply_delay_s']:g} s" if leader["apply_delay_s"] else None),
        ("Held back", _delayed_changes(leader["held_back"])),
        ("Received", f"{leader['received_bytes']} bytes"),
        ("Progress", _progress(leader["progress"])),
    ]
    return [line for line in lines if line[1] not in (None, "")]


def _applied(leader: Mapping[str, Any]) -> str:
    applied, position = leader["applied_position"], leader["position"]
    if position is None:
        return "not known"
    # The changes that a delayed follower can leave out are counted by time.
    return f"{position} bytes at the leader" if applied is None else f"{applied} of {position} bytes"


def _lag(leader: Mapping[str, Any]) -> str:
    known = (leader["lag_records"], "records"), (leader["lag_bytes"], "bytes"), (leader["lag_s"], "s")
    amounts = [f"{round(value, 1)} {unit}" for value, unit in known if value is not None]
    return ", ".join(amounts) or "not known"


def _delayed_changes(existing: Mapping[str, Any] | None) -> str | None:
    """The changes that a delayed follower can leave out."""
    if existing is None:
        return None
    amounts = f"{existing['messages']} messages, {existing['records']} records, {_size(existing['bytes'])}"
    if existing["oldest_at_ms"] is None:
        return amounts
    return f"{amounts}; done by the leader from {_time(existing['oldest_at_ms'])} to {_time(existing['newest_at_ms'])}"


def _loss(lost: Mapping[str, Any]) -> str:
    """The actual or possible loss, as far as known."""
    amounts = f"{lost['messages']} messages, {lost['bytes']} bytes"
    if lost["messages"] is None:
        amounts = f"{lost['bytes']} bytes and an unknown number of messages"
    if lost["known"]:
        return f"{amounts}, {lost['seconds']:.1f} s"
    if lost["seconds"] is None:
        return "not known, the leader was not reached since the start"
    text = f"not known, the leader was last heard {lost['seconds']:.1f} s ago"
    return text if lost["bytes"] is None else f"{text}; {amounts} were missing then"


def _scrubbed(scrub: Mapping[str, Any]) -> str:
    counts = f"{scrub['chunks']} chunks read, {scrub['damaged']} damaged, {scrub['repaired']} repaired"
    last = f"last at {_time(scrub['last_at_ms'])}" if scrub["last_at_ms"] else "not yet"
    error = f"; {scrub['error']}" if scrub["error"] else ""
    return f"{'running' if scrub['running'] else last}, {counts}{error}"


def _progress(progress: Mapping[str, Any] | None) -> str | None:
    """The share done, the rate and the remaining time of a join."""
    if progress is None:
        return None
    done, total = progress["bytes_done"], progress["bytes_total"]
    text = f"{_size(done)} of {_size(total)}"
    if progress["rate_bytes_s"]:
        text += f", {_size(progress['rate_bytes_s'])}/s"
    left = progress["seconds_left"]
    return text if left is None else f"{text}, {left:.0f} s left"


def _size(octets: float) -> str:
    """Octets in a unit that leaves few digits."""
    for unit in _UNITS:
        if octets < 1000 or unit == _UNITS[-1]:
            break
        octets /= 1000
    return f"{octets:.0f} {unit}" if unit == _UNITS[0] else f"{octets:.1f} {unit}"


def _time_ms(text: str) -> int:
    """Milliseconds since 1970.

    Raises:
        CtlError: the text is not a time.
    """
    try:
        return moment_ms(text)
    except ValueError:
        raise CtlError(exits.USAGE, f"{text!r} is no time such as 2026-11-21T14:30:00") from None


def _time(at_ms: int, unit: str = "seconds") -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec=unit)
