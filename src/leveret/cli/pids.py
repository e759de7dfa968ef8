"""The ids in RabbitMQ's columns of process ids: one word, unique on the node, accepted by commands."""

from __future__ import annotations


def pid(node: str, name: str) -> str:
    """The id of a connection, a channel (`A -> B (1)`) or a queue, by its node and name; without spaces."""
    word = name.replace(" -> ", "-").replace(" (", ".").removesuffix(")")
    return f"<{node}.{'_'.join(word.split())}>"
