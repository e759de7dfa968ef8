"""Cases of `many_node_ha_SUITE`: leaders are killed one after the other."""

from __future__ import annotations

from typing import Final

from leveret.testing.mirror_scenarios.clients import Producer, ThreadedConsumer
from leveret.testing.mirror_scenarios.stage import Case, Stage

MESSAGES: Final = 6000
STEP: Final = 1000
QUEUE: Final = "test"


def kill_intermediate(stage: Stage) -> None:
    """Four of six nodes are killed, the leader's first, while a publisher and a consumer work at the other two."""
    a, b, c, d, e, f = stage.nodes
    stage.mirror(".*", "all")
    stage.declare(a, QUEUE)
    with ThreadedConsumer(stage.cluster, e, QUEUE, MESSAGES) as consumer:
        producer = Producer(f, QUEUE, MESSAGES, stage.folder / "books")
        for number, node in enumerate((a, b, c, d), 1):
            producer.wait_answered(number * STEP)
            node.kill9()
            stage.say(f"kill {stage.letter(node)}")
        producer.end()
        consumer.wait_seen(MESSAGES)
    stage.say(f"{producer.confirmed} confirmed, {producer.refused} refused")
    stage.say(f"E consumed {consumer.seen} of {MESSAGES}, in their order")
    stage.declares(f, QUEUE, 0)


CASES: Final = (Case(kill_intermediate, nodes=6),)
