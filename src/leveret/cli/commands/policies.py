"""Policies."""

from __future__ import annotations

from typing import Annotated

import msgspec
from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError, NotThere
from leveret.cli.command import Session, command
from leveret.cli.secrets import text_of
from leveret.cli.values import Table

Name = Annotated[str, Argument(help="Name of the policy.")]
_COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")


@command(
    'Setting policy "{name}" for pattern "{pattern}" to "{definition}" '
    'with priority "{priority}" for vhost "{vhost}" ...'
)
def set_policy(
    ctl: Session,
    name: Name,
    pattern: Annotated[str, Argument(help="Regular expression for the names of queues or exchanges.")],
    definition: Annotated[
        str, Argument(help='JSON, as {"remote-dc-replicate": true}; - reads it from standard input.')
    ],
    priority: Annotated[int, Option(help="Of policies that match, the highest applies.")] = 0,
    apply_to: Annotated[
        str, Option(help="queues, classic_queues, quorum_queues, streams, exchanges or all.")
    ] = "all",
) -> None:
    """Set a policy; it applies at once."""
    try:
        keys = msgspec.json.decode(text_of(definition))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CtlError(exits.DATA, f"JSON decoding error: {error}") from None
    ctl.api.put(
        "policies",
        ctl.vhost,
        name,
        body={"pattern": pattern, "definition": keys, "priority": priority, "apply-to": apply_to},
    )


@command('Clearing policy "{name}" on vhost "{vhost}" ...')
def clear_policy(ctl: Session, name: Name) -> None:
    """Clear a policy."""
    try:
        ctl.api.delete("policies", ctl.vhost, name)
    except NotThere as error:
        raise CtlError(exits.UNAVAILABLE, str(error)) from None


@command('Listing policies for vhost "{vhost}" ...')
def list_policies(ctl: Session) -> Table:
    """List the policies of a virtual host."""
    return Table.of(_COLUMNS, ctl.api.get("policies", ctl.vhost))
