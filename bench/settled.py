"""A promotion after nearly all messages were acked: its cost should depend on the unsettled messages only.

A publisher sends ten million messages to the upstream; a consumer acks the first 99 percent of them, and none of the
others. When the standby has all records, the upstream is killed and the standby is promoted. The time runs from the
command until every unacked message is in its queue, and includes Spark's start.
"""

from __future__ import annotations

from typing import Final

from bench.contenders import LEVERET, Node
from bench.load import ConsumeJob
from bench.rows import Reading, Row, Scenario, Settings, Target
from bench.standby import DOWNSTREAM, QUEUE, TRANSFER_TIMEOUT_S, VHOST, Pair, take_over
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
        reading = take_over(pair, settled=settled)
    details = {"published": float(count), "recovered": reading.details["messages"]}
    return {"promotion-settled": Reading(reading.details["whole_s"], details=details)}


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
