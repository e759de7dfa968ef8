"""Runtime parameters, of a virtual host and of the whole cluster."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from typer import Argument

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.secrets import text_of
from leveret.cli.values import Table

Name = Annotated[str, Argument(help="Name of the parameter.")]
Component = Annotated[str, Argument(help="Component the parameter is for.")]
Json = Annotated[str, Argument(help="The value as JSON; - reads it from standard input.", metavar="VALUE")]


@command('Setting runtime parameter "{name}" for component "{component}" in vhost "{vhost}" ...')
def set_parameter(ctl: Session, component: Component, name: Name, value: Json) -> None:
    """Set a parameter of a virtual host."""
    ctl.api.put("parameters", component, ctl.vhost, name, body={"value": _json(value)})


@command('Clearing runtime parameter "{name}" for component "{component}" on vhost "{vhost}" ...')
def clear_parameter(ctl: Session, component: Component, name: Name) -> None:
    """Clear a parameter of a virtual host."""
    ctl.api.delete("parameters", component, ctl.vhost, name)


@command('Listing runtime parameters for vhost "{vhost}" ...')
def list_parameters(ctl: Session) -> Table:
    """List the parameters of a virtual host."""
    held = [each for each in ctl.api.get("parameters") if each["vhost"] == ctl.vhost]
    return Table(
        ("component", "name", "value"), [[each["component"], each["name"], _text(each)] for each in held]
    )


@command('Setting global runtime parameter "{name}" ...')
def set_global_parameter(ctl: Session, name: Name, value: Json) -> None:
    """Set a parameter of the cluster."""
    ctl.api.put("global-parameters", name, body={"value": _json(value)})


@command('Clearing global runtime parameter "{name}" ...')
def clear_global_parameter(ctl: Session, name: Name) -> None:
    """Clear a parameter of the cluster."""
    ctl.api.delete("global-parameters", name)


@command("Listing global runtime parameters ...")
def list_global_parameters(ctl: Session) -> Table:
    """List the parameters of the cluster."""
    return Table(
        ("name", "value"), [[each["name"], _text(each)] for each in ctl.api.get("global-parameters")]
    )


def _json(argument: str) -> Any:
    try:
        return msgspec.json.decode(text_of(argument))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CtlError(exits.DATA, f"JSON decoding error: {error}") from None


def _text(parameter: dict[str, Any]) -> str:
    return msgspec.json.encode(parameter["value"]).decode()
