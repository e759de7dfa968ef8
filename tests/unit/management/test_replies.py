from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest
from starlette.datastructures import QueryParams

from leveret.management.replies import STATUS, list_reply, refusal_reply
from leveret.model import errors
from leveret.model.errors import InvalidCommand, LeveretError, NotFound, Refusal

ITEMS = [{"name": f"q{index}", "messages": index % 3} for index in range(5)]


def listed(query: str) -> Any:
    return msgspec.json.decode(list_reply(ITEMS, QueryParams(query)).body)


def test_every_refusal_has_a_status_of_its_own() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Refusal)]
    assert set(kinds) <= set(STATUS)


def test_a_new_kind_of_refusal_is_still_a_bad_request() -> None:
    class Odd(Refusal):
        pass

    assert refusal_reply(Odd("why")).status_code == 400


def test_an_error_that_is_no_refusal_is_the_nodes_own() -> None:
    assert refusal_reply(LeveretError("disk full")).status_code == 503


def test_an_error_says_what_and_why() -> None:
    reply = refusal_reply(NotFound("no queue 'q' in vhost '/'"))
    assert msgspec.json.decode(reply.body) == {
        "error": "Object Not Found",
        "reason": "no queue 'q' in vhost '/'",
    }


def test_columns_are_chosen_and_those_that_are_not_there_left_out() -> None:
    assert listed("columns=name,nothing")[0] == {"name": "q0"}


def test_a_list_is_sorted_by_a_column() -> None:
    assert [item["messages"] for item in listed("sort=messages")] == [0, 0, 1, 1, 2]
    assert listed("sort=name&sort_reverse=true")[0]["name"] == "q4"


def test_a_page_tells_how_many_there_are() -> None:
    page = listed("page=2&page_size=2&columns=name")
    assert page["items"] == [{"name": "q2"}, {"name": "q3"}]
    assert (page["page_count"], page["total_count"], page["filtered_count"]) == (3, 5, 5)


def test_a_page_is_filtered_by_name() -> None:
    assert listed("page=1&name=q3")["filtered_count"] == 1
    assert listed("page=1&name=[12]&use_regex=true")["filtered_count"] == 2


@pytest.mark.parametrize(
    "query", ["page=0", "page=x", "page=9", "page=1&page_size=-1", "name=(&use_regex=true"]
)
def test_a_query_that_makes_no_sense_is_refused(query: str) -> None:
    with pytest.raises(InvalidCommand):
        listed(query)
