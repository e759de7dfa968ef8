"""The lines and options that both kinds of replication share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from typer import Argument

Endpoints = Annotated[
    str,
    Argument(
        help='JSON {"endpoints": ["HOST:PORT"], "username": "...", "password": "..."}; - reads it from standard '
        "input, unseen in the process list."
    ),
]
Mode = Annotated[Literal["upstream", "downstream"], Argument(help="The new mode.")]


def side_lines(status: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """This node's side, and its upstream."""
    return [
        ("Node", status["node"]),
        ("Operating mode", status["operating_mode"]),
        ("State", status["state"]),
        ("Upstream endpoint(s)", ",".join(status["upstream_endpoints"])),
        ("Upstream username", status["upstream_username"]),
        ("Operating mode set by", status["operating_mode_source"]),
    ]
