from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from starlette.datastructures import QueryParams

from leveret.management.request.paged_lists import Listing, Row, list_reply
from leveret.model.errors import InvalidCommand

NAMES = ["q3", "q0", "q4", "q1", "q2"]


class Rows:
    """Makes rows, and remembers of what."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def row(self, name: str) -> Row:
        self.made.append(name)
        stats = {"message_stats": {"publish": int(name[1])}} if name != "q0" else {}
        return {"name": name, "messages": int(name[1]) % 3, **stats}


def listed(query: str, rows: Rows | None = None, *, in_pages: bool = True) -> Any:
    rows = rows or Rows()
    listing = Listing(list(NAMES), rows.row, order=str, columns={"messages": lambda name: int(name[1]) % 3})
    reply = asyncio.run(list_reply(listing, QueryParams(query), in_pages=in_pages))
    return msgspec.json.decode(reply.body)


def names(items: list[Row]) -> list[str]:
    return [item["name"] for item in items]


def test_columns_are_chosen_and_those_that_are_not_there_left_out() -> None:
    assert listed("columns=name,nothing")[0] == {"name": "q0"}
    assert listed("columns=name,message_stats.publish")[1] == {"name": "q1", "message_stats": {"publish": 1}}
    assert len(listed("columns=")[0]) == 2


def test_a_list_is_sorted_by_a_column_of_any_depth() -> None:
    assert [item["messages"] for item in listed("sort=messages")] == [0, 0, 1, 1, 2]
    assert names(listed("sort=name&sort_reverse=true")) == ["q4", "q3", "q2", "q1", "q0"]
    assert names(listed("sort=message_stats.publish&sort_reverse=true")) == ["q4", "q3", "q2", "q1", "q0"]
    assert names(listed("sort=message_stats.publish"))[0] == "q0"


def test_a_list_is_sorted_by_numbers_of_any_size() -> None:
    sizes = {"q0": 10**400, "q1": -(10**400), "q2": 1.5e308, "q3": 7, "q4": float("inf")}
    listing = Listing(list(sizes), lambda name: {"name": name, "size": sizes[name]}, order=str)
    reply = asyncio.run(list_reply(listing, QueryParams("sort=size&columns=name")))
    assert names(msgspec.json.decode(reply.body))[:2] == ["q1", "q3"]


def test_only_the_rows_of_a_page_are_made() -> None:
    for query in ("page=2&page_size=2", "page=1&page_size=1&sort=messages&sort_reverse=true"):
        rows = Rows()
        page = listed(query, rows)
        assert rows.made == names(page["items"])


def test_the_first_page_of_nothing_is_empty() -> None:
    page = listed("page=1&name=none")
    assert (page["items"], page["page_count"], page["filtered_count"]) == ([], 1, 0)


def test_pages_are_counted_of_what_was_found() -> None:
    page = listed("page=1&page_size=2&name=q[0-2]&use_regex=true")
    assert (page["page_count"], page["filtered_count"], page["total_count"]) == (2, 3, 5)


@pytest.mark.parametrize(
    "query",
    [
        "page=0",
        "page=x",
        "page=",
        "page=9",
        "page=1&page_size=-1",
        "page=1&page_size=501",
        "page=1&page_size=0",
        f"page={10**30}",
        "page=1&name=(&use_regex=true",
        f"page=1&name={'a' * 2000}",
    ],
)
def test_a_query_that_makes_no_sense_is_refused(query: str) -> None:
    with pytest.raises(InvalidCommand):
        listed(query)
