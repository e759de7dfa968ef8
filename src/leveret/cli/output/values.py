"""The values that commands return. They print nothing themselves; `formatters` turns values into text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; `headless` ones are lists of names, which RabbitMQ prints without a header."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    headless: bool = False

    @classmethod
    def of(cls, columns: Sequence[str], items: Iterable[Mapping[str, Any]], *, unknown: object = "") -> Self:
        """The table of these fields of JSON objects; as in RabbitMQ, unknown values are empty texts."""

        def known(value: object) -> object:
            return unknown if value is None else value

        return cls(columns, [[known(item.get(column)) for column in columns] for item in items])


@dataclass(frozen=True, slots=True)
class MessageLine:
    """A line for people; other formats get `fields`."""

    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportLines:
    """Lines `name: value` for people, then an optional table; other formats get `document`."""

    lines: Sequence[tuple[str, Any]]
    document: Any
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class TextDocument:
    """A document that is printed unchanged, in every format."""

    text: str


@dataclass(frozen=True, slots=True)
class Sections:
    """Lines under headings for people; other formats get `document`."""

    parts: Sequence[tuple[str, Sequence[str]]]
    document: Any


Value = Table | MessageLine | ReportLines | Sections | TextDocument | None
