"""Completion of arguments with the node's present names.

Completion asks the node of `LEVERET_DATA_DIR` or `LEVERET_URL` (or of the options typed so far); without an answer
within a second, nothing is proposed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import typer

from leveret.cli.api import CtlError, connect

_TIMEOUT_S: Final = 1.0

Completer: TypeAlias = Callable[[typer.Context, str], list[str]]


def _names(*path: str, in_vhost: bool = False) -> Completer:
    """Completes to the names in the list at a path of the API."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        options = ctx.find_root().params
        data_dir = options.get("data_dir")
        place = (*path, options.get("vhost") or "/") if in_vhost else path
        try:
            with connect(Path(data_dir) if data_dir else None, options.get("url"), _TIMEOUT_S) as api:
                found = [str(each["name"]) for each in api.get(*place)]
        except (CtlError, OSError):
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


vhosts: Final = _names("vhosts")
users: Final = _names("users")
queues: Final = _names("queues", in_vhost=True)
exchanges: Final = _names("exchanges", in_vhost=True)
policies: Final = _names("policies", in_vhost=True)
