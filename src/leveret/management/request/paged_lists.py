"""Lists by RabbitMQ's query parameters: `sort`, `sort_reverse`, `columns`, and pages.

A list is given as its items and a function for their rows. So a page costs only its own rows, and a long list is made
in steps with other work in between.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from leveret.management.request.replies import BadRequest, json_reply, octets_reply
from leveret.model.errors import InvalidCommand
from leveret.model.patterns import Pattern, PatternError
from leveret.runtime.process.work_slices import in_slices, sorted_in_slices

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 500
REGEX_CHARACTERS_MAX: Final = 1000

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Listing(Generic[T]):
    """The items of a list, and the functions for its rows.

    Attributes:
        items: a snapshot, in any order.
        row: makes the JSON object of an item.
        order: the key of the default order.
        name: the text that a page's filter matches.
        columns: the values of some columns, without making the row.
        row_order: the columns whose values give the same order as `order`; they merge the rows of other nodes of a
            cluster.
    """

    items: Sequence[T]
    row: Callable[[T], Row]
    order: Callable[[T], Any]
    name: Callable[[T], str] = str
    columns: Mapping[str, Callable[[T], Any]] = field(default_factory=dict)
    row_order: Sequence[str] = ("name",)


class Page(NamedTuple):
    """The part of a list that is asked for."""

    number: int
    size: int
    name: Pattern | None

    @property
    def end(self) -> int:
        """The number of items up to its end."""
        return self.number * self.size


class ListQuery(NamedTuple):
    """A query's wishes for a list."""

    columns: list[list[str]] | None
    sort: str
    is_reversed: bool
    page: Page | None


def wish_of(query: QueryParams, *, in_pages: bool, is_part: bool = False) -> ListQuery:
    """Read a query; pages count only if the list has them, and may have any size for a part.

    Raises:
        InvalidCommand: a parameter is invalid.
    """
    page = (
        _page_of(query, sys.maxsize if is_part else PAGE_SIZE_MAX) if in_pages and "page" in query else None
    )
    return ListQuery(
        columns_of(query),
        query.get("sort", ""),
        query.get("sort_reverse") == "true",
        page,
    )


def columns_of(query: QueryParams) -> list[list[str]] | None:
    """The columns in the query, each as the names on the path to it; None for all."""
    wanted = query.get("columns")
    return [name.split(".") for name in wanted.split(",")] if wanted else None


async def list_reply(
    listing: Listing[T], query: QueryParams, *, in_pages: bool = False, is_part: bool = False
) -> Response:
    """The list, or a page of it in RabbitMQ's envelope; `is_part` for another node's question.

    Raises:
        InvalidCommand: a parameter is invalid, or there is no such page.
    """
    wish = wish_of(query, in_pages=in_pages, is_part=is_part)
    chosen = await _sorted(listing, await _named(listing, wish.page), wish)
    if wish.page is None:
        return octets_reply(b"[" + await _encoded(chosen, wish.columns) + b"]")
    return await _page_reply(len(listing.items), chosen, wish.page, wish.columns)


async def chosen_rows(listing: Listing[T], wish: ListQuery, until: int | None) -> tuple[list[Row], int, int]:
    """The first rows of a list in the query's order; the numbers of all items and of those with a matching name."""
    items = await _named(listing, wish.page)
    count = len(items)
    chosen = await _sorted(listing, items, wish)
    rows = [chosen.row(item) async for item in in_slices(chosen.items[:until])]
    return rows, len(listing.items), count


async def rows_reply(
    rows: list[Row], wish: ListQuery, order: Sequence[str], total: int, found: int
) -> Response:
    """A list, or a page of it, of rows from several nodes.

    Args:
        rows: the first ones of each node, at least up to the end of the page.
        wish: the query.
        order: the columns of the default order.
        total: the number of all rows.
        found: the number of those with a matching name.
    """
    rows = await sorted_in_slices(rows, lambda row: [_sortable(value_of(row, name)) for name in order])
    if wish.sort:
        rows = await _sorted_by(
            rows, lambda row: _sortable(value_of(row, wish.sort)), is_reversed=wish.is_reversed
        )
    elif wish.is_reversed:
        rows.reverse()
    part = rows if wish.page is None else _part(rows, wish.page, found)
    items = b"[" + await _encoded(_Lazy(part, lambda row: row), wish.columns) + b"]"
    if wish.page is None:
        return octets_reply(items)
    return json_reply(_envelope(wish.page, items, len(part), found, total))


async def plain_reply(rows: Sequence[Row], query: QueryParams, *names: str) -> Response:
    """A list without pages, of finished rows; sorted by the columns `names`."""
    listing = Listing(rows, lambda row: row, lambda row: [str(row.get(name)) for name in names])
    return await list_reply(listing, query)


def object_reply(row: Row, query: QueryParams) -> Response:
    """One object; `columns` applies here as well."""
    return json_reply(_cut(row, columns_of(query)))


class _Lazy(Generic[T]):
    """Items whose rows are made on access."""

    def __init__(self, items: Sequence[T], row: Callable[[T], Row]) -> None:
        self.items = items
        self.row = row


