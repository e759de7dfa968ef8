"""The limits of a virtual host's connections and queues."""

from __future__ import annotations

from typing import Annotated, Any, Final

from typer import Argument, Option

from leveret.cli.checks import json_text, need_vhost
from leveret.cli.command import Session, command
from leveret.cli.commands.broker.parameters import delete_parameter, put_parameter
from leveret.cli.output.values import MessageLine, Table

_COMPONENT: Final = "vhost-limits"
_NAME: Final = "limits"


@command(
    'Setting vhost limits to "{definition}" for vhost "{vhost}" ...',
    "set_vhost_limits -p orders '{\"max-queues\": 100}'",
)
def set_vhost_limits(
    ctl: Session,
    definition: Annotated[
        str, Argument(help="JSON with max-connections and max-queues; - reads it from standard input.")
    ],
) -> None:
    """Set all limits of a virtual host; -1 means no limit."""
    put_parameter(ctl, _COMPONENT, _NAME, definition)


@command('Clearing vhost "{vhost}" limits ...', "clear_vhost_limits -p orders")
def clear_vhost_limits(ctl: Session) -> None:
    """Remove the limits of a virtual host."""
    delete_parameter(ctl, _COMPONENT, _NAME)


@command("", "list_vhost_limits --global")
def list_vhost_limits(
    ctl: Session,
    for_all: Annotated[
        bool, Option("--global", help="The limits of all virtual hosts that have any.")
    ] = False,
) -> MessageLine | Table | None:
    """List the limits of a virtual host, or of all."""
    if for_all:
        ctl.announce("Listing limits for all vhosts ...")
        return Table(
            ("vhost", "limits"), [[name, json_text(value)] for name, value in _existing(ctl).items()]
        )
    ctl.announce(f'Listing limits for vhost "{ctl.vhost}" ...')
    need_vhost(ctl)
    existing = _existing(ctl).get(ctl.vhost)
    text = json_text(existing) if existing else ""
    return MessageLine(text, {"node": ctl.node, "result": "ok", "value": text})


def _existing(ctl: Session) -> dict[str, Any]:
    """Limits by virtual host."""
    return {each["vhost"]: each["value"] for each in ctl.api.get("parameters", _COMPONENT)}
