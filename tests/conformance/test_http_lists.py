"""Pages, order and columns of the HTTP API's lists, as RabbitMQ has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

NAMES = ["q0", "q1", "q2", "q3", "q4"]


@pytest.fixture
def vhost(http: httpx.Client, name: str) -> Iterator[str]:
    """A vhost with five queues."""
    http.put(f"vhosts/{name}", json={})
    for queue in NAMES:
        http.put(f"queues/{name}/{queue}", json={})
    yield name
    http.delete(f"vhosts/{name}")


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


def test_a_page_comes_in_an_envelope(http: httpx.Client, vhost: str) -> None:
    page = http.get(f"queues/{vhost}?page=2&page_size=2&columns=name").json()
    assert page == {
        "filtered_count": 5,
        "item_count": 2,
        "items": [{"name": "q2"}, {"name": "q3"}],
        "page": 2,
        "page_count": 3,
        "page_size": 2,
        "total_count": 5,
    }
    assert http.get(f"queues/{vhost}?page=1").json()["page_size"] == 100
    assert http.get(f"queues/{vhost}?page=1&page_size=500").json()["item_count"] == 5


@pytest.mark.parametrize("query", ["", "page_size=2", "pagination=true", "name=q1"])
def test_without_a_page_there_is_no_envelope_and_no_filter(
    http: httpx.Client, vhost: str, query: str
) -> None:
    assert names(http.get(f"queues/{vhost}?{query}").json()) == NAMES


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("name=q1", ["q1"]),
        ("name=Q1", ["q1"]),
        ("name=^q[12]&use_regex=true", ["q1", "q2"]),
        ("name=x", []),
    ],
)
def test_a_page_is_filtered_by_name(http: httpx.Client, vhost: str, query: str, expected: list[str]) -> None:
    page = http.get(f"queues/{vhost}?page=1&{query}").json()
    assert (names(page["items"]), page["filtered_count"], page["total_count"]) == (expected, len(expected), 5)


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("page=0", "invalid_pagination_parameters"),
        ("page=1&page_size=0", "invalid_pagination_parameters"),
        ("page=1&page_size=-1", "invalid_pagination_parameters"),
        ("page=1&page_size=501", "invalid_pagination_parameters"),
        ("page=x", "bad_request"),
        ("page=", "bad_request"),
        ("page=1&name=(&use_regex=true", "bad_request"),
        ("page=9", "page_out_of_range"),
        ("page=7&page_size=1", "page_out_of_range"),
        ("page=4&page_size=2", "page_out_of_range"),
    ],
)
def test_a_page_that_cannot_be_is_refused(http: httpx.Client, vhost: str, query: str, error: str) -> None:
    reply = http.get(f"queues/{vhost}?{query}")
    assert (reply.status_code, reply.json()["error"]) == (400, error)


def test_the_page_behind_a_last_full_one_is_empty(http: httpx.Client, vhost: str) -> None:
    page = http.get(f"queues/{vhost}?page=6&page_size=1").json()
    assert (page["items"], page["item_count"], page["page_count"]) == ([], 0, 5)
    assert http.get(f"queues/{vhost}?page=2&page_size=5").json()["items"] == []


def test_a_list_is_sorted_as_asked(http: httpx.Client, vhost: str) -> None:
    assert names(http.get(f"queues/{vhost}?sort=name&sort_reverse=true").json()) == NAMES[::-1]
    assert names(http.get(f"queues/{vhost}?sort_reverse=true").json()) == NAMES[::-1]
    page = http.get(f"queues/{vhost}?sort=name&sort_reverse=true&page=2&page_size=2").json()
    assert names(page["items"]) == ["q2", "q1"]
    assert len(http.get(f"queues/{vhost}?sort=message_stats.publish_details.rate").json()) == 5


def test_columns_cut_lists_and_objects(http: httpx.Client, vhost: str) -> None:
    assert http.get(f"queues/{vhost}?columns=name,none").json()[0] == {"name": "q0"}
    assert http.get(f"vhosts/{vhost}?columns=name,tracing").json() == {"name": vhost, "tracing": False}
    assert http.get("users?columns=name,tags&sort=name").json()[0] == {
        "name": "guest",
        "tags": ["administrator"],
    }


@pytest.mark.parametrize("path", ["vhosts", "exchanges", "queues", "connections", "channels"])
def test_long_lists_have_pages(http: httpx.Client, vhost: str, path: str) -> None:
    assert "items" in http.get(f"{path}?page=1&page_size=2").json()


@pytest.mark.parametrize("path", ["permissions", "bindings", "policies", "nodes", "parameters"])
def test_short_lists_have_none(http: httpx.Client, vhost: str, path: str) -> None:
    assert isinstance(http.get(f"{path}?page=1&page_size=2").json(), list)
