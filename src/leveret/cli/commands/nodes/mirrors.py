"""Mirrors of queues, and the policies for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

from typer import Argument

from leveret.cli import exits
from leveret.cli.api import CtlError, NotFoundByApi, TimedOut
from leveret.cli.checks import refused_as
from leveret.cli.command import Session, command
from leveret.cli.commands.broker.policies import policy_table
from leveret.cli.commands.nodes.health import passed
from leveret.cli.completion import queues
from leveret.cli.output.progress_bar import ProgressBar
from leveret.cli.output.values import MessageLine, Table
from leveret.cli.read_modify_write import Fields, read_modify_write

Name = Annotated[str, Argument(help="Name of the queue.", autocompletion=queues)]

_POLL_S: Final = 0.2
_RECORDED_S: Final = 2.0
"""The time until etcd names a mirror that has just caught up."""
_SYNCING: Final = "syncing"
_RUNNING: Final = "running"
_POLICIES: Final = "policies"
_OPERATOR_POLICIES: Final = "operator-policies"
_KEYS: Final = "ha-"
"""The prefix of mirroring's policy keys."""


@command("Synchronising queue '{name}' in vhost '{vhost}' ...", "sync_queue -p orders paid")
def sync_queue(ctl: Session, name: Name) -> None:
    """Synchronise a queue's mirrors and wait for the end. The queue stays in service."""
    with refused_as(exits.UNAVAILABLE), _found():
        ctl.api.post("cluster", "sync", ctl.vhost, name)
    deadline_s = None if ctl.timeout_s is None else time.monotonic() + ctl.timeout_s
    shows = sys.stderr.isatty() and not ctl.quiet
    # The wait for a queue that is deleted meanwhile is over.
    with ProgressBar(shows, "synchronising", _columns) as bar, suppress(NotFoundByApi):
        while (queue := ctl.api.get("queues", ctl.vhost, name))["state"] == _SYNCING:
            _show(bar, queue)
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimedOut(
                    exits.RETRY, f"queue '{name}' is still being synchronised; the synchronisation continues"
                )
            time.sleep(_POLL_S)
        recorded_by_s = time.monotonic() + _RECORDED_S
        while queue["state"] == _RUNNING and _missing_mirrors(queue) and time.monotonic() < recorded_by_s:
            time.sleep(_POLL_S)
            queue = ctl.api.get("queues", ctl.vhost, name)
        _check_synchronised(queue)


def _missing_mirrors(queue: dict[str, Any]) -> list[str]:
    """The running mirrors that are not recorded as synchronised."""
    return sorted(set(queue.get("slave_nodes") or ()) - set(queue.get("synchronised_slave_nodes") or ()))


def _check_synchronised(queue: dict[str, Any]) -> None:
    """Raises CtlError: the queue is down, or a running mirror lacks messages."""
    whose = f"queue '{queue['name']}' in vhost '{queue['vhost']}'"
    if queue["state"] != _RUNNING:
        raise CtlError(exits.UNAVAILABLE, f"{whose} is {queue['state']}: it cannot be synchronised")
    missing = _missing_mirrors(queue)
    if missing:
        reason = "the synchronisation was cancelled, or the node is not connected"
        raise CtlError(exits.UNAVAILABLE, f"{whose} is not synchronised at {', '.join(missing)}: {reason}")


@command("Stopping synchronising queue '{name}' in vhost '{vhost}' ...", "cancel_sync_queue -p orders paid")
def cancel_sync_queue(ctl: Session, name: Name) -> MessageLine | None:
    """Stop a synchronisation. A mirror keeps the messages that it has received."""
    with _found():
        found = ctl.api.delete_with_answer("cluster", "sync", ctl.vhost, name)
    return None if found["was_syncing"] else MessageLine("not_syncing")


@command(
    "Listing policies with classic queue mirroring ...",
    "list_policies_with_classic_queue_mirroring -s --formatter=pretty_table",
)
def list_policies_with_classic_queue_mirroring(ctl: Session) -> Table:
    """List the policies of all virtual hosts that mirror queues."""
    return policy_table(_mirroring(ctl, _POLICIES))


@command(
    "Listing operator policies with classic queue mirroring ...",
    "list_operator_policies_with_classic_queue_mirroring -s --formatter=pretty_table",
)
def list_operator_policies_with_classic_queue_mirroring(ctl: Session) -> Table:
    """List the operator policies of all virtual hosts that mirror queues."""
    return policy_table(_mirroring(ctl, _OPERATOR_POLICIES))


@command(
    "Checking if cluster has any classic queue mirroring policy ...",
    "check_if_cluster_has_classic_queue_mirroring_policy",
)
def check_if_cluster_has_classic_queue_mirroring_policy(ctl: Session) -> MessageLine:
    """Fail if a policy mirrors queues. RabbitMQ 4 refuses such policies; Leveret does not."""
    found = [f"Policy {each['name']}" for each in _mirroring(ctl, _POLICIES)]
    found += [f"Operator policy {each['name']}" for each in _mirroring(ctl, _OPERATOR_POLICIES)]
    if found:
        raise CtlError(
            exits.UNAVAILABLE, "; ".join(f"{each} enables classic queue mirroring" for each in found)
        )
    return passed(ctl, "Cluster reported no policies that enable classic queue mirroring")


@command(
    "Will remove keys that enable classic queue mirroring from all regular and operator policies",
    "remove_classic_queue_mirroring_from_policies",
)
def remove_classic_queue_mirroring_from_policies(ctl: Session) -> None:
    """Disable mirroring: remove the ha-* keys from all policies, and clear policies without other keys."""
    for path in (_POLICIES, _OPERATOR_POLICIES):
        for policy in _mirroring(ctl, path):
            # A policy that somebody deletes meanwhile mirrors nothing any more.
            with refused_as(exits.UNAVAILABLE), suppress(NotFoundByApi):
                read_modify_write(ctl.api, path, policy["vhost"], policy["name"], change=_without_mirroring)


def _without_mirroring(policy: Fields) -> Fields | None:
    """The policy without the keys of mirroring; None if no other is left."""
    left = {key: value for key, value in policy["definition"].items() if not key.startswith(_KEYS)}
    fields = {key: policy[key] for key in ("pattern", "priority", "apply-to")}
    return {**fields, "definition": left} if left else None


def _mirroring(ctl: Session, path: str) -> list[dict[str, Any]]:
    existing = ctl.api.get(path)
    return [each for each in existing if any(key.startswith(_KEYS) for key in each["definition"])]


@contextmanager
def _found() -> Iterator[None]:
    """Report a missing queue in RabbitMQ's words."""
    try:
        yield
    except NotFoundByApi:
        raise CtlError(exits.UNAVAILABLE, "not_found") from None


def _columns() -> list[Any]:
    """The column of octets."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    return [DownloadColumn(), TransferSpeedColumn()]


def _show(bar: ProgressBar, queue: dict[str, Any]) -> None:
    """Take the leader's report of all synchronising mirrors."""
    progresses = [
        each["progress"] for each in queue.get("mirror_details", []) if each["progress"] is not None
    ]
    if progresses:
        done, total = (sum(each[name] for each in progresses) for name in ("bytes_done", "bytes_total"))
        count = f"{len(progresses)} mirror{'s' if len(progresses) > 1 else ''}"
        bar.update(completed=done, total=total, description=f"synchronising {count}")
