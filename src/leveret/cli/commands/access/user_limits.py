"""The limits of a user's connections and channels."""

from __future__ import annotations

from typing import Annotated, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.checks import json_of, json_text, need_user, refused_as
from leveret.cli.command import Session, command
from leveret.cli.commands.access.users import Username, change_user
from leveret.cli.completion import users
from leveret.cli.output.values import MessageLine, Table
from leveret.cli.read_modify_write import Fields

LIMITS: Final = ("max-connections", "max-channels")


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
    """Set a user's limits; -1 means no limit. Other limits stay as they are."""
    wanted = json_of(definition)
    if not isinstance(wanted, dict):
        raise CtlError(exits.UNAVAILABLE, f"limits must be an object of {', '.join(LIMITS)}")
    with refused_as(exits.UNAVAILABLE):
        change_user(
            ctl,
            username,
            lambda user: {**user, "limits": {**(user.get("limits") or {}), **wanted}},
            exits.UNAVAILABLE,
        )


@command("", "clear_user_limits alice all")
def clear_user_limits(
    ctl: Session,
    username: Username,
    limit: Annotated[str, Argument(help=f"{', '.join(LIMITS)} or all.")],
) -> None:
    """Remove a user's limits."""
    what = "all limits" if limit == "all" else f'"{limit}" limit'
    ctl.announce(f'Clearing {what} for user "{username}" ...')
    cleared = LIMITS if limit == "all" else (limit,)

    def without(user: Fields) -> Fields:
        limits = user.get("limits") or {}
        return {**user, "limits": {name: value for name, value in limits.items() if name not in cleared}}

    change_user(ctl, username, without, exits.UNAVAILABLE)


@command("", "list_user_limits --user alice")
def list_user_limits(
    ctl: Session,
    user: Annotated[str, Option(help="Name of the user; guest by default.", autocompletion=users)] = "guest",
    for_all: Annotated[bool, Option("--global", help="The limits of all users that have any.")] = False,
) -> MessageLine | Table:
    """List the limits of a user, or of all."""
    if not for_all:
        ctl.announce(f'Listing limits for user "{user}" ...')
        text = json_text(need_user(ctl, user, exits.UNAVAILABLE).get("limits") or {})
        return MessageLine(text, {"message": text})
    ctl.announce("Listing limits for all users ...")
    rows = [[each["name"], json_text(each["limits"])] for each in ctl.api.get("users") if each.get("limits")]
    return Table(("user", "limits"), rows)