async def _sorted(listing: Listing[T], items: list[T], wish: ListQuery) -> _Lazy[Any]:
    key = listing.columns.get(wish.sort)
    if key is not None:
        items = await sorted_in_slices(items, lambda item: _sortable(key(item)))
    elif not wish.sort:
        items = await sorted_in_slices(items, listing.order)
    else:
        return await _sorted_rows(listing, items, wish)
    if wish.is_reversed:
        items.reverse()
    return _Lazy(items, listing.row)


async def _sorted_rows(listing: Listing[T], items: list[T], wish: ListQuery) -> _Lazy[Row]:
    """Rows sorted by a column that only a row has: all rows must be made."""
    items = await sorted_in_slices(items, listing.order)
    path = wish.sort.split(".")
    rows = [listing.row(item) async for item in in_slices(items)]
    rows = await _sorted_by(rows, lambda row: _sortable(_value(row, path)), is_reversed=wish.is_reversed)
    return _Lazy(rows, lambda row: row)


async def _sorted_by(rows: list[Row], key: Callable[[Row], Any], *, is_reversed: bool) -> list[Row]:
    """Rows of one value stay in their order, in a reversed list too."""
    if not is_reversed:
        return await sorted_in_slices(rows, key)
    return (await sorted_in_slices(rows[::-1], key))[::-1]


async def _page_reply(
    total: int, chosen: _Lazy[Any], page: Page, columns: list[list[str]] | None
) -> Response:
    found = len(chosen.items)
    part = _part(chosen.items, page, found)
    items = b"[" + await _encoded(_Lazy(part, chosen.row), columns) + b"]"
    return json_reply(_envelope(page, items, len(part), found, total))


def _part(items: Sequence[T], page: Page, found: int) -> Sequence[T]:
    """The items of a page. As in RabbitMQ the page right behind a last full one is there, and empty.

    Raises:
        BadRequest: there is no such page.
    """
    if page.end - page.size > found:
        raise BadRequest(
            "page_out_of_range",
            f"Page out of range, page: {page.number} page size: {page.size}, len: {found}",
        )
    return items[page.end - page.size : page.end]


def _envelope(page: Page, items: bytes, count: int, found: int, total: int) -> Row:
    return {
        "filtered_count": found,
        "item_count": count,
        "items": msgspec.Raw(items),
        "page": page.number,
        "page_count": _page_count(page, found),
        "page_size": page.size,
        "total_count": total,
    }


def _page_count(page: Page, found: int) -> int:
    return max(-(-found // page.size), 1)


async def _encoded(chosen: _Lazy[Any], columns: list[list[str]] | None) -> bytes:
    encode = msgspec.json.Encoder().encode
    return b",".join([encode(_cut(chosen.row(item), columns)) async for item in in_slices(chosen.items)])


def _page_of(query: QueryParams, size_max: int) -> Page:
    number, size = _number(query, "page"), _number(query, "page_size")
    if (number is not None and number < 1) or (size is not None and not 1 <= size <= size_max):
        raise BadRequest(
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {_shown(number)}, page size {_shown(size)}",
        )
    return Page(number or 1, size or PAGE_SIZE_DEFAULT, _pattern(query))


def _number(query: QueryParams, name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise InvalidCommand(f"Pagination parameters are invalid: {name} is no whole number")
    return int(text)


def _shown(number: int | None) -> str:
    return "undefined" if number is None else str(number)


def _pattern(query: QueryParams) -> Pattern | None:
    name = query.get("name")
    if not name:
        return None
    try:
        if len(name) > REGEX_CHARACTERS_MAX:
            raise PatternError("it is too long", REGEX_CHARACTERS_MAX)
        return Pattern(name if query.get("use_regex") == "true" else re.escape(name), ignore_case=True)
    except PatternError as error:
        raise InvalidCommand(f"Pagination parameters are invalid: name: {error}") from None


async def _named(listing: Listing[T], page: Page | None) -> list[T]:
    if page is None or page.name is None:
        return list(listing.items)
    return [item async for item in in_slices(listing.items) if page.name.covers(listing.name(item))]


def _cut(row: Row, columns: list[list[str]] | None) -> Row:
    """The chosen columns of a row; missing ones are left out."""
    if columns is None:
        return row
    shown: Row = {}
    for path in columns:
        value = _value(row, path)
        if value is not _ABSENT:
            place = shown
            for name in path[:-1]:
                place = place.setdefault(name, {})
            place[path[-1]] = value
    return shown


_ABSENT: Final = object()
_BEYOND: Final = 10**300


def value_of(row: Row, name: str) -> Any:
    """The value of a column, whose name may be a path of fields; `_ABSENT` if the row lacks it."""
    return _value(row, name.split("."))


def _value(row: Row, path: Iterable[str]) -> Any:
    value: Any = row
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
        value = value[name]
    return value


def _sortable(value: object) -> tuple[int, float, str]:
    """A sort key: missing values first, then numbers, then texts, so that mixed columns can be sorted."""
    if value is _ABSENT or value is None:
        return (0, 0.0, "")
    if isinstance(value, (int, float)):
        # An argument of a queue may be a number beyond all floats.
        return (1, float(max(-_BEYOND, min(value, _BEYOND))), "")
    return (2, 0.0, str(value))
