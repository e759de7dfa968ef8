"""Merges lists and numbers of which each node of a cluster has a part.

A page needs only the rows up to its end from each node, in the same order; so other nodes are asked for these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from starlette.responses import Response

from leveret.management.request.call import Call
from leveret.management.request.other_nodes import documents_of_others
from leveret.management.request.paged_lists import (
    Listing,
    ListQuery,
    Row,
    chosen_rows,
    rows_reply,
    value_of,
    wish_of,
)

_PAGING: Final = ("page", "page_size", "columns")

T = TypeVar("T")


async def whole_list(call: Call, listing: Listing[T], *, in_pages: bool = False) -> Response:
    """The list by the query, with other nodes' parts; `listing` is this node's part."""
    return await whole_list_of(call, lambda reported: listing, in_pages=in_pages)


class ReportedObjects:
    """The objects in other nodes' parts of a list.

    Attributes:
        unreachable: the nodes that did not answer.
    """

    def __init__(
        self,
        documents: Iterable[Any] = (),
        unreachable: Collection[str] = (),
        key: Sequence[str] = (),
        *,
        by_key: bool,
    ) -> None:
        """Take their answers; `by_key` if each page's rows are in the order of their keys."""
        self.unreachable = unreachable
        self._keys: set[tuple[Any, ...]] = set()
        self._ends: list[tuple[Any, ...]] = []
        self._by_key = by_key
        self._are_all = True
        for document in documents:
            is_page = isinstance(document, dict)
            rows = document["items"] if is_page else document
            keys = [tuple(value_of(row, name) for name in key) for row in rows]
            self._keys.update(keys)
            if is_page:
                self._are_all &= document["filtered_count"] == document["total_count"]
                if len(rows) < document["filtered_count"]:
                    self._ends.append(keys[-1])

    def has(self, key: tuple[Any, ...]) -> bool | None:
        """Whether a node has reported an object; None if others were not asked for all of their lists."""
        if key in self._keys:
            return True
        are_before_ends = not self._ends or (self._by_key and all(key < end for end in self._ends))
        return False if self._are_all and are_before_ends else None


async def whole_list_of(
    call: Call,
    listing_of: Callable[[ReportedObjects], Listing[Any]],
    *,
    in_pages: bool = False,
    key: Sequence[str] = (),
) -> Response:
    """The same, with this node's knowledge of objects that no other node reported.

    Args:
        call: the request.
        listing_of: makes this node's part, given the others' parts.
        in_pages: whether the list has pages.
        key: the columns that identify a row; of equal rows the first is shown.
    """
    if call.is_part or not call.cluster.is_member:
        return await call.list(listing_of(ReportedObjects(by_key=True)), in_pages=in_pages)
    wish = wish_of(call.query, in_pages=in_pages)
    first = listing_of(ReportedObjects(by_key=True))
    found = await documents_of_others(call, query=_query_of_part(call, wish, [*first.row_order, *key]))
    by_key = not wish.sort and not wish.is_reversed and tuple(first.row_order) == tuple(key)
    listing = listing_of(ReportedObjects(found, call.unreachable, key, by_key=by_key))
    until = None if wish.page is None else wish.page.end
    own, total, named = await chosen_rows(listing, wish, until)
    for document in found:
        rows = document if wish.page is None else document["items"]
        own += rows
        total += len(rows) if wish.page is None else document["total_count"]
        named += len(rows) if wish.page is None else document["filtered_count"]
    rows = _once(own, key) if key else own
    named -= len(own) - len(rows)
    total -= len(own) - len(rows)
    return await rows_reply(rows, wish, listing.row_order, total, named)


async def whole_rows(call: Call, rows: list[Row], *names: str) -> Response:
    """A list without pages, of finished rows, with other nodes' parts."""
    query = _query_of_part(call, wish_of(call.query, in_pages=False), names)
    for document in await documents_of_others(call, query=query):
        rows += document
    return await call.plain_list(rows, *names)


async def sums_of(call: Call, key: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Other nodes' counts of the objects in the answer, by the fields `key` of a row; see `with_sum`."""
    query = [each for each in call.query.multi_items() if each[0] in _RATES]
    found: dict[tuple[Any, ...], list[Row]] = {}
    for document in await documents_of_others(call, query=query):
        for row in document if isinstance(document, list) else [document]:
            found.setdefault(tuple(row.get(name) for name in key), []).append(row)
    return found


_RATES: Final = frozenset(
    f"{kind}_{end}"
    for kind in ("lengths", "msg_rates", "data_rates", "node_stats")
    for end in ("age", "incr")
)


def with_sum(row: Row, others: Collection[Mapping[str, Any]], summed: Sequence[str]) -> Row:
    """A row with the sums of some of its fields and others' fields."""
    if not others:
        return row
    shown = dict(row)
    for other in others:
        for name in summed:
            if name in other:
                shown[name] = added(shown[name], other[name]) if name in shown else other[name]
    return shown


def added(one: Any, other: Any) -> Any:
    """The sum of two values of the same shape: numbers, objects of numbers, and samples by time."""
    match one, other:
        case {**left}, {**right}:
            return {
                name: added(left[name], right[name])
                if name in left and name in right
                else (left | right)[name]
                for name in left | right
            }
        case [*left_rows], [*right_rows]:
            return _added_samples(left_rows, right_rows)
        case ((int() | float()), (int() | float())):
            return one + other
    return one


def _added_samples(one: list[Row], other: list[Row]) -> list[Row]:
    values = {each["timestamp"]: each["sample"] for each in other}
    return [{**each, "sample": each["sample"] + values.get(each["timestamp"], 0)} for each in one]


def _query_of_part(call: Call, wish: ListQuery, needed: Sequence[str]) -> list[tuple[str, str]]:
    """The query for other nodes, with the columns that merge their rows."""
    query = [each for each in call.query.multi_items() if each[0] not in _PAGING]
    if wish.page is not None:
        query += [("page", "1"), ("page_size", str(wish.page.end))]
    if wish.columns is not None:
        names = [*map(".".join, wish.columns), *([wish.sort] if wish.sort else []), *needed]
        query.append(("columns", ",".join(dict.fromkeys(names))))
    return query


def _once(rows: list[Row], key: Sequence[str]) -> list[Row]:
    """Rows with a unique key: a queue that moves meanwhile is in two nodes' parts."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        found.setdefault(tuple(value_of(row, name) for name in key), row)
    return list(found.values())
