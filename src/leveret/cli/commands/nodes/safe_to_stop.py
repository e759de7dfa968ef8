"""Whether a node can stop without harm to a queue or a follower: as a check, as a wait, and before a stop."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from typer import Option

from leveret.cli import exits
from leveret.cli.api import CtlError, NodeUnreachable
from leveret.cli.command import Session, command
from leveret.cli.commands.nodes.cluster import wait_until
from leveret.cli.commands.nodes.health import passed, single
from leveret.cli.output.values import MessageLine

FORCE: TypeAlias = Annotated[
    bool, Option("--force", help="Go on although queues, streams or followers would lack a copy or a home.")
]
_TIMEOUT_S: Final = 120
_SINGLE: Final = "single node cluster"
_ONLY_ONE: Final = "Target node seems to be the only one in a single node cluster, the command does not apply"


class _Danger(NamedTuple):
    """A danger for queues when a node stops, in RabbitMQ's words.

    Attributes:
        check: the health check for it.
        none: the objects that a safe node does not have.
        becomes: the outcome for a queue in danger.
        awaited: the awaited state.
        late: the state that was not reached in time.
        query: the check's query.
    """

    check: str
    none: str
    becomes: str
    awaited: str
    late: str
    query: Mapping[str, str] = MappingProxyType({})


_NO_MIRROR: Final = _Danger(
    "node-is-mirror-sync-critical",
    "classic mirrored queues without online synchronised mirrors",
    "would lose its only synchronised replica (master)",
    "a synchronised mirror be online for all classic mirrored queues",
    "no synchronised mirror came online for at least some classic mirrored queues",
)
_NO_OTHER_COPY: Final = _NO_MIRROR._replace(query=MappingProxyType({"only_copies": "true"}))
_NO_QUORUM: Final = _Danger(
    "node-is-quorum-critical",
    "quorum queues with minimum quorum",
    "would lose quorum",
    "a quorum + 1 of nodes to be online for all quorum queues",
    "no quorum + 1 of nodes came online for at least some quorum queues",
)


@command(
    "Checking if node {node} is critical for data safety of any classic mirrored queues ...",
    "check_if_node_is_mirror_sync_critical",
)
def check_if_node_is_mirror_sync_critical(ctl: Session) -> MessageLine:
    """Fail if the node leads mirrored queues without a synchronised mirror.

    Streams and transient queues, whose only copy is at the node that leads them, count as well.
    """
    return _checked(ctl, _NO_OTHER_COPY)


@command("", "await_online_synchronized_mirror --timeout 60")
def await_online_synchronized_mirror(ctl: Session) -> MessageLine | None:
    """Wait until every mirrored queue of this leader has a synchronised mirror; two minutes by default."""
    return _awaited(ctl, _NO_MIRROR)


@command(
    "Checking if node {node} is critical for quorum of any quorum queues ...",
    "check_if_node_is_quorum_critical",
)
def check_if_node_is_quorum_critical(ctl: Session) -> MessageLine:
    """Fail if stopping the node would leave quorum queues without a majority of members."""
    return _checked(ctl, _NO_QUORUM)


@command("", "await_online_quorum_plus_one --timeout 60")
def await_online_quorum_plus_one(ctl: Session) -> MessageLine | None:
    """Wait until the node can stop with a majority left in every quorum queue; two minutes by default."""
    return _awaited(ctl, _NO_QUORUM)


@command("Checking if node {node} is safe to stop ...", "check_if_safe_to_stop")
def check_if_safe_to_stop(ctl: Session) -> MessageLine:
    """Fail if stopping the node would leave a queue, stream or follower without a copy, a majority or a home.

    The error names each of them, with the reason. stop, shutdown and drain check the same, unless there is --force.
    """
    found, lines = _stop_verdict(ctl)
    if lines:
        raise CtlError(exits.UNAVAILABLE, "; ".join(lines))
    if found.get("reason") == _SINGLE:
        return single(ctl)
    text = f"Node {ctl.node} is safe to stop: every queue, stream and follower keeps a copy, a majority and a home"
    return passed(ctl, text)


def refuse_unless_safe(ctl: Session) -> None:
    """Before a stop or a drain: raise CtlError that names what would be harmed; a silent node harms nothing."""
    try:
        _, lines = _stop_verdict(ctl)
    except NodeUnreachable:
        return
    if lines:
        hint = "nothing was done; wait until the copies are there, or go on with --force"
        raise CtlError(exits.UNAVAILABLE, "; ".join([*lines, hint]))


def _stop_verdict(ctl: Session) -> tuple[dict[str, Any], list[str]]:
    """The verdict, and a sentence for each object in danger."""
    found = ctl.api.verdict("health", "checks", "node-is-safe-to-stop")
    dangers = found.get("dangers", ())
    return found, [
        f"{each['readable_name']} {each['lack']} if node {ctl.node} is stopped" for each in dangers
    ]


def _checked(ctl: Session, danger: _Danger) -> MessageLine:
    found = _verdict(ctl, danger)
    if found["status"] != "ok":
        lines = [
            f"{each['readable_name']} {danger.becomes} if node {ctl.node} is stopped"
            for each in found["queues"]
        ]
        raise CtlError(exits.UNAVAILABLE, "; ".join(lines))
    return single(ctl) if found.get("reason") else passed(ctl, f"Node {ctl.node} reported no {danger.none}")


def _awaited(ctl: Session, danger: _Danger) -> MessageLine | None:
    timeout_s = ctl.timeout_s or _TIMEOUT_S
    ctl.announce(f"Will wait for {danger.awaited} for {timeout_s} seconds...")
    if _verdict(ctl, danger).get("reason") == _SINGLE:
        return passed(ctl, _ONLY_ONE)
    if not wait_until(lambda: _verdict(ctl, danger)["status"] == "ok", timeout_s):
        raise CtlError(exits.UNAVAILABLE, f"time is up, {danger.late}")
    return None


def _verdict(ctl: Session, danger: _Danger) -> dict[str, Any]:
    return ctl.api.verdict("health", "checks", danger.check, **danger.query)
