"""RabbitMQ's plugins: their functions are built in, or missing; nothing is enabled."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.output.values import Table
from leveret.config.unsupported_keys import plugin_reason

BUILT_IN: Final = (
    "rabbitmq_auth_mechanism_ssl",
    "rabbitmq_management",
    "rabbitmq_management_agent",
    "rabbitmq_prometheus",
    "rabbitmq_schema_definition_sync",
    "rabbitmq_schema_definition_sync_prometheus",
    "rabbitmq_standby_replication",
    "rabbitmq_stream",
    "rabbitmq_stream_management",
    "rabbitmq_web_dispatch",
)
Action = Literal["enable", "disable", "set", "list", "is_enabled"]


@command("", "plugins enable rabbitmq_schema_definition_sync --offline")
def plugins(
    ctl: Session,
    action: Annotated[Action, Argument(help="An action of rabbitmq-plugins.")],
    names: Annotated[list[str] | None, Argument(metavar="[NAME...]", help="RabbitMQ's plugins.")] = None,
    offline: Annotated[bool, Option("--offline", help="Accepted for compatibility; has no effect.")] = False,
    online: Annotated[bool, Option("--online", help="Accepted for compatibility; has no effect.")] = False,
) -> Table:
    """List the RabbitMQ plugins whose functions are built in. Enabling one of them succeeds; others are refused."""
    wanted = names or []
    if action == "list":
        return _reported([name for name in BUILT_IN if all(part in name for part in wanted)])
    if not wanted:
        raise CtlError(exits.USAGE, f"plugins {action}: name one or more plugins")
    if action == "disable" and (found := [name for name in wanted if name in BUILT_IN]):
        raise CtlError(exits.USAGE, f"{found[0]} is built in and cannot be disabled")
    missing = [name for name in wanted if name not in BUILT_IN]
    if missing and action != "disable":
        raise CtlError(exits.USAGE, f"{missing[0]}: {plugin_reason(missing[0])}; nothing was changed")
    return _reported(wanted if action != "disable" else [])


def _reported(names: list[str]) -> Table:
    return Table(("name", "state"), [[name, "built in"] for name in names])
