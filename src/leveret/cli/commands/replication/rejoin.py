"""The rejoin of an upstream that lost its place."""

from __future__ import annotations

from typing import Annotated, Any, Final

from typer import Option

from leveret.cli.command import Session, command
from leveret.cli.output.values import ReportLines, Table

_QUEUES: Final = ("virtual_host", "queue", "messages", "settlements_lost")


@command("Coming back as a downstream ...", "rejoin_as_downstream")
def rejoin_as_downstream(
    ctl: Session,
    set_all_aside: Annotated[
        bool,
        Option(
            "--set-all-aside",
            help="Follow even a node that was no standby of this one, such as the successor of its successor. All "
            "messages of the replicated queues are quarantined.",
        ),
    ] = False,
) -> ReportLines:
    """Follow the promoted node, and quarantine messages that it never received."""
    found = ctl.api.post_without_timeout(
        "replication", "standby", "rejoin", body={"set_all_aside": set_all_aside}
    )
    never_seen = f"{found['messages']} messages, kept here" if found["messages"] else "nothing"
    lines = [("Following", ", ".join(found["upstream_endpoints"])), ("Never seen there", never_seen)]
    if found["report"]:
        lines += [
            ("Consumed here only", f"{found['settlements_lost']} messages, which are there again"),
            *(("See them with", place) for place in _places(found)),
        ]
    columns = ("node", *_QUEUES) if found.get("places") else _QUEUES
    return ReportLines(lines, found, Table.of(columns, found["queues"], unknown=None))


def _places(found: dict[str, Any]) -> list[str]:
    """The commands that show the reports; those of a cluster are at several nodes."""
    command_line = "list_divergent_messages --report"
    if places := found.get("places"):
        return [f"{command_line} {each['report']}, at {each['node']}" for each in places]
    return [f"{command_line} {report}" for report in found["reports"]]
