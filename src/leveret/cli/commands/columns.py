"""The columns of a table: those that an operator names on the command line, and the node in a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leveret.cli import exits
from leveret.cli.api import CtlError


def chosen(given: Sequence[str] | None, default: Sequence[str], known: Sequence[str]) -> list[str]:
    """The columns to show: those given, separated by spaces or commas, or the default.

    Raises:
        CtlError: a column is unknown; the text names the known ones.
    """
    if not given:
        return list(default)
    columns = [name for text in given for name in text.replace(",", " ").split()]
    unknown = [name for name in columns if name not in known]
    if unknown:
        text = f"Info key(s) {','.join(unknown)} are not supported; known are {', '.join(known)}"
        raise CtlError(exits.USAGE, text)
    return columns


def with_node(columns: tuple[str, ...], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """These columns, behind the node if the rows are of a cluster."""
    return ("node", *columns) if any("node" in row for row in rows) else columns
