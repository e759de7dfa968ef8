"""The reference page of all commands of `leveretctl`, made from the commands themselves.

python -m leveret.cli.reference > docs/commands.md
"""

from __future__ import annotations

import sys
from typing import Final, cast

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from leveret.cli.ctl import build_app
from leveret.cli.not_served import NOT_SERVED

_HEAD: Final = """\
# Commands

`leveretctl` has the commands of `rabbitmqctl`, `rabbitmq-diagnostics`, `rabbitmq-queues`, `rabbitmq-streams`,
`rabbitmq-upgrade` and `rabbitmq-plugins` that have a counterpart, and Leveret's own. `leveretctl COMMAND --help`
explains the arguments and options of a command, and gives an example. Options of `leveretctl` itself, such as
`--data-dir`, `-p VHOST` and `--formatter json`, may stand before or behind the command; `leveretctl help` lists them.

This page is generated from the commands themselves, by `python -m leveret.cli.reference`.
"""

_NOT_SERVED_HEAD: Final = """
## RabbitMQ's commands without a counterpart

`leveretctl` refuses these with the reason.

| reason | commands |
|---|---|
"""


def reference() -> str:
    """Return the page as Markdown."""
    group = cast(TyperGroup, typer.main.get_command(build_app(None)))
    families: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        synopsis = "".join([name, *map(_argument, command.params), *map(_option, command.params)])
        purpose = (command.help or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        family = str(getattr(command, "rich_help_panel", ""))
        families.setdefault(family, []).append(f"| `{synopsis}` | {purpose} |")
    sections = [
        f"\n## {family}\n\n| command | purpose |\n|---|---|\n" + "\n".join(rows) + "\n"
        for family, rows in families.items()
    ]
    by_reason: dict[str, list[str]] = {}
    for name, reason in NOT_SERVED.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    refused = "".join(f"| {reason} | {', '.join(names)} |\n" for reason, names in by_reason.items())
    return _HEAD + "".join(sections) + _NOT_SERVED_HEAD + refused


def _argument(parameter: object) -> str:
    if not isinstance(parameter, TyperArgument):
        return ""
    name = (parameter.name or "").upper() + ("..." if parameter.nargs != 1 else "")
    return f" {name}" if parameter.required else f" [{name}]"


def _option(parameter: object) -> str:
    if not isinstance(parameter, TyperOption):
        return ""
    names = "/".join(sorted(parameter.opts + parameter.secondary_opts, key=len, reverse=True))
    return f" [{names}]" if parameter.is_flag else f" [{names} ...]"


if __name__ == "__main__":
    sys.stdout.write(reference())
