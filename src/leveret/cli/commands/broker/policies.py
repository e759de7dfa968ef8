"""Policies."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError, NotFoundByApi
from leveret.cli.checks import json_of, json_text, listed, need_vhost, refused_as
from leveret.cli.command import Session, command
from leveret.cli.completion import policies
from leveret.cli.output.values import Table
from leveret.model.patterns import stored

Name = Annotated[str, Argument(help="Name of the policy.", autocompletion=policies)]
Pattern = Annotated[str, Argument(help="Regular expression for the names of queues or exchanges.")]
Definition = Annotated[
    str, Argument(help='JSON, as {"remote-dc-replicate": true}; - reads it from standard input.')
]
Priority = Annotated[
    int, Option(help="Of several matching policies the one with the highest priority applies.")
]
ApplyTo = Annotated[str, Option(help="queues, classic_queues, quorum_queues, streams, exchanges or all.")]
_REPLICATE: Final = "remote-dc-replicate"
STANDBY_TAG: Final = "standby_replication"
_COLUMNS: Final = ("vhost", "name", "pattern", "apply-to", "definition", "priority")


@command(
    'Setting policy "{name}" for pattern "{pattern}" to "{definition}" '
    'with priority "{priority}" for vhost "{vhost}" ...',
    "set_policy -p orders short '^tmp\\.' '{\"max-length\": 1000}' --priority 1 --apply-to queues",
)
def set_policy(
    ctl: Session,
    name: Annotated[str, Argument(help="Name of the policy.")],
    pattern: Pattern,
    definition: Definition,
    priority: Priority = 0,
    apply_to: ApplyTo = "all",
) -> None:
    """Set a policy, which applies at once."""
    if put_policy(ctl, "policies", name, pattern, definition, priority, apply_to).get(_REPLICATE) is True:
        _warn_of_missing_tag(ctl)


def _warn_of_missing_tag(ctl: Session) -> None:
    """Warn if a replication policy has no effect, because the virtual host is not tagged."""
    tags = ctl.api.get("vhosts", ctl.vhost).get("tags", [])
    if STANDBY_TAG not in tags:
        wanted = ",".join([*tags, STANDBY_TAG])
        typer.echo(
            f"Warning: nothing is replicated before vhost '{ctl.vhost}' has the tag {STANDBY_TAG}: "
            f"leveretctl update_vhost_metadata '{ctl.vhost}' --tags {wanted}",
            err=True,
        )


@command('Clearing policy "{name}" on vhost "{vhost}" ...', "clear_policy -p orders short")
def clear_policy(ctl: Session, name: Name) -> None:
    """Clear a policy."""
    delete_policy(ctl, "policies", name)


@command('Listing policies for vhost "{vhost}" ...', "list_policies -p orders")
def list_policies(ctl: Session) -> Table:
    """List the policies of a virtual host."""
    return policy_table(listed(ctl, "policies"))


@command(
    'Listing policies that match {kind} "{name}" in vhost "{vhost}" ...', "list_policies_that_match tmp.a"
)
def list_policies_that_match(
    ctl: Session,
    name: Annotated[str, Argument(help="Name of a queue or an exchange; it need not exist.")],
    kind: Annotated[str, Option("--object-type", help="queue or exchange.")] = "queue",
) -> Table:
    """List the policies whose pattern matches a name. The first one applies."""
    wanted = (
        ("exchanges", "all")
        if kind == "exchange"
        else ("queues", "classic_queues", "quorum_queues", "streams", "all")
    )
    found = [
        each
        for each in listed(ctl, "policies")
        if each["apply-to"] in wanted and stored(each["pattern"]).covers(name)
    ]
    return policy_table(sorted(found, key=lambda each: -float(each["priority"])))


def put_policy(
    ctl: Session, path: str, name: str, pattern: str, definition: str, priority: int, apply_to: str
) -> dict[str, Any]:
    """Set a policy, or an operator's, by the `path` of the API; return its keys.

    Raises:
        CtlError: no such vhost (65), or declined with the reason (69).
    """
    keys: dict[str, Any] = json_of(definition)
    need_vhost(ctl)
    body = {"pattern": pattern, "definition": keys, "priority": priority, "apply-to": apply_to}
    with refused_as(exits.UNAVAILABLE):
        ctl.api.put(path, ctl.vhost, name, body=body)
    return keys


def delete_policy(ctl: Session, path: str, name: str) -> None:
    """Clear a policy, or an operator's.

    Raises:
        CtlError: no such vhost (65), or no such policy (69).
    """
    need_vhost(ctl)
    try:
        ctl.api.delete(path, ctl.vhost, name)
    except NotFoundByApi:
        raise CtlError(exits.UNAVAILABLE, f"policy '{name}' does not exist in vhost '{ctl.vhost}'") from None


def policy_table(found: list[dict[str, Any]]) -> Table:
    """Policies with their definitions as JSON."""
    return Table.of(_COLUMNS, [{**each, "definition": json_text(each["definition"])} for each in found])
