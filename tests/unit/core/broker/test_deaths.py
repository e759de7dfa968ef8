"""core.broker.deaths: what the headers of a dead message say."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands, header

from leveret.core.broker.deaths import Death
from leveret.core.queues.head import Head, head_of_octets, make_head
from leveret.wire import properties as props
from leveret.wire import tables


def head_of(**properties: Any) -> Head:
    octets = header.ContentHeader(body_size=3, properties=commands.Basic.Properties(**properties)).marshal()
    return make_head(b"e", b"k", octets)


def dead_head(head: Head, *death: Any) -> Head:
    dead = Death(*death).of(head.route, head.header)
    return head_of_octets(dead.route, dead.header)


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


def test_headers_that_are_no_table_make_room_for_the_death() -> None:
    head = make_head(b"e", b"k", props.join({props.HEADERS: b"\x09no"}, 3))
    dead = dead_head(head, "q", "expired", 7, "dlx", None)
    assert [death["queue"] for death in props.headers_of(dead.header)["x-death"]] == ["q"]


@pytest.mark.parametrize(("key", "copies", "keys"), [(None, [b"c", b"d"], True), ("other", [], False)])
def test_carbon_copies_stay_unless_the_queue_has_a_key_of_its_own(
    key: str | None, copies: list[bytes], keys: bool
) -> None:
    head = head_of(headers={"CC": ["c", "d"], "a": 1})
    dead = Death("q", "expired", 7, "dlx", key).of(head.route, head.header)
    assert dead.copies == copies
    found = props.headers_of(dead.header)
    assert ("CC" in found) == keys
    assert found["x-death"][0]["routing-keys"] == ["k", "c", "d"]


def test_deaths_of_one_kind_differ_where_their_messages_do() -> None:
    """The headers of a first death are made once for each route and expiration."""
    death = Death("q", "expired", 7, "dlx", None)
    for key in (b"k", b"l", b"k"):
        for expiration in ("1", None, "2"):
            head = make_head(b"e", key, head_of(expiration=expiration).header)
            dead = death.of(head.route, head.header)
            [found] = props.headers_of(dead.header)["x-death"]
            assert (found["routing-keys"], found.get("original-expiration")) == ([key.decode()], expiration)
            assert dead.ended_in == [b"q"]


def test_what_a_consumer_rejected_may_come_back_to_where_it_died_before() -> None:
    head, reasons = head_of(), [("q", "expired"), ("r", "rejected"), ("s", "maxlen"), ("t", "expired")]
    ended: list[list[bytes]] = []
    for queue, reason in reasons:
        dead = Death(queue, reason, 7, "dlx", None).of(head.route, head.header)
        head = head_of_octets(dead.route, dead.header)
        ended.append([*dead.ended_in])
    assert ended == [[b"q"], [], [b"s"], [b"t", b"s"]]
