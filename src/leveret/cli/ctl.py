"""`leveretctl`: operates a node, with rabbitmqctl's commands.

    leveretctl --data-dir D list_queues name messages
    leveretctl --url http://user:password@host:15672 --formatter json list_users

It uses the node's own socket in the data directory, or HTTP. Common options may be before or after the command. Only
the command's own family is imported, so that a command starts quickly.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

import leveret
from leveret.cli import exits
from leveret.cli.api import CtlError, connect
from leveret.cli.command import CliCommand, Session
from leveret.cli.completion import vhosts
from leveret.cli.families import FAMILIES, NAMES
from leveret.cli.not_served import NOT_SERVED
from leveret.cli.output.formatters import FORMATTERS
from leveret.cli.output.grouped_help import GroupedHelp
from leveret.cli.program import run
from leveret.cli.program_aliases import operator_arguments
from leveret.model.durations import DURATION_MS_MAX

_VALUE_OPTIONS: Final = frozenset(
    ("--data-dir", "--url", "--vhost", "-p", "--formatter", "--node", "-n", "--timeout", "-t")
)
_FLAGS: Final = {"--quiet", "-q", "--silent", "-s", "--no-table-headers", "--longnames", "-l"}
_HELP: Final = {"help_option_names": ["--help", "-h", "-?"]}
_TIMEOUT_S_MAX: Final = DURATION_MS_MAX // 1000
"""Ten years: no clock and no socket overflows."""
_COMPLETE: Final = "_LEVERETCTL_COMPLETE"


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
            help="http://USER:PASSWORD@HOST:PORT of a node. LEVERET_URL keeps the password out of the "
            "process list.",
        ),
    ] = None,
    vhost: Annotated[
        str | None,
        typer.Option(
            "--vhost", "-p", help="Virtual host of the command; / by default.", autocompletion=vhosts
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", "-n", help="The node's expected name; any other node is refused."),
    ] = None,
    longnames: Annotated[
        bool,
        typer.Option("--longnames", "-l", help="Accepted for compatibility with rabbitmqctl; has no effect."),
    ] = False,
    timeout: Annotated[
        int | None,
        typer.Option("--timeout", "-t", min=0, max=_TIMEOUT_S_MAX, help="Seconds to wait for an answer."),
    ] = None,
    formatter: Annotated[
        str | None, typer.Option(callback=_known_formatter, help=f"One of {', '.join(FORMATTERS)}.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No informational messages.")] = False,
    silent: Annotated[
        bool, typer.Option("--silent", "-s", help="No messages; in plain lines no headers.")
    ] = False,
    no_table_headers: Annotated[bool, typer.Option("--no-table-headers", help="No table headers.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Operate a Leveret node."""
    stack = context.with_resource(ExitStack())
    context.obj = Session(
        open=partial(connect, data_dir, url, timeout),
        stack=stack,
        vhost="/" if vhost is None else vhost,
        vhost_given=vhost is not None,
        wanted_node=node,
        timeout_s=timeout,
        data_dir=data_dir,
        formatter=formatter or ("pretty_table" if sys.stdout.isatty() else "table"),
        quiet=quiet or silent,
        # As in rabbitmqctl, `--silent` suppresses headers in plain lines only.
        headers=not no_table_headers and not (silent and formatter in {None, "table"}),
    )


def common_options_first(arguments: list[str]) -> list[str]:
    """Move common options before the command; arguments after `--` stay."""
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


def load_family(family: str) -> dict[str, CliCommand]:
    """The commands of one family, by name."""
    module = importlib.import_module(f"leveret.cli.commands.{family}")
    return {one.name: one for one in vars(module).values() if isinstance(one, CliCommand)}


def family_of(name: str) -> str:
    """The family of a command."""
    return next(family for family, (_, names) in FAMILIES.items() if name in names)


def build_app(wanted: str | None) -> typer.Typer:
    """The application with the family of one command, or with all of them if there is no such command."""
    app = typer.Typer(
        cls=GroupedHelp,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_HELP,
        add_completion=_COMPLETE in os.environ,
    )
    app.callback()(_options)
    families = [family for family, (_, names) in FAMILIES.items() if wanted in names] or list(FAMILIES)
    for family in families:
        title, _ = FAMILIES[family]
        for name, one in load_family(family).items():
            app.command(
                name, help=one.help, epilog=one.epilog, rich_help_panel=title, context_settings=_HELP
            )(one.as_callback())
    return app


def _describe(error: Exception) -> tuple[int, str] | None:
    match error:
        case CtlError(status=status):
            return status, str(error)
        case OSError():
            return exits.INPUT_OUTPUT, str(error)
        case UnicodeEncodeError():
            # Python holds octets of the command line that are not UTF-8 as characters that no encoding has.
            return exits.USAGE, "an argument is not UTF-8"
    return None


def wanted_command(arguments: list[str]) -> str | None:
    """The command in arguments that begin with common options; None if there is none."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        index += 2 if arguments[index] in _VALUE_OPTIONS else 1
    return arguments[index] if index < len(arguments) else None


def main() -> None:
    """Entry point of the command."""
    program, arguments = operator_arguments(sys.argv[0], sys.argv[1:])
    arguments = common_options_first(arguments)
    wanted = wanted_command(arguments)
    if wanted == "help":
        arguments.remove("help")
        wanted = wanted_command(arguments)
        arguments.append("--help")
    if _COMPLETE in os.environ:
        completed = os.environ.get("_TYPER_COMPLETE_ARGS", os.environ.get("COMP_WORDS", "")).split()
        wanted = next((word for word in completed if word in NAMES), None)
    if wanted in NOT_SERVED:
        print(f"{program}: '{wanted}' is not served: {NOT_SERVED[wanted]}", file=sys.stderr)
        sys.exit(exits.USAGE)
    sys.exit(run(build_app(wanted), program, _describe, arguments))


if __name__ == "__main__":
    main()
