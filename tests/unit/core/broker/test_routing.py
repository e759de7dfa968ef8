"""core.broker.routing: who gets a message, against the words of the specification put as plainly as can be."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.broker.routing import (
    ROUTERS,
    VISITS_MAX,
    Router,
    TooManyPatterns,
    Topic,
    headers_match,
    no_headers,
)
from leveret.core.broker.topology import ExchangeState, Topology
from leveret.core.queues.queue import Queue
from leveret.model.definitions import Binding, Exchange
from leveret.model.definitions import Queue as QueueDefinition

WORD = st.sampled_from(["a", "b", "ab", "", "*", "#"])
PATTERN = st.lists(WORD, max_size=5).map(".".join)
KEY = st.lists(st.sampled_from(["a", "b", "ab", "", "*", "#"]), max_size=6).map(".".join)


def binding(queue: str = "q", key: str = "", **arguments: Any) -> Binding:
    return Binding(source="e", vhost="v", destination=queue, routing_key=key, arguments=arguments)


def matched(router: Router, key: str = "", headers: dict[str, Any] | None = None) -> list[str]:
    given = headers or {}
    found = router.match(key, lambda names: {each: given[each] for each in given if each.encode() in names})
    return sorted(one.destination for one in found)


def as_regex(pattern: str) -> re.Pattern[str]:
    """A topic pattern, over a key whose every word is followed by a dot."""
    parts = {"*": r"[^.]*\.", "#": r"([^.]*\.)*"}
    words = pattern.split(".") if pattern else []
    return re.compile("".join(parts.get(word, re.escape(word) + r"\.") for word in words))


@given(patterns=st.lists(PATTERN, max_size=6, unique=True), key=KEY, data=st.data())
def test_a_topic_exchange_matches_as_its_patterns_say_also_after_unbinding(
    patterns: list[str], key: str, data: st.DataObject
) -> None:
    router = Topic()
    for pattern in patterns:
        router.add(binding(pattern, pattern))
    gone = data.draw(st.sets(st.sampled_from(patterns))) if patterns else set()
    for pattern in gone:
        router.remove(binding(pattern, pattern))
    words = "".join(word + "." for word in key.split(".")) if key else ""
    assert matched(router, key) == sorted(
        pattern for pattern in patterns if pattern not in gone and as_regex(pattern).fullmatch(words)
    )


def ambiguous(steps: int) -> list[str]:
    """Patterns of which all match a key of as many words `a`, in more ways the longer it is."""
    return [".".join(f"#.{word}" for word in words) for words in product("a*", repeat=steps)]


@pytest.mark.parametrize("exchanges", [1, 8])
def test_a_key_that_is_matched_in_too_many_ways_is_refused(exchanges: int) -> None:
    """4,096 such patterns took 1.6 s for one publish, for which all other clients waited."""
    topology = Topology("v")
    topology.exchanges["all"] = ExchangeState(Exchange(vhost="v", name="all", type="fanout"))
    for number in range(exchanges):
        topology.exchanges[f"e{number}"] = ExchangeState(Exchange(vhost="v", name=f"e{number}", type="topic"))
        topology.bind(Binding(vhost="v", source="all", destination=f"e{number}", destination_type="exchange"))
        for pattern in ambiguous(8):
            topology.bind(Binding(vhost="v", source=f"e{number}", destination="q", routing_key=pattern))
    words = {1: 64, 8: 12}[exchanges]
    assert topology.route("all", "a.a.a.a.a.a.a.a", no_headers) == ["q"]
    with pytest.raises(TooManyPatterns, match=r"routing key 'a\.a"):
        topology.route("all", ".".join("a" * words), no_headers)
    assert topology.route("e0", "a", no_headers) == []
    router = topology.exchanges["e0"].router
    with pytest.raises(TooManyPatterns):
        router.match(".".join("a" * 128), no_headers)
    assert router.visited < 2 * VISITS_MAX, "it stops there"


def test_a_message_may_have_very_many_keys_of_which_each_matches_one_pattern() -> None:
    topology = Topology("v")
    topology.exchanges["e"] = ExchangeState(Exchange(vhost="v", name="e", type="topic"))
    topology.bind(Binding(vhost="v", source="e", destination="q", routing_key="*.stock.#"))
    copies = [f"usd.stock.{number}" for number in range(20_000)]
    assert topology.route("e", "eur.stock.db", no_headers, copies) == ["q"]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.stock.#", ["usd.stock", "eur.stock.db"], ["stock.nasdaq", "stock"]),
        ("#", ["", "a", "a.b.c"], []),
        ("*", ["a"], ["", "a.b"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.b.c"]),
        ("", [""], ["a"]),
        ("a.*.b", ["a.x.b", "a..b"], ["a.b"]),
    ],
)
def test_topic_patterns_mean_what_the_specification_says(pattern: str, yes: list[str], no: list[str]) -> None:
    router = Topic()
    router.add(binding("q", pattern))
    assert [key for key in [*yes, *no] if matched(router, key)] == yes


def test_bindings_of_two_queues_with_one_pattern_both_match() -> None:
    router = Topic()
    router.add(binding("q1", "a.#"))
    router.add(binding("q2", "a.#"))
    assert matched(router, "a.b") == ["q1", "q2"]
    router.remove(binding("q1", "a.#"))
    assert matched(router, "a.b") == ["q2"]


def test_a_pattern_full_of_hashes_costs_no_more_than_its_length_times_the_keys() -> None:
    router = Topic()
    router.add(binding("q", ".".join(["#"] * 60 + ["end"])))
    key = ".".join(["a"] * 120)
    # Tried one way after the other, this would outlast the test's time limit by ages.
    assert matched(router, key) == []
    assert matched(router, key + ".end") == ["q"]


def test_an_unbound_topic_exchange_keeps_nothing() -> None:
    router = Topic()
    for key in ("a.b.c", "a.b", "#", ""):
        router.add(binding("q", key))
    for key in ("a.b", "a.b.c", "", "#"):
        router.remove(binding("q", key))
    assert not router._root.next
    assert not router._root.bindings


def test_a_direct_exchange_matches_equal_keys_and_a_fanout_all() -> None:
    direct, fanout = ROUTERS["direct"](), ROUTERS["fanout"]()
    for router in (direct, fanout):
        for queue, key in (("q1", "a"), ("q2", "a"), ("q3", "b")):
            router.add(binding(queue, key))
    assert matched(direct, "a") == ["q1", "q2"]
    assert matched(direct, "c") == []
    assert matched(fanout, "c") == ["q1", "q2", "q3"]
    for router in (direct, fanout):
        router.remove(binding("q1", "a"))
    assert matched(direct, "a") == ["q2"]
    assert matched(fanout, "a") == ["q2", "q3"]


@pytest.mark.parametrize(
    ("mode", "headers", "expected"),
    [
        ("all", {"a": 1, "b": "x"}, True),
        ("all", {"a": 1, "b": "x", "c": 0}, True),
        ("all", {"a": 1}, False),
        ("all", {"a": 2, "b": "x"}, False),
        ("any", {"a": 1}, True),
        ("any", {"a": 2, "b": "x"}, True),
        ("any", {"a": 2}, False),
        ("any", {}, False),
    ],
)
def test_headers_match_all_or_any_of_the_pairs(mode: str, headers: dict[str, Any], expected: bool) -> None:
    assert headers_match({"x-match": mode, "a": 1, "b": "x"}, headers) is expected
    assert headers_match({"x-match": mode, "a": 1, "b": "x", "x-own": 1}, headers) is expected
    assert mode != "all" or headers_match({"a": 1, "b": "x"}, headers) is expected


def test_keys_that_begin_with_x_count_only_when_the_mode_says_so() -> None:
    arguments = {"a": 1, "x-own": 2}
    assert not headers_match(arguments | {"x-match": "all-with-x"}, {"a": 1})
    assert headers_match(arguments | {"x-match": "all-with-x"}, {"a": 1, "x-own": 2})
    assert headers_match(arguments | {"x-match": "any-with-x"}, {"x-own": 2})
    assert not headers_match(arguments | {"x-match": "any"}, {"x-own": 2})


def test_a_void_value_asks_for_presence_alone() -> None:
    assert headers_match({"a": None}, {"a": 5})
    assert not headers_match({"a": None}, {"b": 5})


@pytest.mark.parametrize(("wanted", "sent"), [(1, True), (1, 1.0), ("1", 1), (True, 1), ([1], [True])])
def test_a_value_matches_only_in_its_own_type(wanted: object, sent: object) -> None:
    assert headers_match({"a": wanted}, {"a": wanted})
    assert not headers_match({"a": wanted}, {"a": sent})


def test_a_header_is_compared_as_a_binding_holds_it() -> None:
    assert headers_match({"a": "x"}, {"a": b"x"})
    assert headers_match({"a": 90}, {"a": datetime(1970, 1, 1, 0, 1, 30, tzinfo=UTC)})
    assert headers_match({"a": 1.5}, {"a": Decimal("1.5")})


def test_without_pairs_all_matches_and_any_does_not() -> None:
    assert headers_match({"x-match": "all"}, {"a": 1})
    assert not headers_match({"x-match": "any"}, {"a": 1})


VALUE = st.sampled_from([None, 0, 1, 1.0, True, "1", "", "x", [1], {"k": 1}])
TABLE = st.dictionaries(st.sampled_from(["a", "b", "x-own"]), VALUE)
MODE = st.sampled_from(["all", "any", "all-with-x", "any-with-x", None])


@given(asked=st.lists(st.tuples(MODE, TABLE), max_size=8), headers=TABLE, data=st.data())
def test_a_headers_exchange_finds_what_a_comparison_with_each_binding_finds(
    asked: list[tuple[str | None, dict[str, Any]]], headers: dict[str, Any], data: st.DataObject
) -> None:
    router = ROUTERS["headers"]()
    bindings = [
        binding(f"q{number}", **table, **({"x-match": mode} if mode else {}))
        for number, (mode, table) in enumerate(asked)
    ]
    for each in bindings:
        router.add(each)
    gone = data.draw(st.sets(st.sampled_from(range(len(bindings))))) if bindings else set()
    for number in gone:
        router.remove(bindings[number])
    left = [each for number, each in enumerate(bindings) if number not in gone]
    found = [each.destination for each in left if headers_match(each.arguments, headers)]
    assert matched(router, "", headers) == sorted(found)
    for each in left:
        router.remove(each)
    assert matched(router, "", headers) == []


def test_a_message_is_compared_with_the_bindings_of_its_own_headers() -> None:
    router = ROUTERS["headers"]()
    for number in range(1000):
        router.add(binding(f"all{number}", kind="order", tenant=number))
        either: dict[str, Any] = {"x-match": "any", "region": number, "zone": number}
        router.add(binding(f"any{number}", **either))
    assert matched(router, "", {"kind": "order", "tenant": 7, "zone": 8}) == ["all7", "any8"]
    assert router.compared <= 3


def test_only_a_headers_exchange_decodes_headers() -> None:
    router = ROUTERS["headers"]()
    router.add(binding("q1", a=1))
    router.add(binding("q2", a=2))
    assert matched(router, "whatever", {"a": 1}) == ["q1"]
    router.remove(binding("q1", a=1))
    assert matched(router, "whatever", {"a": 1}) == []


# -- through a vhost --------------------------------------------------------------------------


def topology(*bindings: tuple[str, str, str], alternates: dict[str, str] | None = None) -> Topology:
    """Fanout exchanges e0, e1, ...; (source, "queue" or "exchange", destination)."""
    vhost = Topology("v")
    for source, kind, destination in bindings:
        for name in (source, destination) if kind == "exchange" else (source,):
            if name not in vhost.exchanges:
                vhost.exchanges[name] = ExchangeState(Exchange(name=name, vhost="v", type="fanout"))
        vhost.bind(Binding(source=source, vhost="v", destination=destination, destination_type=kind))
    for name, alternate in (alternates or {}).items():
        vhost.exchanges[name].alternate = alternate
    return vhost


def test_the_default_exchange_routes_to_the_queue_of_that_name() -> None:
    vhost = topology()
    vhost.queues["q"] = Queue(QueueDefinition(name="q", vhost="v"), lambda queue, offset: [])
    assert vhost.route("", "q", no_headers) == ["q"]
    assert vhost.route("", "other", no_headers) == []


def test_a_queue_gets_a_message_once_on_however_many_ways() -> None:
    ways = [("e0", "exchange", "e1"), ("e0", "exchange", "e2")]
    vhost = topology(*ways, ("e1", "queue", "q"), ("e2", "queue", "q"), ("e0", "queue", "q"))
    assert vhost.route("e0", "", no_headers) == ["q"]


def test_a_ring_of_exchanges_ends() -> None:
    vhost = topology(("e0", "exchange", "e1"), ("e1", "exchange", "e0"), ("e1", "queue", "q"))
    assert vhost.route("e0", "", no_headers) == ["q"]


def test_an_alternate_exchange_gets_what_matched_nothing() -> None:
    vhost = topology(
        ("e1", "queue", "q"), ("e0", "queue", "gone"), alternates={"e0": "e1", "e1": "e0", "amq.direct": "e0"}
    )
    assert vhost.route("e0", "", no_headers) == ["gone"]
    vhost.unbind(Binding(source="e0", vhost="v", destination="gone"))
    assert vhost.route("e0", "", no_headers) == ["q"]
    assert vhost.route("amq.direct", "", no_headers) == ["q"]
    vhost.unbind(Binding(source="e1", vhost="v", destination="q"))
    assert vhost.route("amq.direct", "", no_headers) == []


def test_a_missing_alternate_exchange_is_no_error() -> None:
    vhost = topology(("e0", "queue", "q"), alternates={"e0": "missing"})
    vhost.unbind(Binding(source="e0", vhost="v", destination="q"))
    assert vhost.route("e0", "", no_headers) == []


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Five exchanges of all types, with bindings among them and to queues, and alternates."""
    vhost = Topology("v")
    names = [f"e{number}" for number in range(5)]
    for name in names:
        vhost.exchanges[name] = ExchangeState(
            Exchange(name=name, vhost="v", type=draw(st.sampled_from(sorted(ROUTERS))))
        )
        vhost.exchanges[name].alternate = draw(st.sampled_from([None, *names]))
    queues = st.tuples(st.just("queue"), st.sampled_from(["q0", "q1", "q2", "q3"]))
    exchanges = st.tuples(st.just("exchange"), st.sampled_from(names))
    for source, (kind, name), key in draw(
        st.lists(st.tuples(st.sampled_from(names), st.one_of(queues, exchanges), PATTERN), max_size=14)
    ):
        vhost.bind(
            Binding(source=source, vhost="v", destination=name, destination_type=kind, routing_key=key)
        )
    return vhost


