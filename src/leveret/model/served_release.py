"""The release of RabbitMQ that a node is taken for by clients, tools and dashboards, which decide by its number."""

from __future__ import annotations

from typing import Final

RABBITMQ_VERSION: Final = "3.13.7"
"""Of the HTTP API, the stream protocol and AMQP. From 4.0 on clients do without qos of whole channels."""
