"""How many connections and channels a user may have."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.checks import json_of, json_text, need_user, refused_as
from leveret.cli.command import Session, command
from leveret.cli.commands.users import Username
from leveret.cli.names import users
from leveret.cli.values import Message, Table

LIMITS = ("max-connections", "max-channels")


@command(
    'Setting user limits to "{definition}" for user "{username}" ...',
    "set_user_limits alice '{\"max-connections\": 10}'",
)
def set_user_limits(
    ctl: Session,
    username: Username,
    definition: Annotated[
        str, Argument(help="JSON with max-connections and max-channels; - reads it from standard input.")
    ],
) -> None:
    """Set a user's limits; -1 takes one away, limits that are not named stay."""
    wanted = json_of(definition)
    need_user(ctl, username, exits.UNAVAILABLE)
    if not isinstance(wanted, dict) or set(wanted) - set(LIMITS):
        raise CtlError(exits.UNAVAILABLE, f"limits must be an object of {', '.join(LIMITS)}")
    with refused_as(exits.UNAVAILABLE):
        for name, value in wanted.items():
            ctl.api.put("user-limits", username, name, body={"value": value})


@command("", "clear_user_limits alice all")
def clear_user_limits(
    ctl: Session,
    username: Username,
    limit: Annotated[str, Argument(help=f"{', '.join(LIMITS)} or all.")],
) -> None:
    """Take a user's limits away."""
    what = "all limits" if limit == "all" else f'"{limit}" limit'
    ctl.announce(f'Clearing {what} for user "{username}" ...')
    held = need_user(ctl, username, exits.UNAVAILABLE).get("limits") or {}
    for name in LIMITS if limit == "all" else (limit,):
        if name in held:
            ctl.api.delete("user-limits", username, name)


@command("", "list_user_limits --user alice")
def list_user_limits(
    ctl: Session,
    user: Annotated[str, Option(help="Whose limits.", autocompletion=users)] = "guest",
    for_all: Annotated[bool, Option("--global", help="The limits of all users that have any.")] = False,
) -> Message | Table:
    """List the limits of a user, or of all."""
    if not for_all:
        ctl.announce(f'Listing limits for user "{user}" ...')
        text = json_text(need_user(ctl, user, exits.UNAVAILABLE).get("limits") or {})
        return Message(text, {"message": text})
    ctl.announce("Listing limits for all users ...")
    rows = [[each["name"], json_text(each["limits"])] for each in ctl.api.get("users") if each.get("limits")]
    return Table(("user", "limits"), rows)
