"""How a command of `leveretctl` is written, and how it becomes one of typer's.

    @command('Deleting user "{username}" ...')
    def delete_user(ctl: Session, username: Annotated[str, Argument(help="...")]) -> None:
        \"\"\"Delete a user.\"\"\"
        ctl.api.delete("users", username)

The function's name is the command's, its docstring the help. The banner is printed before it runs; it
reads arguments, calls the API and returns a `Value`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import typer

from leveret.cli.api import Api
from leveret.cli.formatters import FOR_PEOPLE, FORMATTERS
from leveret.cli.values import Value

Action = Callable[..., Value]


@dataclass(slots=True)
class Session:
    """What a command runs with: the way to the node, the vhost of `-p`, and how to answer.

    Attributes:
        open: connects to the node; `api` does so when it is first used, for as long as `stack` is open.
    """

    open: Callable[[], AbstractContextManager[Api]]
    stack: ExitStack
    vhost: str = "/"
    formatter: str = "table"
    quiet: bool = False
    headers: bool = True
    _api: Api | None = None

    @property
    def api(self) -> Api:
        """The node's API."""
        if self._api is None:
            self._api = self.stack.enter_context(self.open())
        return self._api

    def announce(self, banner: str) -> None:
        """Tell a person what is being done."""
        if banner and not self.quiet and self.formatter in FOR_PEOPLE:
            print(banner, flush=True)

    def show(self, value: Value) -> None:
        """Print a command's value."""
        sys.stdout.write(FORMATTERS[self.formatter](value, headers=self.headers))
        sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    action: Action
    banner: str

    @property
    def name(self) -> str:
        """As the operator types it."""
        return self.action.__name__

    @property
    def help(self) -> str:
        """The docstring."""
        return inspect.getdoc(self.action) or ""

    def as_callback(self) -> Callable[..., None]:
        """A function with typer's context in place of the session, for typer to call."""

        def callback(**arguments: Any) -> None:
            session: Session = arguments.pop("context").obj
            shown = {name: _shown(value) for name, value in arguments.items()}
            session.announce(self.banner.format(vhost=session.vhost, **shown))
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
        return f"[{', '.join(value or [])}]"
    return str(value)


def command(banner: str = "") -> Callable[[Action], Command]:
    """Make a command of a function; the banner's fields are its arguments and `vhost`."""
    return lambda action: Command(action, banner)
