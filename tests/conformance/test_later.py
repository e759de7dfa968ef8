"""What RabbitMQ has and Leveret does not have yet: transactions, and what queues do by themselves.

On Leveret each of these must fail as long as it is marked `later`; see `conftest`.
"""

from __future__ import annotations

from typing import Any

import pika
import pytest

from leveret.testing.ports import wait_until
from tests.conformance.rawclient import PATIENCE_S
from tests.conformance.verbs import channel_refuses, drain, get, publish, take, wait_ready

pytestmark = pytest.mark.later


def test_a_transaction_publishes_at_its_commit(connect: Any, channel: Any, queue: str) -> None:
    channel.tx_select()
    publish(channel, queue, b"1", b"2")
    assert get(connect().channel(), queue) is None
    channel.tx_commit()
    assert drain(channel, queue) == [b"1", b"2"]


def test_a_rolled_back_transaction_publishes_nothing(channel: Any, queue: str) -> None:
    channel.tx_select()
    publish(channel, queue, b"1")
    channel.tx_rollback()
    publish(channel, queue, b"2")
    channel.tx_commit()
    assert drain(channel, queue) == [b"2"]


def test_an_ack_in_a_transaction_counts_from_its_commit(connection: Any, channel: Any, queue: str) -> None:
    publish(channel, queue, b"1", b"2")
    wait_ready(channel, queue, 2)
    other = connection.channel()
    other.tx_select()
    other.basic_ack(take(other, queue).delivery_tag)
    other.tx_commit()
    other.basic_ack(take(other, queue).delivery_tag)
    other.close()
    wait_ready(channel, queue, 1)
    assert drain(channel, queue) == [b"2"]


def test_a_transaction_on_a_channel_with_confirms_gets_406(channel: Any) -> None:
    channel.confirm_delivery()
    with channel_refuses(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"):
        channel.tx_select()


def test_a_message_expires_by_its_queue(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 50})
    channel.confirm_delivery()
    publish(channel, name, b"short-lived")
    wait_ready(channel, name, 0)


def test_a_message_expires_by_its_own_expiration(channel: Any, queue: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"short-lived", pika.BasicProperties(expiration="50"))
    publish(channel, queue, b"stays")
    wait_ready(channel, queue, 1, timeout_s=2.0)
    assert drain(channel, queue) == [b"stays"]


def test_an_expired_message_goes_to_the_dead_letter_exchange(channel: Any, queue: str, name: str) -> None:
    arguments = {
        "x-message-ttl": 10,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
    }
    dying = f"dying-{name}"
    channel.queue_declare(dying, exclusive=True, arguments=arguments)
    publish(channel, dying, b"x")
    wait_ready(channel, queue, 1)
    (death,) = take(channel, queue).properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (dying, "expired", 1)


def test_a_rejected_message_goes_to_the_dead_letter_exchange(channel: Any, queue: str, name: str) -> None:
    refusing = f"refusing-{name}"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare(refusing, exclusive=True, arguments=arguments)
    publish(channel, refusing, b"x")
    channel.basic_reject(take(channel, refusing).delivery_tag, requeue=False)
    wait_ready(channel, queue, 1)
    headers = take(channel, queue).properties.headers
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (refusing, "rejected")


def test_a_full_queue_drops_its_oldest(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 2})
    publish(channel, name, b"1", b"2", b"3")
    assert drain(channel, name) == [b"2", b"3"]


def test_a_full_queue_may_refuse_its_newest(channel: Any, name: str) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.confirm_delivery()
    publish(channel, name, b"1")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, name, b"2")
    assert drain(channel, name) == [b"1"]


def test_an_unused_queue_expires(connect: Any, channel: Any, name: str) -> None:
    channel.queue_declare(name, arguments={"x-expires": 100})

    def is_gone() -> bool:
        asking = connect().channel()
        try:
            asking.queue_declare("", exclusive=True)
            asking.queue_bind(name, "amq.fanout")
        except pika.exceptions.ChannelClosedByBroker as refused:
            return bool(refused.reply_code == 404)
        finally:
            asking.connection.close()
        return False

    wait_until(is_gone, f"the end of {name}", PATIENCE_S, interval_s=0.1)


def test_higher_priorities_overtake(channel: Any, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5})
    for priority in (1, 5, 3, 5):
        channel.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    assert drain(channel, name) == [b"5", b"5", b"3", b"1"]


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


def test_consumers_of_higher_priority_come_first(channel: Any, queue: str) -> None:
    found: list[str] = []

    def into(who: str) -> Any:
        return lambda _channel, _method, _properties, _body: found.append(who)

    channel.basic_consume(queue, into("low"), arguments={"x-priority": 1})
    channel.basic_consume(queue, into("high"), arguments={"x-priority": 9})
    publish(channel, queue, b"1", b"2", b"3")

    def all_here() -> bool:
        channel.connection.process_data_events(0.01)
        return len(found) == 3

    wait_until(all_here, "three messages", PATIENCE_S)
    assert found == ["high"] * 3


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
