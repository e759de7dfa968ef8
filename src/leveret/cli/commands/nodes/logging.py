"""The node's log."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.checks import refused_as
from leveret.cli.command import Session, command
from leveret.cli.output.values import MessageLine, TextDocument

_POLL_S: Final = 0.5
_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "none")


@command("Log file location(s) on node {node} ...", "log_location")
def log_location(ctl: Session) -> MessageLine:
    """Show the node's log files."""
    places = ctl.api.get("operations", "log")["places"]
    return MessageLine("\n".join(places), {"result": "ok", "node_name": ctl.node, "paths": places})


@command("Last {number} log lines on node {node} ...", "log_tail -N 20")
def log_tail(
    ctl: Session,
    number: Annotated[int, Option("--number", "-N", min=1, max=10_000, help="Number of lines.")] = 50,
) -> TextDocument:
    """Print the last lines of the log file."""
    with refused_as(exits.UNAVAILABLE):
        found = ctl.api.get("operations", "log", "lines", str(number))
    return TextDocument("\n".join(found["lines"]))


@command("Streaming logs from node {node} ...", "log_tail_stream --duration 60")
def log_tail_stream(
    ctl: Session,
    duration: Annotated[
        float | None,
        Option("--duration", "-d", min=0, help="Seconds to print; by default until interrupted."),
    ] = None,
) -> None:
    """Print new log lines as they are written."""
    ends_s = None if duration is None else time.monotonic() + duration
    with refused_as(exits.UNAVAILABLE):
        offset = _more(ctl, None)["offset"]
        while ends_s is None or time.monotonic() < ends_s:
            more = _more(ctl, offset)
            offset = more["offset"]
            sys.stdout.write(more["text"])
            sys.stdout.flush()
            if not more["text"]:
                time.sleep(_POLL_S)


@command("Reopening logs for node {node} ...", "rotate_logs")
def rotate_logs(ctl: Session) -> None:
    """Reopen the log file after the old one was moved away. log.file.rotation.* need no command."""
    with refused_as(exits.UNAVAILABLE):
        ctl.api.post("operations", "log", "reopen")


@command("", "set_log_level debug")
def set_log_level(
    ctl: Session, level: Annotated[str, Argument(help=f"One of {', '.join(_LEVELS)}.")]
) -> None:
    """Set the log level of all outputs, until the next start."""
    if level not in _LEVELS:
        raise CtlError(exits.UNAVAILABLE, f"level {level} is not supported. Try one of {', '.join(_LEVELS)}")
    ctl.announce(f'Setting log level to "{level}" ...')
    ctl.api.put("operations", "log", "level", body={"level": level})


def _more(ctl: Session, offset: int | None) -> dict[str, Any]:
    """The log file's text from an offset on; from its end without one."""
    found: dict[str, Any] = ctl.api.get("operations", "log", "text", "end" if offset is None else str(offset))
    return found
