"""Permissions of users."""

from __future__ import annotations

from typing import Annotated, Final

from typer import Argument

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.checks import need_user, need_vhost, refused_as
from leveret.cli.command import Session, command
from leveret.cli.commands.access.users import Username
from leveret.cli.output.values import Table

Configure = Annotated[str, Argument(help="Names that the user may configure: a regular expression.")]
Write = Annotated[str, Argument(help="Names that the user may write to: a regular expression.")]
Read = Annotated[str, Argument(help="Names that the user may read from: a regular expression.")]
_COLUMNS: Final = ("configure", "write", "read")


@command(
    'Setting permissions for user "{username}" in vhost "{vhost}" ...',
    'set_permissions -p orders alice ".*" ".*" ".*"',
)
def set_permissions(ctl: Session, username: Username, configure: Configure, write: Write, read: Read) -> None:
    """Set a user's permissions in a virtual host."""
    need_user(ctl, username)
    if ctl.api.get_or_none("vhosts", ctl.vhost) is None:
        raise CtlError(exits.UNAVAILABLE, f"Virtual host {ctl.vhost} does not exist")
    _set(ctl, ctl.vhost, username, configure, write, read)


@command(
    'Setting permissions for user "{username}" in all virtual hosts ...',
    'set_permissions_globally alice ".*" ".*" ".*"',
)
def set_permissions_globally(
    ctl: Session, username: Username, configure: Configure, write: Write, read: Read
) -> None:
    """Set a user's permissions in every existing virtual host."""
    need_user(ctl, username)
    for vhost in ctl.api.get("vhosts"):
        _set(ctl, vhost["name"], username, configure, write, read)


@command(
    'Clearing permissions for user "{username}" in vhost "{vhost}" ...', "clear_permissions -p orders alice"
)
def clear_permissions(ctl: Session, username: Username) -> None:
    """Remove all permissions of a user in a virtual host."""
    need_user(ctl, username)
    if ctl.api.get_or_none("permissions", ctl.vhost, username) is not None:
        ctl.api.delete("permissions", ctl.vhost, username)


@command('Listing permissions for vhost "{vhost}" ...', "list_permissions -p orders")
def list_permissions(ctl: Session) -> Table:
    """List the permissions of all users in a virtual host."""
    need_vhost(ctl)
    return Table.of(("user", *_COLUMNS), ctl.api.get("vhosts", ctl.vhost, "permissions"))


@command('Listing permissions for user "{username}" ...', "list_user_permissions alice")
def list_user_permissions(ctl: Session, username: Username) -> Table:
    """List a user's permissions in all virtual hosts."""
    need_user(ctl, username, exits.UNAVAILABLE)
    return Table.of(("vhost", *_COLUMNS), ctl.api.get("users", username, "permissions"))


def _set(ctl: Session, vhost: str, username: str, configure: str, write: str, read: str) -> None:
    with refused_as(exits.UNAVAILABLE):
        ctl.api.put(
            "permissions", vhost, username, body={"configure": configure, "write": write, "read": read}
        )
