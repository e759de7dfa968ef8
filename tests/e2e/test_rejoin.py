"""A node that was killed on its way back as a downstream starts again while its clients knock at the door."""

from __future__ import annotations

import json
from pathlib import Path

import pika
import pika.exceptions

from leveret.storage.state_file import StateFile
from leveret.testing.applications.applications import parameters
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess

BEFORE = 5
AT_ONCE = 20


def publish(node: LeveretProcess, count: int) -> int:
    """Publish to the queue, with confirms; how many were confirmed."""
    confirmed = 0
    try:
        with pika.BlockingConnection(parameters(node.amqp_port, "/")) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for _ in range(count):
                properties = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("", "q", b"precious", properties, mandatory=True)
                confirmed += 1
    except (pika.exceptions.AMQPError, OSError):
        pass
    return confirmed


def test_nobody_publishes_to_a_queue_that_is_about_to_be_emptied(tmp_path: Path) -> None:
    node = LeveretProcess(parent_dir=tmp_path)
    try:
        node.start()
        with pika.BlockingConnection(parameters(node.amqp_port, "/")) as connection:
            connection.channel().queue_declare("q", durable=True)
        assert publish(node, BEFORE) == BEFORE
        node.kill9()
        StateFile(node.data_dir / "rejoin.json").save({"queues": [["/", "q"]]})
        node.launch()
        confirmed: list[int] = []

        def is_done() -> bool:
            confirmed.append(publish(node, AT_ONCE))
            return "rejoined_as_downstream" in node.log_text()

        wait_until(is_done, "the node to be back as a downstream", 60)
        node.wait_ready()
        shown = json.loads(node.ctl("list_divergent_messages", "--formatter", "json").stdout)
        assert len(shown["messages"]) == BEFORE
        queues = json.loads(node.ctl("list_queues", "name", "messages", "--formatter", "json").stdout)
        assert queues == [{"name": "q", "messages": sum(confirmed)}], "nothing was confirmed before"
    finally:
        node.close()
