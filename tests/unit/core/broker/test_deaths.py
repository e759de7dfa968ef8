"""core.broker.deaths: what the headers of a dead message say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.core.broker.deaths import Death
from leveret.core.queues.head import Head, head_of_octets, make_head
from leveret.wire import properties as props
from leveret.wire import tables


def head_of(**properties: Any) -> Head:
    octets = header.ContentHeader(body_size=3, properties=commands.Basic.Properties(**properties)).marshal()
    return make_head(b"e", b"k", octets)


def dead_head(head: Head, *death: Any) -> Head:
    dead = Death(*death).of(head.route, head.sized_header)
    return head_of_octets(dead.route, dead.header[4:])


def test_a_dead_message_has_no_time_to_live_any_more_and_says_which_it_had() -> None:
    dead = dead_head(head_of(expiration="60000"), "q", "expired", 7, "dlx", None)
    assert (dead.exchange, dead.routing_key, dead.expiration_ms) == (b"dlx", b"k", None)
    assert props.EXPIRATION not in props.split(dead.header)
    [death] = props.headers_of(dead.header)["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("q", "expired", 1)
    assert death["original-expiration"] == "60000"


def test_a_message_that_dies_again_of_the_same_is_counted_where_it_died_before() -> None:
    again = dead_head(dead_head(head_of(), "q", "expired", 7, "dlx", None), "q", "expired", 8, "dlx", None)
    assert [death["count"] for death in props.headers_of(again.header)["x-death"]] == [2]
    elsewhere = dead_head(again, "r", "maxlen", 9, "dlx", "other")
    assert elsewhere.routing_key == b"other"
    found = props.headers_of(elsewhere.header)
    assert [(death["queue"], death["count"]) for death in found["x-death"]] == [("r", 1), ("q", 2)]
    assert (found["x-first-death-queue"], found["x-first-death-reason"]) == ("q", "expired")


@pytest.mark.parametrize(
    ("sent", "first"),
    [({"x-first-death-queue": "mine"}, "q"), ({"x-death": [{"queue": "r", "reason": "expired"}]}, None)],
)
def test_the_first_death_is_noted_where_no_earlier_one_is_known(
    sent: dict[str, Any], first: str | None
) -> None:
    """As RabbitMQ 3.10.8 has it, whatever a publisher wrote."""
    dead = dead_head(head_of(headers=sent), "q", "expired", 7, "dlx", None)
    assert props.headers_of(dead.header).get("x-first-death-queue") == first


def test_all_that_a_publisher_wrote_keeps_its_octets() -> None:
    """Also what no client can decode: a header twice, and a time beyond any date."""
    entries = tables.join({b"a": tables.long_string(b"\xff"), b"x-delivery-count": tables.long_integer(3)})
    twice = entries + tables.join({b"a": tables.timestamp(2**64 - 1)})
    sent = {
        props.CONTENT_TYPE: b"text",
        props.HEADERS: twice,
        props.DELIVERY_MODE: b"\x02",
        props.EXPIRATION: b"60000",
        props.TIMESTAMP: b"\xff" * 8,
    }
    head = make_head(b"e", b"k", props.join(sent, 3))
    found = props.split(dead_head(head, "q", "expired", 7, "dlx", None).header)
    headers = found.pop(props.HEADERS)
    changed = (props.HEADERS, props.EXPIRATION)
    assert found == {flag: value for flag, value in sent.items() if flag not in changed}
    kept = tables.join({b"a": tables.long_string(b"\xff")}) + tables.join({b"a": tables.timestamp(2**64 - 1)})
    assert headers.startswith(kept)
    assert tables.split(headers[len(kept) :]).keys() == {
        b"x-first-death-exchange",
        b"x-first-death-queue",
        b"x-first-death-reason",
        b"x-death",
    }


@pytest.mark.parametrize(("key", "copies", "keys"), [(None, [b"c", b"d"], True), ("other", [], False)])
def test_carbon_copies_stay_unless_the_queue_has_a_key_of_its_own(
    key: str | None, copies: list[bytes], keys: bool
) -> None:
    head = head_of(headers={"CC": ["c", "d"], "a": 1})
    dead = Death("q", "expired", 7, "dlx", key).of(head.route, head.sized_header)
    assert dead.copies == copies
    found = props.headers_of(dead.header[4:])
    assert ("CC" in found) == keys
    assert found["x-death"][0]["routing-keys"] == ["k", "c", "d"]


def test_deaths_of_one_kind_differ_where_their_messages_do() -> None:
    """The headers of a first death are made once for each route and expiration."""
    death = Death("q", "expired", 7, "dlx", None)
    for key in (b"k", b"l", b"k"):
        for expiration in ("1", None, "2"):
            head = make_head(b"e", key, head_of(expiration=expiration).header)
            dead = death.of(head.route, head.sized_header)
            [found] = props.headers_of(dead.header[4:])["x-death"]
            assert (found["routing-keys"], found.get("original-expiration")) == ([key.decode()], expiration)
            assert dead.ended_in == (b"q",)


def test_what_a_consumer_rejected_may_come_back_to_where_it_died_before() -> None:
    head, reasons = head_of(), [("q", "expired"), ("r", "rejected"), ("s", "maxlen"), ("t", "expired")]
    ended: list[list[bytes]] = []
    for queue, reason in reasons:
        dead = Death(queue, reason, 7, "dlx", None).of(head.route, head.sized_header)
        head = head_of_octets(dead.route, dead.header[4:])
        ended.append([*dead.ended_in])
    assert ended == [[b"q"], [], [b"s"], [b"t", b"s"]]


DEATHS = [{"queue": "q", "reason": "expired", "count": 2}, {"queue": "r", "reason": "rejected", "count": 1}]
SENT = {
    "a": st.integers(0, 9),
    "colour": st.sampled_from(["red-deep", "CC"]),
    "CC": st.just(["c", "d"]),
    "x-death": st.sampled_from([DEATHS, DEATHS[1:]]),
    "x-first-death-queue": st.just("p"),
    "x-delivery-count": st.just(3),
}
PROPERTIES = {
    "content_type": st.just("text"),
    "content_encoding": st.just("utf"),
    "headers": st.fixed_dictionaries({}, optional=SENT),
    "expiration": st.sampled_from(["1", "60000"]),
    "priority": st.just(1),
    "app_id": st.just("x-death"),
}


@given(st.fixed_dictionaries({}, optional=PROPERTIES), st.sampled_from([None, "key"]))
def test_a_death_says_the_same_whatever_else_a_message_has(sent: dict[str, Any], key: str | None) -> None:
    """Most messages have no header that a death changes, so theirs are not taken apart."""
    head = make_head(b"e", b"k", head_of(**sent).header)
    death = Death("q", "expired", 7, "dlx", key)
    dead = death.of(head.route, head.sized_header)
    assert dead == death.of(head.route, head.sized_header), "once made, it is found again"
    headers = dict(sent.get("headers", {}))
    entry = {"count": 1, "reason": "expired", "queue": "q", "exchange": "e"}
    entry |= {"routing-keys": ["k", *headers.get("CC", [])]}
    entry |= {"original-expiration": sent["expiration"]} if "expiration" in sent else {}
    earlier = headers.pop("x-death", [])
    firsts = {"x-first-death-exchange": "e", "x-first-death-queue": "q", "x-first-death-reason": "expired"}
    if earlier:
        firsts = {name: headers[name] for name in firsts if name in headers}
        if earlier[0]["queue"] == "q":
            entry, earlier = earlier[0] | {"count": 3}, earlier[1:]
    if key is not None:
        headers.pop("CC", None)
    headers.pop("x-delivery-count", None)
    found = props.split(dead.header[4:])
    deaths = props.headers_of(dead.header[4:])
    [mine, *others] = deaths.pop("x-death")
    mine.pop("time", None)
    assert (mine, others) == (entry, earlier)
    assert deaths == headers | firsts
    kept = {flag: value for flag, value in props.split(head.header).items() if flag != props.EXPIRATION}
    assert found == kept | {props.HEADERS: found[props.HEADERS]}
    assert dead.header[:4] == len(dead.header[4:]).to_bytes(4, "big")
