"""Messages of tests differ, come back through both codecs as they were, and are told from altered ones."""

from __future__ import annotations

import json
from collections import Counter

import pika
from pamqp import header

from leveret.session.message_json import payload_json, properties_json
from leveret.testing.applications.contents import (
    PERSISTENT,
    content_of,
    for_pamqp,
    from_pamqp,
    is_same,
    is_shown,
    is_streamed,
    number_of,
    properties_of,
    shown_number,
)
from leveret.testing.sites.standby_upstream import stored_message

NUMBERS = range(1, 400)
CONTENTS = {number: content_of(number, transient=0.2) for number in NUMBERS}


def test_no_two_messages_are_alike_and_all_have_their_numbers() -> None:
    for number, (properties, body) in CONTENTS.items():
        assert number_of(properties.get("message_id"), body) == number
    several = Counter(repr(content) for content in CONTENTS.values())
    assert several.total() == len(several)


def test_messages_of_the_longest_runs_can_be_encoded() -> None:
    """2,000 publishers of a torture of parted networks had a million numbers each."""
    for number in range(2_200_000_000, 2_200_000_100):
        assert pika.BasicProperties(**content_of(number).properties).encode()


def test_messages_are_of_all_kinds() -> None:
    sizes = [len(body) for _, body in CONTENTS.values()]
    assert min(sizes) == 0
    assert max(sizes) > 131_072, "several frames"
    kept = [properties for properties, _ in CONTENTS.values()]
    assert {} in kept
    assert {"delivery_mode": PERSISTENT} in kept
    assert {each.get("delivery_mode") for each in kept} == {None, 1, PERSISTENT}
    names = set().union(*kept)
    assert names >= {"headers", "priority", "expiration", "timestamp", "type", "reply_to", "content_encoding"}
    assert any("nested" in (each.get("headers") or {}) for each in kept)
    assert all(properties_of(number)["delivery_mode"] == PERSISTENT for number in NUMBERS)


def test_properties_come_back_through_the_clients_codecs_and_as_json() -> None:
    for number, (properties, body) in CONTENTS.items():
        by_pika = pika.BasicProperties(**properties)
        assert is_same(properties, vars(pika.BasicProperties().decode(b"".join(by_pika.encode()))))
        octets = header.ContentHeader(0, len(body), for_pamqp(properties)).marshal()
        read = header.ContentHeader()
        read.unmarshal(octets)
        found = from_pamqp(read.properties)
        assert is_same(properties, found)
        assert is_streamed(properties, found)
        payload, encoding = payload_json(body)
        row = {"properties": properties_json(octets), "payload": payload, "payload_encoding": encoding}
        row = json.loads(json.dumps(row))
        assert shown_number(row) == number
        assert is_shown(properties, body, row)
        other, _ = CONTENTS[number % len(CONTENTS) + 1]
        assert is_same(properties, other) == (properties == other)


def test_a_dead_letter_is_told_from_an_altered_message() -> None:
    published = {"message_id": "1", "expiration": "5"}
    dead = {"message_id": "1", "headers": {"x-death": [{}], "x-first-death-queue": "q"}}
    assert is_same(published, dead)
    assert not is_same({**published, "headers": {"a": 1}}, dead)
    assert is_same({**published, "headers": {"a": 1}}, {**dead, "headers": {"x-death": [{}], "a": 1}})
    assert not is_same(published, {"message_id": "1"}), "only a dead letter loses its expiration"
    assert is_same({"headers": {}}, {"headers": {"x-delivery-count": 1}})


def test_stored_messages_differ_in_their_properties_and_follow_from_their_bodies() -> None:
    heads = {stored_message(b"%06d" % number)[:-6] for number in NUMBERS}
    assert len(heads) > 200
    assert stored_message(b"a") == stored_message(b"a")
