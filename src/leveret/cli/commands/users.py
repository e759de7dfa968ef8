"""Accounts."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.secrets import password_of
from leveret.cli.values import Message, Table

Username = Annotated[str, Argument(help="Name of the user.")]
Password = Annotated[
    str | None, Argument(help="Password; - or none reads it from standard input, unseen in the process list.")
]


@command('Adding user "{username}" ...')
def add_user(ctl: Session, username: Username, password: Password = None) -> Message:
    """Add a user."""
    secret = password_of(password)
    if ctl.api.get_or_none("users", username) is not None:
        raise CtlError(exits.SOFTWARE, f'User "{username}" already exists')
    ctl.api.put("users", username, body={"password": secret, "tags": ""})
    return Message(
        "Done. Don't forget to grant the user permissions to some virtual hosts! See set_permissions."
    )


@command('Authenticating user "{username}" ...')
def authenticate_user(ctl: Session, username: Username, password: Password = None) -> Message:
    """Tell whether a password is a user's."""
    ctl.api.post("users", username, "authenticate", body={"password": password_of(password)})
    return Message("Success", {"result": "ok"})


@command('Changing password for user "{username}" ...')
def change_password(ctl: Session, username: Username, password: Password = None) -> None:
    """Give a user another password."""
    secret = password_of(password)
    user = _user(ctl, username)
    body = {"password": secret, "tags": user["tags"], "limits": user["limits"]}
    ctl.api.put("users", username, body=body)


@command('Deleting user "{username}" ...')
def delete_user(ctl: Session, username: Username) -> None:
    """Delete a user, with permissions and connections."""
    _user(ctl, username)
    ctl.api.delete("users", username)


@command("Listing users ...")
def list_users(ctl: Session) -> Table:
    """List users and their tags."""
    return Table(("user", "tags"), [[user["name"], user["tags"]] for user in ctl.api.get("users")])


@command('Setting tags for user "{username}" to {tags} ...')
def set_user_tags(
    ctl: Session,
    username: Username,
    tags: Annotated[list[str] | None, Argument(help="All tags; none takes them away.")] = None,
) -> None:
    """Set a user's tags: administrator, monitoring, policymaker, management."""
    user = _user(ctl, username)
    ctl.api.put("users", username, body={**user, "tags": tags or []})


def _user(ctl: Session, username: str) -> dict[str, Any]:
    user: dict[str, Any] | None = ctl.api.get_or_none("users", username)
    if user is None:
        raise CtlError(exits.NO_USER, f'User "{username}" does not exist')
    return user
