"""`leveretctl`: operates a node, with rabbitmqctl's commands.

    leveretctl --data-dir D list_queues name messages
    leveretctl --url http://user:password@host:15672 --formatter json list_users

Speaks to the node over its own socket in the data directory, or over HTTP. Options of all commands may
stand before or after the command. Only the family of the command that runs is imported, so that a
command starts quickly.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

import leveret
from leveret.cli import exits
from leveret.cli.api import CtlError, connect
from leveret.cli.command import Command, Session
from leveret.cli.formatters import FORMATTERS
from leveret.cli.program import run

FAMILIES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "nodes": ("Nodes", ("status", "await_startup")),
    "users": (
        "Users",
        ("add_user", "authenticate_user", "change_password", "delete_user", "list_users", "set_user_tags"),
    ),
    "permissions": (
        "Permissions",
        ("clear_permissions", "list_permissions", "list_user_permissions", "set_permissions"),
    ),
    "vhosts": ("Virtual hosts", ("add_vhost", "delete_vhost", "list_vhosts", "set_vhost_tags")),
    "policies": ("Policies", ("clear_policy", "list_policies", "set_policy")),
    "parameters": (
        "Runtime parameters",
        (
            "clear_global_parameter",
            "clear_parameter",
            "list_global_parameters",
            "list_parameters",
            "set_global_parameter",
            "set_parameter",
        ),
    ),
    "queues": ("Queues", ("delete_queue", "list_queues", "purge_queue")),
    "listings": (
        "Monitoring",
        ("list_bindings", "list_channels", "list_connections", "list_consumers", "list_exchanges"),
    ),
    "definitions": ("Definitions", ("export_definitions", "import_definitions")),
    "schema_replication": (
        "Schema replication",
        (
            "add_schema_replication_user",
            "disable_schema_replication",
            "enable_schema_replication",
            "restart_schema_replication",
            "schema_replication_status",
            "set_schema_replication_mode",
            "set_schema_replication_upstream_endpoints",
        ),
    ),
    "standby_replication": (
        "Standby replication",
        (
            "connect_standby_replication_downstream",
            "delete_all_data_on_standby_replication_cluster",
            "disconnect_standby_replication_downstream",
            "display_disk_space_used_by_standby_replication_data",
            "display_standby_promotion_summary",
            "inspect_local_data_available_for_standby_replication_recovery",
            "inspect_standby_downstream_metrics",
            "inspect_standby_upstream_metrics",
            "list_vhosts_available_for_standby_replication_recovery",
            "promote_standby_replication_downstream",
            "set_standby_replication_mode",
            "set_standby_replication_upstream_endpoints",
            "standby_replication_status",
        ),
    ),
}
"""Which file of `cli/commands` has which commands, and what `--help` calls them."""

_VALUE_OPTIONS: Final = {"--data-dir", "--url", "--vhost", "-p", "--formatter"}
_FLAGS: Final = {"--quiet", "-q", "--silent", "-s", "--no-table-headers"}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leveretctl {leveret.__version__}")
        raise typer.Exit


def _known_formatter(name: str | None) -> str | None:
    if name is not None and name not in FORMATTERS:
        raise typer.BadParameter(f"'{name}' is not one of {', '.join(FORMATTERS)}")
    return name


def _options(
    context: typer.Context,
    data_dir: Annotated[
        Path | None,
        typer.Option(envvar="LEVERET_DATA_DIR", help="Data directory of the node on this machine."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="LEVERET_URL",
            show_envvar=True,
            help="http://USER:PASSWORD@HOST:PORT of a node; best given in LEVERET_URL, unseen by others.",
        ),
    ] = None,
    vhost: Annotated[str, typer.Option("--vhost", "-p", help="Virtual host the command is about.")] = "/",
    formatter: Annotated[
        str | None, typer.Option(callback=_known_formatter, help=f"One of {', '.join(FORMATTERS)}.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No informational messages.")] = False,
    silent: Annotated[bool, typer.Option("--silent", "-s", help="No messages and no table headers.")] = False,
    no_table_headers: Annotated[bool, typer.Option("--no-table-headers", help="No table headers.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Operate a Leveret node."""
    stack = context.with_resource(ExitStack())
    context.obj = Session(
        open=partial(connect, data_dir, url),
        stack=stack,
        vhost=vhost,
        formatter=formatter or ("pretty_table" if sys.stdout.isatty() else "table"),
        quiet=quiet or silent,
        headers=not (silent or no_table_headers),
    )


def common_options_first(arguments: list[str]) -> list[str]:
    """Move options of all commands before the command; what follows `--` stays where it is."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    common: list[str] = []
    others: list[str] = []
    index = 0
    while index < end:
        name, joined, _ = arguments[index].partition("=")
        if arguments[index] in _VALUE_OPTIONS and index + 1 < end:
            common += arguments[index : index + 2]
            index += 2
            continue
        is_common = arguments[index] in _FLAGS or (joined and name in _VALUE_OPTIONS)
        (common if is_common else others).append(arguments[index])
        index += 1
    return [*common, *others, *arguments[end:]]


def load_family(family: str) -> dict[str, Command]:
    """The commands of one family, by name."""
    module = importlib.import_module(f"leveret.cli.commands.{family}")
    return {one.name: one for one in vars(module).values() if isinstance(one, Command)}


def build_app(wanted: str | None) -> typer.Typer:
    """The application with the family of one command, or with all of them if there is no such command."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_options)
    families = [family for family, (_, names) in FAMILIES.items() if wanted in names] or list(FAMILIES)
    for family in families:
        title, _ = FAMILIES[family]
        for name, one in load_family(family).items():
            app.command(name, help=one.help, rich_help_panel=title)(one.as_callback())
    return app


def _describe(error: Exception) -> tuple[int, str] | None:
    match error:
        case CtlError(status=status):
            return status, str(error)
        case OSError():
            return exits.INPUT_OUTPUT, str(error)
    return None


def main() -> None:
    """Entry point of the command."""
    arguments = common_options_first(sys.argv[1:])
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    known = {name for _, names in FAMILIES.values() for name in names}
    wanted = next((argument for argument in arguments if argument in known), None)
    sys.exit(run(build_app(wanted), "leveretctl", _describe, arguments))


if __name__ == "__main__":
    main()
