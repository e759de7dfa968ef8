"""Bindings, and where each type of exchange sends a message."""

from __future__ import annotations

from typing import Any

import pika
import pytest

from tests.conformance.verbs import channel_refuses, drain, publish, take

EXCHANGE_MISSING = "NOT_FOUND - no exchange '{}' in vhost '/'"
QUEUE_MISSING = "NOT_FOUND - no queue '{}' in vhost '/'"


@pytest.fixture
def queues(channel: Any) -> list[str]:
    """Three queues of this connection."""
    return [channel.queue_declare("", exclusive=True).method.queue for _ in range(3)]


def contents(channel: Any, queues: list[str]) -> list[list[bytes]]:
    """What each queue holds, once it has what was published on this channel."""
    return [drain(channel, one) for one in queues]


# Bindings


def test_binding_to_a_missing_exchange_gets_404(channel: Any, queue: str, name: str) -> None:
    exchange = f"no-{name}"
    with channel_refuses(404, EXCHANGE_MISSING.format(exchange)):
        channel.queue_bind(queue, exchange, "k")


def test_binding_a_missing_queue_gets_404(channel: Any, name: str) -> None:
    with channel_refuses(404, QUEUE_MISSING.format(name)):
        channel.queue_bind(name, "amq.direct", "k")


def test_unbinding_what_does_not_exist_succeeds(channel: Any, queue: str, name: str) -> None:
    missing = f"no-{name}"
    channel.queue_unbind(queue, "amq.direct", "never bound")
    channel.queue_unbind(missing, "amq.direct", "k")
    channel.queue_unbind(queue, missing, "k")
    channel.exchange_unbind(missing, "amq.direct", "k")


@pytest.mark.parametrize("end", ["source", "destination"])
def test_binding_missing_exchanges_gets_404(channel: Any, name: str, end: str) -> None:
    ends = {"source": "amq.direct", "destination": "amq.fanout"} | {end: name}
    with channel_refuses(404, EXCHANGE_MISSING.format(name)):
        channel.exchange_bind(**ends, routing_key="k")


