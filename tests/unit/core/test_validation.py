"""core.validation: which arguments are served, and when two declarations are one."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.validation import check_exchange_arguments, check_queue_arguments, equivalent, queue_type
from leveret.model.definitions import Exchange, Queue
from leveret.model.errors import PreconditionFailed

OF_Q, OF_E = "'q' in vhost 'v'", "'e' in vhost 'v'"
VALUE_X, VALUE_1, FALSE = (
    f"the value '{value}' of type '{kind}'"
    for value, kind in (("x", "longstr"), ("1", "signedint"), ("false", "bool"))
)
QUEUE_FIELDS = ("durable", "auto_delete")


def queue(**more: Any) -> Queue:
    return Queue(name="q", vhost="v", **more)


def exchange(**more: Any) -> Exchange:
    return Exchange(**{"name": "e", "vhost": "v", "type": "direct"} | more)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_queue_types_that_are_served_pass(kind: str) -> None:
    wanted = queue(arguments={"x-queue-type": kind, "x-something": 1})
    check_queue_arguments(wanted)
    assert queue_type(wanted.arguments) == kind
    assert queue_type({}) == "classic"


@pytest.mark.parametrize("kind", ["stream", "", 5, None])
def test_another_queue_type_is_refused_by_name(kind: object) -> None:
    with pytest.raises(
        PreconditionFailed, match=f"invalid arg 'x-queue-type' for queue 'q' in vhost 'v'.*{kind}"
    ):
        check_queue_arguments(queue(arguments={"x-queue-type": kind}))


@pytest.mark.parametrize(
    "name", ["x-message-ttl", "x-dead-letter-exchange", "x-max-length", "x-max-priority"]
)
def test_an_argument_that_would_be_ignored_is_refused(name: str) -> None:
    with pytest.raises(PreconditionFailed, match=f"'{name}' for queue 'q' in vhost 'v': not served"):
        check_queue_arguments(queue(arguments={name: 1}))


def test_an_alternate_exchange_is_a_name() -> None:
    check_exchange_arguments(exchange(arguments={"alternate-exchange": "other"}))
    with pytest.raises(PreconditionFailed, match="'alternate-exchange' for exchange 'e' in vhost 'v'"):
        check_exchange_arguments(exchange(arguments={"alternate-exchange": 1}))


def test_equal_declarations_are_equivalent_whatever_their_epoch_and_other_arguments() -> None:
    held = queue(epoch=7, arguments={"x-other": 1})
    equivalent(queue(arguments={"x-other": 2}), held, QUEUE_FIELDS, ("x-queue-type",))


def test_an_absent_queue_type_is_the_same_as_classic() -> None:
    both = (queue(), queue(arguments={"x-queue-type": "classic"}))
    for wanted, held in (both, reversed(both)):
        equivalent(wanted, held, (), ("x-queue-type",))
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-type'"):
        equivalent(queue(), queue(arguments={"x-queue-type": "quorum"}), (), ("x-queue-type",))


@pytest.mark.parametrize(
    ("wanted", "held", "text"),
    [
        (queue(durable=False), queue(), f"'durable' for queue {OF_Q}: received 'false' but current is 'true'"),
        (exchange(type="topic"), exchange(), f"'type' for exchange {OF_E}: received 'topic' but current is 'direct'"),
        (exchange(arguments={"a": "x"}), exchange(),
         f"'a' for exchange {OF_E}: received {VALUE_X} but current is none"),
        (exchange(arguments={"a": 1}), exchange(arguments={"a": False}), f"received {VALUE_1} but current is {FALSE}"),
    ],
)  # fmt: skip
def test_the_first_difference_is_told_in_rabbitmqs_words(wanted: Any, held: Any, text: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        equivalent(wanted, held, ("durable",) if isinstance(wanted, Queue) else ("type",), ("a",))
    assert str(caught.value).startswith("inequivalent arg '")
    assert text in str(caught.value)
