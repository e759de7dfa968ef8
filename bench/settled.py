"""A promotion after nearly all messages were acked: its cost should depend on the unsettled messages only.

A publisher sends ten million messages to the upstream; a consumer acks the first 99 percent of them, and none of the
others. When the standby has all records, the upstream is killed and the standby is promoted. The time runs from the
command until every unacked message is in its queue, and includes Spark's start.
"""

from __future__ import annotations

import time
from typing import Final

from bench.client import Connection, LoadError
from bench.contenders import LEVERET, Node
from bench.load import ConsumeJob
from bench.rows import Reading, Row, Scenario, Settings, Target
from bench.standby import DOWNSTREAM, QUEUE, TRANSFER_TIMEOUT_S, VHOST, Pair
from bench.workers import Worker, drained
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess

MESSAGES: Final = 10_000_000
MESSAGES_QUICK: Final = 20_000
BODY_BYTES: Final = 100
SETTLED_PERCENT: Final = 99
RECOVERED_S_MAX: Final = 60.0


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, LeveretProcess)
    count = MESSAGES_QUICK if settings.quick else MESSAGES
    settled = count * SETTLED_PERCENT // 100
    with LeveretProcess(config=DOWNSTREAM, parent_dir=settings.folder) as downstream:
        pair = Pair(node, downstream)
        pair.connect()
        pair.publish(pair.job(count=settled, body_bytes=BODY_BYTES))
        with Worker(ConsumeJob(node.amqp_port, QUEUE, vhost=VHOST)) as consumer:
            drained(node, consumer, settled)
        pair.publish(pair.job(count=count - settled, body_bytes=BODY_BYTES))
        wait_until(
            lambda: pair.transferred() >= count and pair.status()["lag_records"] == 0,
            "everything at the downstream",
            TRANSFER_TIMEOUT_S,
        )
        node.kill9()
        asked = time.monotonic()
        for at, line in pair.promote():
            if "error" in line:
                raise LoadError(f"promotion: {line.get('reason', line)}")
            ended = at
        connection = Connection(downstream.amqp_port, vhost=VHOST)
        found = connection.ready_messages(QUEUE)
        connection.close()
    if found != count - settled:
        raise LoadError(f"{count - settled} messages were left, {found} after the promotion")
    details = {"published": float(count), "recovered": float(found)}
    return {"promotion-settled": Reading(ended - asked, details=details)}


SETTLED: Final = Scenario(
    (
        Row(
            "promotion-settled",
            f"promotion after {MESSAGES:,} messages, {SETTLED_PERCENT} % of them settled",
            "s",
            False,
            Target("value", RECOVERED_S_MAX),
        ),
    ),
    _run,
    once=True,
    brokers=(LEVERET,),
)
