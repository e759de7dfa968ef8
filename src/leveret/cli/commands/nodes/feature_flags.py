"""Feature flags, for RabbitMQ's tools."""

from __future__ import annotations

from typing import Annotated, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen
from leveret.cli.output.values import Table

_FLAG: Final = ("name", "state", "stability", "provided_by", "desc", "doc_url")
_DEPRECATED: Final = ("name", "deprecation_phase", "provided_by", "desc", "doc_url")


@command("", "list_feature_flags name state")
def list_feature_flags(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_FLAG)}.")] = None,
) -> Table:
    """List the feature flags that RabbitMQ's clients and tools query."""
    wanted = chosen(columns, ("name", "state"), _FLAG)
    ctl.announce("Listing feature flags ...")
    return Table.of(wanted, ctl.api.get("feature-flags"))


@command("", "enable_feature_flag all")
def enable_feature_flag(
    ctl: Session, flag: Annotated[str, Argument(help="Name of the flag, or all.")]
) -> None:
    """Enable a feature flag. All flags are enabled at the start."""
    what = "all feature flags" if flag == "all" else f'feature flag "{flag}"'
    ctl.announce(f"Enabling {what} ...")
    names = [each["name"] for each in ctl.api.get("feature-flags")]
    if flag != "all" and flag not in names:
        raise CtlError(exits.USAGE, f"This feature flag is not supported by node {ctl.node}")
    for name in names if flag == "all" else (flag,):
        ctl.api.put("feature-flags", name, "enable", body={})


@command("", "list_deprecated_features")
def list_deprecated_features(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_DEPRECATED)}.")] = None,
    used: Annotated[bool, Option("--used", help="Only deprecated features in use.")] = False,
) -> Table:
    """List deprecated features."""
    wanted = chosen(columns, ("name", "deprecation_phase"), _DEPRECATED)
    ctl.announce("Listing deprecated features ...")
    path = ("deprecated-features", "used") if used else ("deprecated-features",)
    return Table.of(wanted, ctl.api.get(*path))
