"""Runtime parameters, of a virtual host and of the whole cluster."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from leveret.cli import exits
from leveret.cli.api import CtlError, NotFoundByApi
from leveret.cli.checks import json_of, json_text, need_vhost, refused_as
from leveret.cli.command import Session, command
from leveret.cli.output.values import Table
from leveret.cli.secrets import IncludeSecrets, secrets_query

Name = Annotated[str, Argument(help="Name of the parameter.")]
Component = Annotated[str, Argument(help="Component of the parameter.")]
Json = Annotated[str, Argument(help="The value as JSON; - reads it from standard input.", metavar="VALUE")]


@command(
    'Setting runtime parameter "{name}" for component "{component}" in vhost "{vhost}" ...',
    "set_parameter -p orders vhost-limits limits '{\"max-queues\": 100}'",
)
def set_parameter(ctl: Session, component: Component, name: Name, value: Json) -> None:
    """Set a parameter of a virtual host."""
    put_parameter(ctl, component, name, value)


@command(
    'Clearing runtime parameter "{name}" for component "{component}" on vhost "{vhost}" ...',
    "clear_parameter -p orders vhost-limits limits",
)
def clear_parameter(ctl: Session, component: Component, name: Name) -> None:
    """Clear a parameter of a virtual host."""
    delete_parameter(ctl, component, name)


@command('Listing runtime parameters for vhost "{vhost}" ...', "list_parameters -p orders")
def list_parameters(ctl: Session, include_secrets: IncludeSecrets = False) -> Table:
    """List the parameters of a virtual host."""
    need_vhost(ctl)
    found = ctl.api.get("parameters", **secrets_query(include_secrets))
    existing = [each for each in found if each["vhost"] == ctl.vhost]
    rows = [[each["component"], each["name"], json_text(each["value"])] for each in existing]
    return Table(("component", "name", "value"), rows)


@command('Setting global runtime parameter "{name}" ...', "set_global_parameter site '\"north\"'")
def set_global_parameter(ctl: Session, name: Name, value: Json) -> None:
    """Set a parameter of the cluster."""
    wanted = json_of(value)
    with refused_as(exits.UNAVAILABLE):
        ctl.api.put("global-parameters", name, body={"value": wanted})


@command('Clearing global runtime parameter "{name}" ...', "clear_global_parameter site")
def clear_global_parameter(ctl: Session, name: Name) -> None:
    """Clear a parameter of the cluster."""
    _clear(ctl, "global-parameters", name)


@command("Listing global runtime parameters ...", "list_global_parameters")
def list_global_parameters(ctl: Session, include_secrets: IncludeSecrets = False) -> Table:
    """List the parameters of the cluster."""
    existing = ctl.api.get("global-parameters", **secrets_query(include_secrets))
    return Table(("name", "value"), [[each["name"], json_text(each["value"])] for each in existing])


@command("Setting cluster name to {name} ...", "set_cluster_name north")
def set_cluster_name(ctl: Session, name: Annotated[str, Argument(help="The cluster's new name.")]) -> None:
    """Name the cluster."""
    with refused_as(exits.UNAVAILABLE):
        ctl.api.put("cluster-name", body={"name": name})


def put_parameter(ctl: Session, component: str, name: str, text: str) -> None:
    """Set a parameter of the vhost of `-p` to a value in JSON.

    Raises:
        CtlError: no such vhost (65), or declined with the reason (69).
    """
    value = json_of(text)
    need_vhost(ctl)
    with refused_as(exits.UNAVAILABLE):
        ctl.api.put("parameters", component, ctl.vhost, name, body={"value": value})


def delete_parameter(ctl: Session, component: str, name: str) -> None:
    """Clear a parameter of the vhost of `-p`.

    Raises:
        CtlError: no such vhost (65), or no such parameter (69).
    """
    need_vhost(ctl)
    _clear(ctl, "parameters", component, ctl.vhost, name)


def _clear(ctl: Session, *path: str) -> None:
    try:
        ctl.api.delete(*path)
    except NotFoundByApi:
        raise CtlError(exits.UNAVAILABLE, "Parameter does not exist") from None
