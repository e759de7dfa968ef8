"""core.rules.validation: when two declarations are one, and what exchanges and bindings may say."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.rules.validation import (
    check_binding,
    check_exchange_arguments,
    check_name,
    equivalent,
    field_type,
    queue_type,
    same_value,
)
from leveret.model.definitions import Binding, Exchange, Queue
from leveret.model.errors import InvalidCommand, PreconditionFailed

OF_Q, OF_E = "'q' in vhost 'v'", "'e' in vhost 'v'"
QUEUE_FIELDS = ("durable", "auto_delete")


def queue(**more: Any) -> Queue:
    return Queue(name="q", vhost="v", **more)


def exchange(**more: Any) -> Exchange:
    return Exchange(**{"name": "e", "vhost": "v", "type": "direct"} | more)


def difference(wanted: Any, held: Any) -> str:
    with pytest.raises(PreconditionFailed) as caught:
        equivalent(wanted, held, QUEUE_FIELDS if isinstance(wanted, Queue) else ("type",), ("a",))
    return str(caught.value)


def test_a_queue_without_a_type_is_a_classic_one() -> None:
    assert queue_type({}) == "classic"
    assert queue_type({"x-queue-type": "quorum"}) == "quorum"


def test_the_type_of_a_value_is_told_by_rabbitmqs_name() -> None:
    values: list[object] = [None, True, 1, -(2**31), 2**31, 1.5, "x", [], {}]
    types = ["void", "bool", "signedint", "signedint", "long", "double", "longstr", "array", "table"]
    assert [field_type(value) for value in values] == types


def test_an_alternate_exchange_is_a_name() -> None:
    check_exchange_arguments(exchange(arguments={"alternate-exchange": "other"}))
    text = f"invalid type 'signedint' for arg 'alternate-exchange' in exchange {OF_E}"
    with pytest.raises(PreconditionFailed, match=text):
        check_exchange_arguments(exchange(arguments={"alternate-exchange": 1}))


def test_a_name_fits_a_short_string() -> None:
    check_name("queue", "é" * 127 + "x")
    with pytest.raises(InvalidCommand, match="queue name is longer than 255 octets"):
        check_name("queue", "é" * 128)


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("most", 'value <<"most">>; expected all, any, all-with-x, or any-with-x'),
        (5, "type signedint (value 5); expected longstr"),
        (None, "type void (value undefined); expected longstr"),
    ],
)
def test_only_a_headers_exchange_looks_at_how_to_match(mode: object, text: str) -> None:
    binding = Binding(source="e", vhost="v", destination="q", arguments={"x-match": mode})
    check_binding(binding, "direct")
    with pytest.raises(PreconditionFailed) as caught:
        check_binding(binding, "headers")
    assert str(caught.value) == f"Invalid x-match field {text}"


def test_equal_declarations_are_equivalent_whatever_their_epoch_and_other_arguments() -> None:
    held = queue(epoch=7, arguments={"x-other": 1})
    equivalent(queue(arguments={"x-other": 2}), held, QUEUE_FIELDS, ("x-queue-type",))


def test_an_absent_queue_type_is_the_same_as_classic() -> None:
    both = (queue(), queue(arguments={"x-queue-type": "classic"}))
    for wanted, held in (both, reversed(both)):
        equivalent(wanted, held, (), ("x-queue-type",))
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-type'"):
        equivalent(queue(), queue(arguments={"x-queue-type": "quorum"}), (), ("x-queue-type",))
    for no_type in (["a"], {"a": 1}):
        for held in both:
            with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-type'"):
                equivalent(queue(arguments={"x-queue-type": no_type}), held, (), ("x-queue-type",))


@pytest.mark.parametrize(
    ("wanted", "held", "text"),
    [
        (queue(durable=False), queue(), f"'durable' for queue {OF_Q}: received 'false' but current is 'true'"),
        (exchange(type="topic"), exchange(), f"'type' for exchange {OF_E}: received 'topic' but current is 'direct'"),
        (queue(arguments={"a": 6}), queue(arguments={"a": 5}),
         f"'a' for queue {OF_Q}: received '6' but current is '5'"),
        (queue(arguments={"a": "5"}), queue(arguments={"a": 5}), "received '5' but current is '5'"),
        (queue(arguments={"a": True}), queue(arguments={"a": 1}), "received 'true' but current is '1'"),
        (queue(arguments={"a": None}), queue(arguments={"a": 5}), "received none but current is '5'"),
        (queue(arguments={"a": 2**40}), queue(),
         "received the value '1099511627776' of type 'long' but current is none"),
        (queue(), queue(arguments={"a": 5}), "received none but current is the value '5' of type 'signedint'"),
        (exchange(arguments={"a": "x"}), exchange(),
         f"'a' for exchange {OF_E}: received the value 'x' of type 'longstr' but current is none"),
        (queue(), queue(arguments={"a": True}), "received none but current is the value 'true' of type 'bool'"),
        (queue(arguments={"a": None}), queue(),
         "received the value 'undefined' of type 'void' but current is none"),
    ],
)  # fmt: skip
def test_the_first_difference_is_told_in_rabbitmqs_words(wanted: Any, held: Any, text: str) -> None:
    text_of = difference(wanted, held)
    assert text_of.startswith("inequivalent arg '")
    assert text_of.endswith(text)


def test_values_are_the_same_only_in_their_own_type() -> None:
    assert same_value({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "x"}]})
    for one, other in [(1, True), (1, 1.0), ("1", 1), ([1], [True]), ({"a": 1}, {"a": 1.0}), ([1], [1, 1])]:
        assert not same_value(one, other)
