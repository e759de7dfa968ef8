"""What the lines of RabbitMQ's and LavinMQ's guides say otherwise than `leveret` and `leveretctl` do.

Packaging links their programs' names to ours where those are not installed; the name that was typed decides. And
`lavinmq --data-dir D` serves, as there is nothing else that it could do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import Final

OPERATING: Final = frozenset(
    {
        "lavinmqctl",
        "rabbitmq-diagnostics",
        "rabbitmq-queues",
        "rabbitmq-streams",
        "rabbitmq-upgrade",
        "rabbitmqctl",
    }
)
"""Programs whose commands are all `leveretctl`'s."""
PLUGINS: Final = "rabbitmq-plugins"
SERVING: Final = frozenset({"lavinmq"})


def program_of(argv0: str, own: str, others: Collection[str]) -> str:
    """What the program was called as: one of the other names, else its own."""
    name = PurePath(argv0).name
    return name if name in others else own


def operating(argv0: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The name that errors of the operator's program begin with, and its arguments."""
    program = program_of(argv0, "leveretctl", {*OPERATING, PLUGINS})
    if program == PLUGINS and arguments and "plugins" not in arguments:
        return program, ["plugins", *arguments]
    return program, list(arguments)


def serving(arguments: Sequence[str]) -> list[str]:
    """The arguments of the server, with the command that goes without saying."""
    first = arguments[0] if arguments else ""
    if first.startswith("-") and "serve" not in arguments and not {"--version", "--help"} & set(arguments):
        return ["serve", *arguments]
    return list(arguments)


def valueless(arguments: Sequence[str], options: Collection[str]) -> str | None:
    """The first of these options that nothing, or another option, follows; None if there is none.

    Without this the other option would be taken for its value, and what follows that for something nobody asked for.
    """
    for at, each in enumerate(arguments):
        if each in options and (at + 1 == len(arguments) or arguments[at + 1].startswith("--")):
            return each
    return None
