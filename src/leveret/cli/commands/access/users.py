"""Accounts."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from typing import Annotated, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError, EditConflict, NotFoundByApi
from leveret.cli.checks import need_user, refused_as
from leveret.cli.command import Session, command
from leveret.cli.completion import users
from leveret.cli.output.values import MessageLine, Table
from leveret.cli.read_modify_write import Fields, read_modify_write
from leveret.cli.secrets import password_of

Username = Annotated[str, Argument(help="Name of the user.", autocompletion=users)]
Password = Annotated[
    str | None, Argument(help="Password; - or none reads it from standard input, unseen in the process list.")
]
_SALT_BYTES: Final = 4


@command('Adding user "{username}" ...', "add_user alice -")
def add_user(
    ctl: Session,
    username: Annotated[str, Argument(help="Name of the user.")],
    password: Password = None,
    pre_hashed_password: Annotated[
        bool, Option("--pre-hashed-password", help="The password is a hash, as hash_password prints it.")
    ] = False,
) -> MessageLine:
    """Add a user, without any permissions."""
    secret = password_of(password)
    field = "password_hash" if pre_hashed_password else "password"
    exists = CtlError(exits.SOFTWARE, f'User "{username}" already exists')
    # A node of an earlier version would replace the user.
    if ctl.api.get_or_none("users", username) is not None:
        raise exists
    try:
        ctl.api.put("users", username, body={field: secret, "tags": ""}, is_new=True)
    except EditConflict:
        raise exists from None
    return MessageLine(
        "Done. Don't forget to grant the user permissions to some virtual hosts! "
        "See 'leveretctl help set_permissions' to learn more."
    )


@command('Authenticating user "{username}" ...', "authenticate_user alice -")
def authenticate_user(ctl: Session, username: Username, password: Password = None) -> MessageLine:
    """Check a user's password."""
    body = {"password": password_of(password)}
    if ctl.api.get_or_none("users", username) is None:
        raise CtlError(
            exits.DATA, f"failed to authenticate user \"{username}\": user '{username}' - invalid credentials"
        )
    ctl.api.post("users", username, "authenticate", body=body)
    return MessageLine("Success", {"result": "ok"})


@command('Changing password for user "{username}" ...', "change_password alice -")
def change_password(ctl: Session, username: Username, password: Password = None) -> None:
    """Change a user's password."""
    secret = password_of(password)
    change_user(
        ctl,
        username,
        lambda user: {"password": secret, "tags": user["tags"], "limits": user["limits"]},
    )


@command('Clearing password for user "{username}" ...', "clear_password alice")
def clear_password(ctl: Session, username: Username) -> None:
    """Remove a user's password. The user can then authenticate only by other mechanisms."""
    change_user(
        ctl,
        username,
        lambda user: {"password_hash": "", "tags": user["tags"], "limits": user["limits"]},
        exits.UNAVAILABLE,
    )


@command("", "hash_password -")
def hash_password(ctl: Session, password: Password = None) -> MessageLine:
    """Print the salted SHA-256 of a password, for add_user --pre-hashed-password and definitions files."""
    salt = os.urandom(_SALT_BYTES)
    digest = hashlib.sha256(salt + password_of(password).encode()).digest()
    text = base64.b64encode(salt + digest).decode()
    return MessageLine(text, {"result": "ok", "value": text})


@command('Deleting user "{username}" ...', "delete_user alice")
def delete_user(ctl: Session, username: Username) -> None:
    """Delete a user with its permissions, and close its connections."""
    need_user(ctl, username)
    ctl.api.delete("users", username)


@command("Listing users ...", "list_users")
def list_users(ctl: Session) -> Table:
    """List users and their tags."""
    return Table(("user", "tags"), [[user["name"], user["tags"]] for user in ctl.api.get("users")])


@command('Setting tags for user "{username}" to {tags} ...', "set_user_tags alice monitoring policymaker")
def set_user_tags(
    ctl: Session,
    username: Username,
    tags: Annotated[
        list[str] | None, Argument(help="All tags; without any, the present tags are removed.")
    ] = None,
) -> None:
    """Set a user's tags: administrator, monitoring, policymaker, management."""
    with refused_as(exits.UNAVAILABLE):
        change_user(ctl, username, lambda user: {**user, "tags": tags or []})


def change_user(
    ctl: Session, name: str, change: Callable[[Fields], Fields], missing: int = exits.NO_USER
) -> None:
    """Replace a user by what `change` makes of it; see `rewrite`.

    Raises:
        CtlError: there is none (with the status `missing`), or the node refuses the change.
    """
    try:
        read_modify_write(ctl.api, "users", name, change=change)
    except NotFoundByApi:
        raise CtlError(missing, f'User "{name}" does not exist') from None
