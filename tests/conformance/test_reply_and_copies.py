"""Direct replies without a queue, and copies to more than one routing key."""

from __future__ import annotations

from typing import Any

import pika
import pytest

from leveret.testing.network.ports import wait_until
from tests.conformance.rawclient import PATIENCE_S
from tests.conformance.verbs import channel_refuses, drain, publish, take, wait_ready


def test_direct_reply_to_answers_without_a_queue(connect: Any, channel: Any, queue: str) -> None:
    answers: list[bytes] = []
    channel.basic_consume(
        "amq.rabbitmq.reply-to",
        lambda _channel, _method, _properties, body: answers.append(body),
        auto_ack=True,
    )
    channel.basic_publish("", queue, b"question", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    serving = connect().channel()
    wait_ready(serving, queue, 1)
    question = take(serving, queue)
    publish(serving, question.properties.reply_to, b"answer")

    def answered() -> bool:
        channel.connection.process_data_events(0.01)
        return bool(answers)

    wait_until(answered, "the answer", PATIENCE_S)
    assert answers == [b"answer"]


def test_a_copy_goes_to_each_key_in_cc(channel: Any, queue: str, name: str) -> None:
    carbon = f"carbon-{name}"
    channel.queue_declare(carbon, exclusive=True)
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"CC": [carbon]}))
    assert [drain(channel, one) for one in (queue, carbon)] == [[b"x"], [b"x"]]


@pytest.mark.parametrize(
    ("copies", "kind"),
    [("no list", "longstr"), (None, "void"), (True, "bool"), ({"a": 1}, "table")],
)
def test_a_copy_list_that_is_no_list_gets_406(channel: Any, queue: str, copies: object, kind: str) -> None:
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"CC": copies}))
    text = f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"CC",{kind}}}'
    with channel_refuses(406, text):
        channel.queue_declare(queue, passive=True)


@pytest.mark.parametrize("mine", [{"mine": 1}, {}])
def test_a_blind_copy_is_made_and_not_shown(
    channel: Any, queue: str, name: str, mine: dict[str, int]
) -> None:
    blind = f"blind-{name}"
    channel.queue_declare(blind, exclusive=True)
    headers = {"BCC": [blind], **mine}
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers=headers))
    for one in (queue, blind):
        wait_ready(channel, one, 1)
        assert take(channel, one).properties.headers == mine


def test_a_copy_to_the_same_queue_is_one_message(channel: Any, queue: str) -> None:
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"CC": [queue], "BCC": [queue]}))
    publish(channel, queue, b"y")
    wait_ready(channel, queue, 2)
    assert drain(channel, queue) == [b"x", b"y"]


REPLY_TO = "amq.rabbitmq.reply-to"


def test_replies_need_no_acknowledgement_and_take_none(channel: Any) -> None:
    with channel_refuses(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge"):
        channel.basic_consume(REPLY_TO, lambda *_: None)


def test_a_channel_consumes_replies_once(channel: Any) -> None:
    channel.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
    with channel_refuses(406, "PRECONDITION_FAILED - reply consumer already set"):
        channel.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)


def test_asking_for_replies_without_consuming_them_gets_406(channel: Any, queue: str) -> None:
    channel.basic_publish("", queue, b"x", pika.BasicProperties(reply_to=REPLY_TO))
    with channel_refuses(406, "PRECONDITION_FAILED - fast reply consumer does not exist"):
        channel.queue_declare(queue, passive=True)


def test_asking_for_replies_is_refused_before_other_properties_are(channel: Any, queue: str) -> None:
    wrong = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", user_id="nobody", expiration="x")
    channel.basic_publish("", queue, b"x", wrong)
    with channel_refuses(406, "PRECONDITION_FAILED - fast reply consumer does not exist"):
        channel.queue_declare(queue, passive=True)


