"""The routing keys that users may use at topic exchanges."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

from typer import Argument

from leveret.cli import exits
from leveret.cli.api import NotFoundByApi
from leveret.cli.checks import need_user, need_vhost, refused_as
from leveret.cli.command import Session, command
from leveret.cli.commands.access.users import Username
from leveret.cli.completion import exchanges
from leveret.cli.output.values import Table

_COLUMNS: Final = ("exchange", "write", "read")


@command(
    'Setting topic permissions on "{exchange}" for user "{username}" in vhost "{vhost}" ...',
    'set_topic_permissions -p orders alice amq.topic "^alice\\." ".*"',
)
def set_topic_permissions(
    ctl: Session,
    username: Username,
    exchange: Annotated[str, Argument(help="Name of the topic exchange.", autocompletion=exchanges)],
    write: Annotated[
        str, Argument(help="Routing keys that the user may publish with: a regular expression.")
    ],
    read: Annotated[str, Argument(help="Routing keys that the user may bind with: a regular expression.")],
) -> None:
    """Set a user's topic permissions for an exchange."""
    need_user(ctl, username)
    need_vhost(ctl)
    body = {"exchange": exchange, "write": write, "read": read}
    with refused_as(exits.UNAVAILABLE):
        ctl.api.put("topic-permissions", ctl.vhost, username, body=body)


@command(
    'Clearing topic permissions for user "{username}" in vhost "{vhost}" ...',
    "clear_topic_permissions -p orders alice amq.topic",
)
def clear_topic_permissions(
    ctl: Session,
    username: Username,
    exchange: Annotated[
        str | None, Argument(help="Only for this exchange.", autocompletion=exchanges)
    ] = None,
) -> None:
    """Remove a user's topic permissions in a virtual host, for one exchange or for all."""
    need_user(ctl, username)
    need_vhost(ctl)
    # To delete all and set the others again would leave the user free to use any routing key in between.
    path = (
        "topic-permissions",
        ctl.vhost,
        username,
        *(() if exchange is None else (exchange or "amq.default",)),
    )
    with suppress(NotFoundByApi):
        ctl.api.delete(*path)


@command('Listing topic permissions for vhost "{vhost}" ...', "list_topic_permissions -p orders")
def list_topic_permissions(ctl: Session) -> Table:
    """List the topic permissions in a virtual host."""
    need_vhost(ctl)
    return Table.of(("user", *_COLUMNS), ctl.api.get("vhosts", ctl.vhost, "topic-permissions"))


@command('Listing topic permissions for user "{username}" ...', "list_user_topic_permissions alice")
def list_user_topic_permissions(ctl: Session, username: Username) -> Table:
    """List a user's topic permissions in all virtual hosts."""
    need_user(ctl, username, exits.UNAVAILABLE)
    return Table.of(("vhost", *_COLUMNS), ctl.api.get("users", username, "topic-permissions"))
