"""Direct replies without a queue, and copies to more than one routing key."""

from __future__ import annotations

from typing import Any

import pika

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


def test_a_copy_list_that_is_no_list_gets_406(channel: Any, queue: str) -> None:
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"CC": "no list"}))
    text = 'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}'
    with channel_refuses(406, text):
        channel.queue_declare(queue, passive=True)


def test_a_blind_copy_is_made_and_not_shown(channel: Any, queue: str, name: str) -> None:
    blind = f"blind-{name}"
    channel.queue_declare(blind, exclusive=True)
    headers = {"BCC": [blind], "mine": 1}
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers=headers))
    for one in (queue, blind):
        wait_ready(channel, one, 1)
        assert take(channel, one).properties.headers == {"mine": 1}


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