def test_a_reply_name_leads_to_a_client_while_it_is_there(connect: Any, channel: Any, queue: str) -> None:
    leader_client = connect().channel()
    leader_client.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
    leader_client.basic_publish("", queue, b"x", pika.BasicProperties(reply_to=REPLY_TO))
    wait_ready(channel, queue, 1)
    reply_name = take(channel, queue).properties.reply_to
    assert reply_name.startswith(f"{REPLY_TO}.")
    found = channel.queue_declare(reply_name, passive=True).method
    assert (found.message_count, found.consumer_count) == (0, 1)
    assert channel.queue_declare(REPLY_TO, passive=True).method.consumer_count == 1


def test_copies_go_through_bindings_of_exchanges_to_each_queue_once(channel: Any, name: str) -> None:
    first, second, near, far = (f"{name}-{part}" for part in ("first", "second", "near", "far"))
    channel.exchange_declare(first, "direct", auto_delete=True)
    channel.exchange_declare(second, "topic", auto_delete=True)
    channel.exchange_bind(second, first, "two")
    for one, exchange, key in ((near, first, "one"), (far, second, "#")):
        channel.queue_declare(one, exclusive=True)
        channel.queue_bind(one, exchange, key)
    channel.basic_publish(first, "one", b"1", pika.BasicProperties(headers={"CC": ["two"]}))
    channel.basic_publish(first, "none", b"2", pika.BasicProperties(headers={"CC": ["two", "one"]}))
    for one in (near, far):
        wait_ready(channel, one, 2)
        assert drain(channel, one) == [b"1", b"2"]


def test_an_alternate_exchange_gets_a_message_that_no_copy_of_it_is_routed_for(
    channel: Any, name: str
) -> None:
    exchange, alternate = f"{name}-exchange", f"{name}-alternate"
    channel.exchange_declare(alternate, "fanout", auto_delete=True)
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": alternate})
    for one, source in ((name, exchange), (f"{name}-left", alternate)):
        channel.queue_declare(one, exclusive=True)
        channel.queue_bind(one, source, "one")
    for key, copy in (("one", "two"), ("two", "one"), ("two", "three")):
        properties = pika.BasicProperties(headers={"CC": [copy]})
        channel.basic_publish(exchange, key, f"{key} {copy}".encode(), properties)
    wait_ready(channel, name, 2)
    wait_ready(channel, f"{name}-left", 1)
    assert drain(channel, name) == [b"one two", b"two one"]
    assert drain(channel, f"{name}-left") == [b"two three"]
    channel.exchange_delete(exchange)


def asked(connect: Any, channel: Any, queue: str) -> tuple[Any, list[bytes], str]:
    """A client that waits for replies: its channel, its replies, and their routing key."""
    asking, answers = connect().channel(), list[bytes]()
    asking.basic_consume(REPLY_TO, lambda _channel, _method, _properties, body: answers.append(body), True)
    asking.basic_publish("", queue, b"question", pika.BasicProperties(reply_to=REPLY_TO))
    wait_ready(channel, queue, 1)
    return asking, answers, take(channel, queue, auto_ack=True).properties.reply_to


def test_a_mandatory_reply_comes_back_and_is_delivered(connect: Any, channel: Any, queue: str) -> None:
    """No queue takes it; a client does."""
    asking, answers, key = asked(connect, channel, queue)
    channel.confirm_delivery()
    for routing_key in (key, f"{key}x"):
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", routing_key, routing_key.encode(), mandatory=True)

    def answered() -> bool:
        asking.connection.process_data_events(0.01)
        return bool(answers)

    wait_until(answered, "the answer", PATIENCE_S)
    assert answers == [key.encode()]


def test_a_reply_is_copied_to_by_cc(connect: Any, channel: Any, queue: str) -> None:
    asking, answers, key = asked(connect, channel, queue)
    for routing_key in (queue, "nowhere"):
        properties = pika.BasicProperties(headers={"CC": [key]})
        channel.basic_publish("", routing_key, routing_key.encode(), properties)

    def answered() -> bool:
        asking.connection.process_data_events(0.01)
        return len(answers) == 2

    wait_until(answered, "two answers", PATIENCE_S)
    assert answers == [queue.encode(), b"nowhere"]
    assert drain(channel, queue) == [queue.encode()]
