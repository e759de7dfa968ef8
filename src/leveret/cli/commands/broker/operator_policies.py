"""Operator policies: limits that the owner of a node sets on top of the policies of its users."""

from __future__ import annotations

from typing import Annotated, Final

from typer import Argument

from leveret.cli.checks import listed
from leveret.cli.command import Session, command
from leveret.cli.commands.broker.policies import (
    ApplyTo,
    Definition,
    Pattern,
    Priority,
    delete_policy,
    policy_table,
    put_policy,
)
from leveret.cli.output.values import Table

Name = Annotated[str, Argument(help="Name of the operator policy.")]
_PATH: Final = "operator-policies"


@command(
    'Setting operator policy override "{name}" for pattern "{pattern}" to "{definition}" '
    'with priority "{priority}" for vhost "{vhost}" ...',
    "set_operator_policy -p orders bounded '.*' '{\"max-length\": 1000000}'",
)
def set_operator_policy(
    ctl: Session,
    name: Name,
    pattern: Pattern,
    definition: Definition,
    priority: Priority = 0,
    apply_to: ApplyTo = "all",
) -> None:
    """Set an operator policy. Of its limit and a policy's limit the stricter one applies."""
    put_policy(ctl, _PATH, name, pattern, definition, priority, apply_to)


@command(
    'Clearing operator policy "{name}" on vhost "{vhost}" ...', "clear_operator_policy -p orders bounded"
)
def clear_operator_policy(ctl: Session, name: Name) -> None:
    """Clear an operator policy."""
    delete_policy(ctl, _PATH, name)


@command('Listing operator policy overrides for vhost "{vhost}" ...', "list_operator_policies -p orders")
def list_operator_policies(ctl: Session) -> Table:
    """List the operator policies of a virtual host."""
    return policy_table(listed(ctl, _PATH))
