"""A node's start and end: whether it runs, waiting for it, and stopping it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError, NodeUnreachable, TimedOut
from leveret.cli.command import Session, command
from leveret.cli.commands.nodes.safe_to_stop import FORCE, refuse_unless_safe
from leveret.cli.data_dir import PID_MAX, holder
from leveret.cli.output.values import MessageLine
from leveret.model.whole_number import whole_number

_POLL_S: Final = 0.1
_SUSPENDED: Final = "suspended"
_START_TIMEOUT_S: Final = 300
_STOP_TIMEOUT_S: Final = 300
_WAIT_TIMEOUT_S: Final = 10


@command("Will ping the node. Timeout: 60000 ms.", "ping")
def ping(ctl: Session) -> MessageLine:
    """Check that the node's process answers."""
    ctl.api.get("whoami")
    return MessageLine("Ping succeeded", {"result": "ok"})


@command("Asking node {node} for its status ...", "is_running")
def is_running(ctl: Session) -> MessageLine:
    """Show whether the node is fully started."""
    text = f"Leveret on node {ctl.node} is fully booted and running"
    return MessageLine(text, {"result": True, "message": text})


@command("Asking node {node} for its boot status ...", "is_booting")
def is_booting(ctl: Session) -> MessageLine:
    """Show whether the node is still starting. Its API answers after the start."""
    text = f"Leveret on node {ctl.node} is fully booted (check with is_running), stopped or has not started booting yet"
    return MessageLine(text, {"result": False, "message": text})


@command("Checking if Leveret is running on node {node} ...", "check_running")
def check_running(ctl: Session) -> MessageLine:
    """Exit with status 0 if the node is fully started, else with 69."""
    if ctl.api.get("replication", "node")["role"] == _SUSPENDED:
        raise CtlError(
            exits.UNAVAILABLE, f"node {ctl.node} has no lease in etcd, and serves no client until it has one"
        )
    return MessageLine(
        f"Leveret on node {ctl.node} is fully booted and running", {"result": "ok", "node": ctl.node}
    )


@command("", "await_startup --timeout 60")
def await_startup(ctl: Session) -> None:
    """Wait until the node answers, five minutes by default."""
    _await(ctl, _START_TIMEOUT_S, lambda: None)


@command("", "wait --timeout 60 /run/leveret.pid")
def wait(
    ctl: Session,
    pid_file: Annotated[
        Path | None, Argument(help="File with the node's process id. The command waits for the file, too.")
    ] = None,
    pid: Annotated[
        int | None, Option("--pid", "-P", min=1, max=PID_MAX, help="The node's process id.")
    ] = None,
) -> MessageLine:
    """Wait until a starting node answers, ten seconds by default. The wait ends at once if the process ends."""
    found: list[int] = [] if pid is None else [pid]

    def check() -> None:
        if not found and pid_file is not None and pid_file.exists():
            found.extend(_pid_in(pid_file))
        if found and not _is_alive(found[0]):
            raise CtlError(exits.UNAVAILABLE, f"process {found[0]} ended before the node answered")

    awaited = "process " + str(pid) if pid else pid_file or "the node"
    ctl.announce(f"Waiting for {awaited} to start ...", needs_node=False)
    _await(ctl, _WAIT_TIMEOUT_S, check)
    return MessageLine("Node started", {"result": "ok"})


@command("", "stop")
def stop(
    ctl: Session,
    pid_file: Annotated[
        Path | None, Argument(help="File with the node's process id; by default the data directory's.")
    ] = None,
    idempotent: Annotated[bool, Option("--idempotent", help="End with status 0 if no node runs.")] = False,
    force: FORCE = False,
) -> MessageLine:
    """Stop the node in order and wait for its end. Confirmed messages are kept.

    Refused if the node is not safe to stop, see check_if_safe_to_stop. With a pid file alone, nothing is checked.
    """
    pid = _running(ctl, pid_file)
    if pid is None:
        if idempotent:
            return MessageLine("no node is running", {"result": "ok"})
        raise NodeUnreachable(f"no node runs on {pid_file or ctl.data_dir}")
    _refuse_unless_safe(ctl, pid, force=force)
    ctl.announce(f"Stopping the node of process {pid} ...", needs_node=False)
    _end(ctl, pid, waits=True)
    return MessageLine(f"The node of process {pid} has ended", {"result": "ok"})