def test_a_binding_made_twice_delivers_once_and_goes_at_once(channel: Any, queue: str) -> None:
    for _ in range(2):
        channel.queue_bind(queue, "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"once")
    assert drain(channel, queue) == [b"once"]
    channel.queue_unbind(queue, "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"gone")
    assert drain(channel, queue) == []


def test_a_binding_ends_only_with_its_own_key_and_arguments(channel: Any, queue: str) -> None:
    channel.queue_bind(queue, "amq.direct", queue, arguments={"a": 1})
    channel.queue_unbind(queue, "amq.direct", queue)
    channel.queue_unbind(queue, "amq.direct", queue, arguments={"a": 2})
    channel.basic_publish("amq.direct", queue, b"bound")
    assert drain(channel, queue) == [b"bound"]
    channel.queue_unbind(queue, "amq.direct", queue, arguments={"a": 1})
    channel.basic_publish("amq.direct", queue, b"unbound")
    assert drain(channel, queue) == []


def test_two_bindings_of_one_queue_that_both_match_deliver_once(channel: Any, queue: str, name: str) -> None:
    channel.exchange_declare(name, "topic")
    channel.queue_bind(queue, name, "a.*")
    channel.queue_bind(queue, name, "*.b")
    channel.basic_publish(name, "a.b", b"once")
    assert drain(channel, queue) == [b"once"]


def test_a_publish_follows_bindings_made_and_ended_in_between(channel: Any, queue: str, name: str) -> None:
    """A broker that remembers routes must forget them in time."""
    channel.exchange_declare(name, "topic")
    for number in range(3):
        channel.basic_publish(name, "k", b"unbound")
        channel.queue_bind(queue, name, "k")
        channel.basic_publish(name, "k", b"%d" % number)
        channel.queue_unbind(queue, name, "k")
    assert drain(channel, queue) == [b"0", b"1", b"2"]


# Types


def test_the_default_exchange_routes_to_the_queue_of_that_name(channel: Any, queues: list[str]) -> None:
    publish(channel, queues[1], b"here")
    assert contents(channel, queues) == [[], [b"here"], []]


def test_direct_routes_by_the_whole_key(channel: Any, queues: list[str], name: str) -> None:
    channel.exchange_declare(name, "direct")
    for queue, key in zip(queues, ("k", "k", "k.x"), strict=True):
        channel.queue_bind(queue, name, key)
    for key in ("k", "k.x", "K", "", "*"):
        channel.basic_publish(name, key, key.encode())
    assert contents(channel, queues) == [[b"k"], [b"k"], [b"k.x"]]


def test_fanout_routes_to_all_whatever_the_key(channel: Any, queues: list[str], name: str) -> None:
    channel.exchange_declare(name, "fanout")
    for queue in queues[:2]:
        channel.queue_bind(queue, name, "ignored")
    channel.basic_publish(name, "other", b"all")
    assert contents(channel, queues) == [[b"all"], [b"all"], []]


TOPICS = {
    "a.b.c": {"a.b.c"},
    "a.*.c": {"a.b.c", "a..c"},
    "*": {"a"},
    "*.*": {"a.b", ".", "x.c"},
    "#": {"a.b.c", "a..c", "a", "", "a.b", ".", "a.b.c.d", "x.c"},
    "a.#": {"a.b.c", "a..c", "a", "a.b", "a.b.c.d"},
    "#.c": {"a.b.c", "a..c", "x.c"},
    "a.#.c": {"a.b.c", "a..c"},
    "a.#.d": {"a.b.c.d"},
    "#.b.#": {"a.b.c", "a.b", "a.b.c.d"},
    "*.#": {"a.b.c", "a..c", "a", "a.b", ".", "a.b.c.d", "x.c"},
    "a*": set(),
    "": {""},
}
TOPIC_KEYS = sorted(set().union(*TOPICS.values()))


@pytest.mark.parametrize("pattern", TOPICS)
def test_topic_words_stars_and_hashes(channel: Any, queue: str, name: str, pattern: str) -> None:
    channel.exchange_declare(name, "topic")
    channel.queue_bind(queue, name, pattern)
    for key in TOPIC_KEYS:
        channel.basic_publish(name, key, key.encode())
    assert {one.decode() for one in drain(channel, queue)} == TOPICS[pattern]


def test_a_topic_pattern_of_one_queue_leaves_the_others_alone(
    channel: Any, queues: list[str], name: str
) -> None:
    channel.exchange_declare(name, "topic")
    for queue, pattern in zip(queues, ("JFK.*", "#.UA", "LGA.#"), strict=True):
        channel.queue_bind(queue, name, pattern)
    for key in ("JFK.UA", "JFK.AA", "LGA.UA", "EWR.B6"):
        channel.basic_publish(name, key, key.encode())
    assert contents(channel, queues) == [[b"JFK.UA", b"JFK.AA"], [b"JFK.UA", b"LGA.UA"], [b"LGA.UA"]]


HEADER_BINDINGS: list[tuple[dict[str, Any], dict[str, Any] | None, bool]] = [
    ({"x-match": "all", "a": 1, "b": "two"}, {"a": 1, "b": "two", "c": 3}, True),
    ({"x-match": "all", "a": 1, "b": "two"}, {"a": 1}, False),
    ({"x-match": "all", "a": 1}, {"a": 2}, False),
    ({"x-match": "all", "a": 1}, {"a": "1"}, False),
    ({"x-match": "all", "a": None}, {"a": "whatever"}, True),
    ({"x-match": "all", "a": None}, {"b": 1}, False),
    ({"x-match": "any", "a": 1, "b": "two"}, {"b": "two"}, True),
    ({"x-match": "any", "a": 1, "b": "two"}, {"a": 2, "b": "three"}, False),
    ({"a": 1, "b": 2}, {"a": 1}, False),
    ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),
    ({"x-match": "all"}, {"a": 1}, True),
    ({"x-match": "any"}, {"a": 1}, False),
    ({"x-match": "all"}, None, True),
    ({"x-match": "all", "a": 1}, None, False),
    ({"x-match": "all", "x-ignored": 1}, {"a": 1}, True),
    ({"x-match": "all", "a": True}, {"a": True}, True),
    ({"x-match": "all", "a": {"in": 1}}, {"a": {"in": 1}}, True),
    ({"x-match": "all", "a": [1, 2]}, {"a": [1, 2]}, True),
    ({"x-match": "all", "a": [1, 2]}, {"a": [2, 1]}, False),
]


@pytest.mark.parametrize(("arguments", "headers", "matches"), HEADER_BINDINGS)
def test_headers_all_and_any(
    channel: Any,
    queue: str,
    name: str,
    arguments: dict[str, Any],
    headers: dict[str, Any] | None,
    matches: bool,
) -> None:
    channel.exchange_declare(name, "headers")
    channel.queue_bind(queue, name, "", arguments=arguments)
    channel.basic_publish(name, "", b"x", pika.BasicProperties(headers=headers))
    assert drain(channel, queue) == ([b"x"] if matches else [])


def test_an_unknown_x_match_gets_406(channel: Any, queue: str) -> None:
    text = (
        'PRECONDITION_FAILED - Invalid x-match field value <<"some">>; '
        "expected all, any, all-with-x, or any-with-x"
    )
    with channel_refuses(406, text):
        channel.queue_bind(queue, "amq.headers", "", arguments={"x-match": "some"})


# Exchange to exchange


def test_exchanges_can_be_bound_in_a_row(channel: Any, queue: str, name: str) -> None:
    first, second = f"first-{name}", f"second-{name}"
    channel.exchange_declare(first, "topic")
    channel.exchange_declare(second, "direct")
    channel.exchange_bind(second, first, "a.*")
    channel.queue_bind(queue, second, "a.b")
    for key in ("a.b", "a.c", "b.b"):
        channel.basic_publish(first, key, key.encode())
    assert drain(channel, queue) == [b"a.b"]
    channel.exchange_unbind(second, first, "a.*")
    channel.basic_publish(first, "a.b", b"unbound")
    assert drain(channel, queue) == []


def test_exchanges_bound_in_a_circle_deliver_once(channel: Any, queue: str, name: str) -> None:
    first, second = f"first-{name}", f"second-{name}"
    for exchange in (first, second):
        channel.exchange_declare(exchange, "fanout")
        channel.queue_bind(queue, exchange)
    channel.exchange_bind(second, first)
    channel.exchange_bind(first, second)
    channel.basic_publish(first, "", b"once")
    assert drain(channel, queue) == [b"once"]


def test_an_exchange_bound_as_destination_ends_the_binding_when_deleted(
    channel: Any, queue: str, name: str
) -> None:
    channel.exchange_declare(name, "fanout")
    channel.queue_bind(queue, name)
    channel.exchange_bind(name, "amq.direct", queue)
    channel.exchange_delete(name)
    channel.basic_publish("amq.direct", queue, b"lost")
    publish(channel, queue, b"kept")
    assert take(channel, queue).body == b"kept"
