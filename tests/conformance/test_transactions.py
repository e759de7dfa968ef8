"""tx.*: publishes and acknowledgements that take effect together."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.testing.network.ports import wait_until
from tests.conformance.rawclient import PATIENCE_S
from tests.conformance.verbs import channel_refuses, drain, get, publish, take, wait_ready


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


def test_a_rolled_back_ack_leaves_the_message_unacked(channel: Any, queue: str) -> None:
    publish(channel, queue, b"1")
    wait_ready(channel, queue, 1)
    channel.tx_select()
    tag = take(channel, queue).delivery_tag
    channel.basic_ack(tag)
    channel.tx_rollback()
    channel.basic_ack(tag)
    channel.tx_commit()
    channel.basic_recover(requeue=True)
    assert drain(channel, queue) == []


def test_a_tag_is_acked_once_in_a_transaction(channel: Any, queue: str) -> None:
    publish(channel, queue, b"1")
    wait_ready(channel, queue, 1)
    channel.tx_select()
    tag = take(channel, queue).delivery_tag
    channel.basic_ack(tag)
    channel.basic_ack(tag)
    with channel_refuses(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        channel.tx_commit()


@pytest.mark.parametrize("method", ["tx_commit", "tx_rollback"])
def test_a_channel_that_never_chose_transactions_gets_406(channel: Any, method: str) -> None:
    with channel_refuses(406, "PRECONDITION_FAILED - channel is not transactional"):
        getattr(channel, method)()


def test_a_channel_in_a_transaction_has_no_confirms(channel: Any) -> None:
    channel.tx_select()
    with channel_refuses(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode"):
        channel.confirm_delivery()


def test_a_mandatory_message_comes_back_at_the_commit(channel: Any, name: str) -> None:
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _c, _m, _p, body: returned.append(body))
    channel.tx_select()
    channel.basic_publish("", f"missing-{name}", b"x", mandatory=True)
    channel.connection.process_data_events(0.2)
    assert not returned
    channel.tx_commit()

    def came() -> bool:
        channel.connection.process_data_events(0.01)
        return bool(returned)

    wait_until(came, "the return", PATIENCE_S)


def test_a_queue_that_went_before_the_commit_gets_nothing_and_who_has_its_name_now_does(
    connect: Any, channel: Any, name: str
) -> None:
    channel.queue_declare(name)
    channel.queue_declare(f"{name}-gone")
    channel.tx_select()
    publish(channel, name, b"1")
    publish(channel, f"{name}-gone", b"2")
    other = connect().channel()
    for queue in (name, f"{name}-gone"):
        other.queue_delete(queue)
    other.queue_declare(name)
    channel.tx_commit()
    assert drain(other, name) == [b"1"]
    other.queue_delete(name)


def test_a_commit_that_a_full_queue_refuses_a_part_of_gets_406(connect: Any, channel: Any, name: str) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.tx_select()
    publish(channel, name, b"1", b"2")
    with channel_refuses(406, "PRECONDITION_FAILED - partial tx completion"):
        channel.tx_commit()
    other = connect().channel()
    assert drain(other, name) == [b"1"]
    other.queue_delete(name)