@command("", "shutdown")
def shutdown(
    ctl: Session,
    waits: Annotated[bool, Option("--wait/--no-wait", help="Wait for the node's end.")] = True,
    force: FORCE = False,
) -> MessageLine:
    """Stop the node in order, like stop, with or without waiting."""
    pid = _running(ctl, None)
    if pid is None:
        raise NodeUnreachable(f"no node runs on {ctl.data_dir}")
    _refuse_unless_safe(ctl, pid, force=force)
    ctl.announce(f"Shutting down the node running at PID {pid}", needs_node=False)
    if waits:
        ctl.announce(f"Waiting for PID {pid} to terminate", needs_node=False)
    _end(ctl, pid, waits=waits)
    done = "successfully shut down" if waits else "was told to shut down"
    return MessageLine(f"The node running at PID {pid} {done}", {"result": "ok"})


def _await(ctl: Session, timeout_s: int, check: Callable[[], None]) -> None:
    """Poll until the node answers; `check` ends the wait by raising.

    Raises:
        NodeUnreachable: it did not in time.
    """
    timeout_s = timeout_s if ctl.timeout_s is None else ctl.timeout_s
    deadline_s = time.monotonic() + timeout_s
    while True:
        check()
        try:
            with ctl.open() as api:
                api.get("whoami")
            return
        except NodeUnreachable as error:
            if time.monotonic() > deadline_s:
                raise NodeUnreachable(f"{error} (waited {timeout_s} s)") from None
            time.sleep(_POLL_S)


def _refuse_unless_safe(ctl: Session, pid: int, *, force: bool) -> None:
    """A pid file of its own does not say where its node answers: only the data directory's node is asked."""
    if not force and ctl.data_dir is not None and holder(ctl.data_dir) == pid:
        refuse_unless_safe(ctl)


def _running(ctl: Session, pid_file: Path | None) -> int | None:
    """The process id of the node of a data directory, or in a file; None if it does not run.

    Raises:
        CtlError: neither names a node.
    """
    if pid_file is not None:
        found = next((pid for pid in _pid_in(pid_file) if _is_alive(pid)), None)
        if found is not None and not _is_ours(found):
            raise CtlError(
                exits.UNAVAILABLE,
                f"process {found}, which {pid_file} names, is no node of Leveret: the file is of a process that has "
                "ended; nothing was stopped",
            )
        return found
    if ctl.data_dir is None:
        raise CtlError(exits.USAGE, "name the node by --data-dir or a pid file; it must run on this machine")
    return holder(ctl.data_dir)


def _end(ctl: Session, pid: int, *, waits: bool) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise CtlError(exits.NO_PERMISSION, f"process {pid} belongs to another user") from None
    except ProcessLookupError:
        return
    deadline_s = time.monotonic() + (ctl.timeout_s or _STOP_TIMEOUT_S)
    while waits and _is_alive(pid):
        if time.monotonic() > deadline_s:
            raise TimedOut(exits.RETRY, f"process {pid} received the signal to end and is still running")
        time.sleep(_POLL_S)


def _pid_in(path: Path) -> list[int]:
    """The process id in a file, if there is one."""
    text = path.read_text(errors="replace").strip() if path.exists() else ""
    pid = whole_number(text, least=1, most=PID_MAX)
    return [] if pid is None else [pid]


def _is_ours(pid: int) -> bool:
    """Whether a process is Leveret's: after a crash of a node, another program may have got its process id."""
    try:
        return b"leveret" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and whose parent has not waited for it does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
