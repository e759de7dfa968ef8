"""A stream at an upstream that dies, over encrypted links, and what its readers find at the standby."""

from __future__ import annotations

import json
from pathlib import Path

import pika
import pytest

from leveret.testing.applications import parameters
from leveret.testing.certificates import CertificateAuthority
from leveret.testing.ports import LOOPBACK, free_port, wait_until
from leveret.testing.standby_pair import PROMOTE_TIMEOUT_S, StandbyPair

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]

VHOST = "orders"
COUNT = 500
PATIENCE_S = 60.0
Message = tuple[bytes, int, str]


def published(number: int) -> Message:
    """Body, header `n` and message id."""
    return b"entry %d" % number, number, f"m{number}"


def publish(port: int) -> None:
    with pika.BlockingConnection(parameters(port, VHOST)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("ledger", durable=True, arguments={"x-queue-type": "stream"})
        for body, number, message_id in map(published, range(COUNT)):
            properties = pika.BasicProperties(delivery_mode=2, headers={"n": number}, message_id=message_id)
            channel.basic_publish("", "ledger", body, properties)


def read(port: int) -> list[Message]:
    found: list[Message] = []
    with pika.BlockingConnection(parameters(port, VHOST)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=COUNT)
        consumed = channel.consume(
            "ledger", arguments={"x-stream-offset": "first"}, inactivity_timeout=PATIENCE_S
        )
        for method, properties, body in consumed:
            if method is None:
                break
            found.append((body, properties.headers["n"], properties.message_id))
            channel.basic_ack(method.delivery_tag)
            if len(found) == COUNT:
                break
    return found


def test_a_stream_is_at_the_standby_as_it_was(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate = authority.issue("upstream", names=f"IP:{LOOPBACK}")
    options = "standby.replication.downstream.ssl_options"
    verifying = {f"{options}.verify": "verify_peer", f"{options}.cacertfile": str(authority.cacertfile)}
    with StandbyPair(VHOST, tmp_path, verifying) as pair:
        pair.upstream.config |= certificate.settings() | {
            "stream.listeners.ssl.1": f"{LOOPBACK}:{pair.upstream.stream_port}",
            "stream.listeners.tcp.1": f"{LOOPBACK}:{free_port()}",
        }
        pair.start()
        pair.replicate("osr", "^.*")
        publish(pair.upstream.amqp_port)
        pair.follow()
        pair.wait_queues(["ledger"])
        wait_until(lambda: pair.transferred().get("ledger") == COUNT, "the stream at the standby", PATIENCE_S)
        shown = pair.upstream.ctl("list_standby_replication_downstreams", "--formatter", "json").stdout
        [row] = json.loads(shown)
        assert (row["virtual_host"], row["downstream"], row["missing_records"]) == (VHOST, "eu.2", 0)
        pair.upstream.kill9()
        promoted = pair.downstream.ctl(
            "promote_warm_standby", "--formatter", "json", timeout_s=PROMOTE_TIMEOUT_S
        )
        [summary] = json.loads(promoted.stdout)
        assert summary["message_count"] == COUNT
        assert read(pair.downstream.amqp_port) == [published(number) for number in range(COUNT)]
