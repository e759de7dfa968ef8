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
    def of(cls, columns: Sequence[str], items: Iterable[Mapping[str, Any]], *, unknown: object = "") -> Self:
        """The table of these fields of JSON objects; RabbitMQ shows what is not known as an empty text."""

        def known(value: object) -> object:
            return unknown if value is None else value

        return cls(columns, [[known(item.get(column)) for column in columns] for item in items])


@dataclass(frozen=True, slots=True)
class MessageLine:
    """A line for a person; other formats get `fields`."""

    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportLines:
    """Lines `name: value` for a person, then an optional table; other formats get `document`."""

    lines: Sequence[tuple[str, Any]]
    document: Any
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class TextDocument:
    """A document that goes out as it is, in every format."""

    text: str


@dataclass(frozen=True, slots=True)
class Sections:
    """Lines under headings for a person; other formats get `document`."""

    parts: Sequence[tuple[str, Sequence[str]]]
    document: Any


Value = Table | MessageLine | ReportLines | Sections | TextDocument | None
