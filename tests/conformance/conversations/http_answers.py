"""What an answer of the management API says that is the same on both brokers."""

from __future__ import annotations

from typing import Any, Final

import httpx

from tests.conformance.conversations.steps import VHOST, Request
from tests.conformance.conversations.witness import Names

TOLD: Final = frozenset(
    {
        "name",
        "type",
        "durable",
        "auto_delete",
        "exclusive",
        "internal",
        "arguments",
        "source",
        "destination",
        "destination_type",
        "routing_key",
        "properties_key",
        "pattern",
        "definition",
        "priority",
        "apply-to",
        "configure",
        "write",
        "read",
        "tags",
        "value",
        "component",
        "user",
        "exchange",
        "payload",
        "payload_bytes",
        "payload_encoding",
        "redelivered",
        "properties",
        "routed",
        "total_count",
        "item_count",
        "filtered_count",
        "page",
        "page_size",
        "page_count",
        "queues",
        "exchanges",
        "bindings",
        "policies",
        "parameters",
        "items",
        "error",
        "limits",
        "permissions",
        "topic_permissions",
        "max-queues",
        "max-connections",
    }
)
"""Fields that do not depend on statistics; `http_shapes.txt` has the types of the others."""
UNTOLD: Final = frozenset(
    {
        "vhost",
        "rabbit_version",
        "rabbitmq_version",
        "product_name",
        "product_version",
        "rabbitmq_definition_format",
        "original_vhost_name",
        "original_cluster_name",
        "explanation",
        "metadata",
        "description",
        "default_queue_type",
    }
)
"""Fields of definitions that differ: docs/deviations.md."""


def answer_of(step: Request, reply: httpx.Response, names: Names) -> list[Any]:
    """The status, and what is told."""
    # For a permission on a further topic exchange RabbitMQ answers as for a change: docs/deviations.md.
    status = 204 if step.path.startswith("topic-perm") and reply.status_code == 201 else reply.status_code
    if VHOST not in step.path:
        # What other virtual hosts have is no matter of the conversation.
        return [status]
    if not reply.content or not reply.headers.get("content-type", "").startswith("application/json"):
        return [status]
    value = names.value(reply.json())
    if step.path.startswith("definitions") and reply.is_success:
        return [status, definitions(value)]
    return [status, _told(value)]


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _within(key, each) for key, each in value.items() if key in TOLD}
    if isinstance(value, list):
        return [_told(each) for each in value if not _is_unlimited(each)]
    return value


def _within(key: str, value: Any) -> Any:
    """Values of clients are told whole; the hash in the name of a binding with arguments is each broker's own."""
    if key == "properties_key":
        return str(value).partition("~")[0]
    return value if key in ("arguments", "definition", "value", "properties") else _told(value)


def _is_unlimited(value: Any) -> bool:
    """Whether this is an empty list of limits, which RabbitMQ keeps: docs/deviations.md."""
    return isinstance(value, dict) and value.get("value") in ([], {})


def definitions(value: Any) -> Any:
    """Definitions in an order of their own, without what names the product and the virtual host."""
    if isinstance(value, dict):
        return {key: definitions(each) for key, each in value.items() if key not in UNTOLD}
    if isinstance(value, list):
        kept = [each for each in value if not _is_unlimited(each)]
        return sorted(map(definitions, kept), key=str)
    # RabbitMQ writes an argument without a value as a word.
    return "undefined" if value is None else value
