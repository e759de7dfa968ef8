"""What a command returns. It prints nothing itself; `formatters` turns these into text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; `headless` ones are lists of names that RabbitMQ prints without a header."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    headless: bool = False

    @classmethod
    def of(cls, columns: Sequence[str], items: Iterable[Mapping[str, Any]]) -> Self:
        """The table of these fields of JSON objects; a field that is not there is empty."""
        return cls(columns, [[item.get(column) for column in columns] for item in items])


@dataclass(frozen=True, slots=True)
class Message:
    """A line for a person; other formats get `fields`."""

    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """Lines `name: value` for a person, then an optional table; other formats get `document`."""

    lines: Sequence[tuple[str, Any]]
    document: Any
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A document that goes out as it is, in every format."""

    text: str


Value = Table | Message | Report | Text | None
