"""The differences of RabbitMQ's and LavinMQ's command lines from those of `leveret` and `leveretctl`.

Packaging links their programs' names to ours if those are not installed; the typed name decides. `lavinmq --data-dir
D` serves, its only function.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import Final

OPERATOR_PROGRAMS: Final = frozenset(
    {
        "lavinmqctl",
        "rabbitmq-diagnostics",
        "rabbitmq-queues",
        "rabbitmq-streams",
        "rabbitmq-upgrade",
        "rabbitmqctl",
    }
)
"""The programs whose commands all belong to `leveretctl`."""
PLUGINS: Final = "rabbitmq-plugins"
SERVER_PROGRAMS: Final = frozenset({"lavinmq"})


def program_of(argv0: str, own: str, others: Collection[str]) -> str:
    """The program's typed name: one of the other names, else its own."""
    name = PurePath(argv0).name
    return name if name in others else own


def operator_arguments(argv0: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The name at the begin of the operator program's errors, and its arguments."""
    program = program_of(argv0, "leveretctl", {*OPERATOR_PROGRAMS, PLUGINS})
    if program == PLUGINS and arguments and "plugins" not in arguments:
        return program, ["plugins", *arguments]
    return program, list(arguments)


def server_arguments(arguments: Sequence[str]) -> list[str]:
    """The server's arguments, with the implied command."""
    first = arguments[0] if arguments else ""
    if first.startswith("-") and "serve" not in arguments and not {"--version", "--help"} & set(arguments):
        return ["serve", *arguments]
    return list(arguments)


def option_without_value(arguments: Sequence[str], options: Collection[str]) -> str | None:
    """The first of these options without a value; None if there is none.

    Without this check the next option would count as its value, and that one's value as an argument.
    """
    for at, each in enumerate(arguments):
        if each in options and (at + 1 == len(arguments) or arguments[at + 1].startswith("--")):
            return each
    return None
