"""The form of a command of `leveretctl`, and its registration with typer.

    @command('Deleting user "{username}" ...', "delete_user alice")
    def delete_user(ctl: Session, username: Annotated[str, Argument(help="...")]) -> None:
        \"\"\"Delete a user.\"\"\"
        ctl.api.delete("users", username)

The function's name is the command's, its docstring the help, the second text the help's example. It reads arguments,
calls the API and returns a `Value`. The banner is printed once the node has answered.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from leveret.cli import exits
from leveret.cli.api import Api, CtlError
from leveret.cli.output.formatters import FOR_PEOPLE, FORMATTERS
from leveret.cli.output.values import Value

Action = Callable[..., Value]


@dataclass(slots=True)
class Session:
    """The environment of a command: the node, the vhost of `-p`, and the output.

    Attributes:
        open: connects to the node; `api` calls it at the first use, until `stack` closes.
        wanted_node: the node's name as the operator gave it; any other node is refused.
        vhost_given: whether there was a `-p`.
        timeout_s: the value of `--timeout`; None leaves it to the command.
    """

    open: Callable[[], AbstractContextManager[Api]]
    stack: ExitStack
    vhost: str = "/"
    formatter: str = "table"
    quiet: bool = False
    headers: bool = True
    wanted_node: str | None = None
    vhost_given: bool = False
    timeout_s: int | None = None
    data_dir: Path | None = None
    _api: Api | None = None
    _node: str | None = None
    _banners: list[str] = field(default_factory=list)

    @property
    def api(self) -> Api:
        """The node's API.

        Raises:
            CtlError: no node answers, or it has another name than the operator gave.
        """
        if self._api is None:
            self._api = self.stack.enter_context(self.open())
            if self.wanted_node is not None and self.wanted_node != self.node:
                raise CtlError(
                    exits.UNAVAILABLE,
                    f"unable to reach node {self.wanted_node}: the node that answers is {self.node}",
                )
            self._print_banners()
        return self._api

    @property
    def node(self) -> str:
        """The node's name."""
        if self._node is None:
            self._node = str(self.api.get("operations", "node")["name"])
        return self._node

    @property
    def is_for_people(self) -> bool:
        """Whether a person, not a program, reads the output."""
        return self.formatter in FOR_PEOPLE

    def announce(self, banner: str, *, needs_node: bool = True) -> None:
        """Print the banner for a person; if the command `needs_node`, not before it answers, or the command's value."""
        if banner and not self.quiet and self.is_for_people:
            self._banners.append(banner)
        if self._api is not None or not needs_node:
            self._print_banners()

    def _print_banners(self) -> None:
        for banner in self._banners:
            print(banner, flush=True)
        self._banners.clear()

    def show(self, value: Value) -> None:
        """Print a command's value."""
        self._print_banners()
        sys.stdout.write(FORMATTERS[self.formatter](value, headers=self.headers))
        sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class CliCommand:
    """One command."""

    action: Action
    banner: str
    example: str = ""
    other_name: str = ""

    @property
    def name(self) -> str:
        """The command's name on the command line."""
        return self.other_name or self.action.__name__

    def called(self, name: str) -> CliCommand:
        """The same command under another name."""
        return replace(self, example=self.example.replace(self.name, name), other_name=name)

    @property
    def help(self) -> str:
        """The docstring."""
        return inspect.getdoc(self.action) or ""

    @property
    def epilog(self) -> str:
        """The text below the help."""
        return f"Example: leveretctl {self.example}" if self.example else ""

    def _announced(self, session: Session, arguments: dict[str, Any]) -> str:
        """The banner with its fields; the node's name is asked for only if it is shown."""
        shown = {name: _shown(value) for name, value in arguments.items()}
        if "{node}" in self.banner and session.is_for_people and not session.quiet:
            shown["node"] = session.node
        return self.banner.format_map({"vhost": session.vhost, "node": "", **shown})

    def as_callback(self) -> Callable[..., None]:
        """A function for typer, with typer's context instead of the session."""

        def callback(**arguments: Any) -> None:
            session: Session = arguments.pop("context").obj
            session.announce(self._announced(session, arguments))
            session.show(self.action(session, **arguments))

        signature = inspect.signature(self.action, eval_str=True)
        _, *own = signature.parameters.values()
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [context, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
        callback.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # PEP 362
        callback.__annotations__ = {one.name: one.annotation for one in parameters}
        return callback


def _shown(value: object) -> str:
    """An argument in a banner; a list of words as RabbitMQ writes it."""
    if isinstance(value, list) or value is None:
        return f"[{', '.join(map(str, value or []))}]"
    return str(value)


def command(banner: str = "", example: str = "") -> Callable[[Action], CliCommand]:
    """Make a command of a function; the banner's fields are its arguments, `vhost` and `node`."""
    return lambda action: CliCommand(action, banner, example)
