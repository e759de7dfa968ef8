"""Information about leveretctl itself."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument

import leveret
from leveret.cli.command import Session, command
from leveret.cli.families import NAMES
from leveret.cli.output.values import MessageLine, Table, TextDocument


@command("", "version")
def version(ctl: Session) -> MessageLine:
    """Print the version of leveretctl."""
    return MessageLine(leveret.__version__, {"result": "ok", "value": leveret.__version__})


@command("", "autocomplete list_q")
def autocomplete(
    ctl: Session, beginning: Annotated[str, Argument(help="Prefix of the command's name.")] = ""
) -> Table:
    """List the commands that begin with a prefix. With `completion` installed, shells do this themselves."""
    return Table(
        ("command",), [[name] for name in sorted(NAMES) if name.startswith(beginning)], headless=True
    )


@command("", "completion bash > /etc/bash_completion.d/leveretctl")
def completion(
    ctl: Session, shell: Annotated[Literal["bash", "zsh", "fish"], Argument(help="The shell.")]
) -> TextDocument:
    """Print a shell's completion script for commands, options and names on the node."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # not in its __all__

    name, variable = "leveretctl", "_LEVERETCTL_COMPLETE"
    return TextDocument(get_completion_script(prog_name=name, complete_var=variable, shell=shell))
