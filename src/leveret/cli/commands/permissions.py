"""What users may do."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.values import Table

Username = Annotated[str, Argument(help="Name of the user.")]
_COLUMNS = ("configure", "write", "read")


@command('Setting permissions for user "{username}" in vhost "{vhost}" ...')
def set_permissions(
    ctl: Session,
    username: Username,
    configure: Annotated[str, Argument(help="Names the user may declare and delete: a regular expression.")],
    write: Annotated[str, Argument(help="Names the user may publish to.")],
    read: Annotated[str, Argument(help="Names the user may consume from.")],
) -> None:
    """Set a user's permissions in a vhost."""
    _check_user(ctl, username)
    ctl.api.put(
        "permissions", ctl.vhost, username, body={"configure": configure, "write": write, "read": read}
    )


@command('Clearing permissions for user "{username}" in vhost "{vhost}" ...')
def clear_permissions(ctl: Session, username: Username) -> None:
    """Take all permissions in a vhost from a user."""
    _check_user(ctl, username)
    if ctl.api.get_or_none("permissions", ctl.vhost, username) is not None:
        ctl.api.delete("permissions", ctl.vhost, username)


@command('Listing permissions for vhost "{vhost}" ...')
def list_permissions(ctl: Session) -> Table:
    """List who may do what in a vhost."""
    return Table.of(("user", *_COLUMNS), ctl.api.get("vhosts", ctl.vhost, "permissions"))


@command('Listing permissions for user "{username}" ...')
def list_user_permissions(ctl: Session, username: Username) -> Table:
    """List what a user may do, by vhost."""
    _check_user(ctl, username)
    return Table.of(("vhost", *_COLUMNS), ctl.api.get("users", username, "permissions"))


def _check_user(ctl: Session, username: str) -> None:
    if ctl.api.get_or_none("users", username) is None:
        raise CtlError(exits.NO_USER, f"User {username} does not exist")