@given(topologies(), st.lists(KEY, min_size=1, max_size=5))
def test_a_message_has_all_its_routing_keys_at_each_exchange_that_it_comes_to(
    vhost: Topology, keys: list[str]
) -> None:
    queues, seen, waiting = set[str](), {"e0"}, ["e0"]
    while waiting:
        state = vhost.exchanges[waiting.pop()]
        found = [each for key in keys for each in state.router.match(key, no_headers)]
        queues.update(each.destination for each in found if each.destination_type == "queue")
        onward = {each.destination for each in found if each.destination_type == "exchange"}
        new = (onward if found or state.alternate is None else {state.alternate}) - seen
        seen |= new
        waiting += new
    assert sorted(vhost.route("e0", keys[0], no_headers, keys[1:])) == sorted(queues)


def test_another_key_leads_on_from_an_exchange_to_which_it_did_not_lead() -> None:
    """As RabbitMQ 3.10.8 routes: a message with the keys a and b goes from one direct exchange to the next by a."""
    vhost = Topology("v")
    for name in ("one", "two"):
        vhost.exchanges[name] = ExchangeState(Exchange(name=name, vhost="v", type="direct"))
    vhost.exchanges["one"].alternate = "amq.fanout"
    vhost.bind(Binding(source="amq.fanout", vhost="v", destination="spare"))
    vhost.bind(
        Binding(source="one", vhost="v", destination="two", destination_type="exchange", routing_key="a")
    )
    vhost.bind(Binding(source="two", vhost="v", destination="q", routing_key="b"))
    assert vhost.route("one", "a", no_headers, ["b"]) == ["q"]
    assert vhost.route("one", "b", no_headers, ["none"]) == ["spare"]


def test_what_is_the_same_for_all_routing_keys_of_a_message_is_looked_up_once() -> None:
    """A header with 20,000 keys, and a fanout exchange with 5,000 queues, were a step of ten seconds."""
    vhost = Topology("v")
    vhost.bind(
        Binding(
            source="amq.topic",
            vhost="v",
            destination="amq.headers",
            destination_type="exchange",
            routing_key="#",
        )
    )
    for number in range(10):
        vhost.bind(Binding(source="amq.headers", vhost="v", destination=f"q{number}"))
    assert len(vhost.route("amq.topic", "k", no_headers, map(str, range(50)))) == 10
    assert vhost.looked_at == 10


def test_bindings_are_known_from_both_ends() -> None:
    vhost = topology(("e0", "queue", "q"), ("e0", "exchange", "e1"))
    one = Binding(source="e0", vhost="v", destination="q")
    assert vhost.bindings_into("queue", "q") == [one]
    assert len(vhost.bindings()) == 2
    vhost.bind(one)
    assert len(vhost.bindings()) == 2
    vhost.unbind(one)
    assert vhost.bindings_into("queue", "q") == []
    assert not vhost.has_binding(one)
