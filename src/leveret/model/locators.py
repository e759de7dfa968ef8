"""Strategies that choose the leader of a new queue, under RabbitMQ's names.

Arguments, policies and settings have these values. Classic queues use the older names ("master locator"), quorum queues
and streams the newer ones ("leader locator").
"""

from __future__ import annotations

from typing import Final

CLIENT_LOCAL: Final = "client-local"
MIN_MASTERS: Final = "min-masters"
RANDOM: Final = "random"
BALANCED: Final = "balanced"
LEAST_LEADERS: Final = "least-leaders"

QUEUE_MASTER_LOCATORS: Final = (CLIENT_LOCAL, MIN_MASTERS, RANDOM)
QUEUE_LEADER_LOCATORS: Final = (CLIENT_LOCAL, BALANCED, RANDOM, LEAST_LEADERS)
"""The last two are old names of `balanced`."""
