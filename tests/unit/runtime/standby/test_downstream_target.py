"""What a pipeline process is told of another broker that is recovered into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from leveret.core.broker.broker import Broker
from leveret.model.definitions import Put, Queue, Vhost
from leveret.pipeline.jobs.job import AmqpTarget
from leveret.runtime.standby.recovery import Recoveries, RecoveryTarget


async def no_losses() -> list[dict[str, Any]]:
    return []


def test_queues_are_to_be_made_as_this_node_has_them() -> None:
    broker = Broker(lambda *where: [])
    arguments = {"x-max-priority": 5}
    for definition in (
        Vhost(name="shop"),
        Queue(name="goes", vhost="shop", auto_delete=True, arguments=arguments),
        Queue(name="stays", vhost="shop"),
        Queue(name="transient", vhost="shop", durable=False, auto_delete=True),
    ):
        broker.apply(Put(definition))
    recoveries = Recoveries(cast(Any, SimpleNamespace(broker=broker)), cast(Any, None), no_losses, list)
    document = recoveries._to(RecoveryTarget(host="h", port=5672, username="u", password="p"))
    target = msgspec.convert(document, AmqpTarget)
    assert target.queues == {"shop": {"goes": arguments, "stays": {}}}
    assert [name for name in target.queues["shop"] if target.is_auto_delete("shop", name)] == ["goes"]
