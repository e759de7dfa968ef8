"""The node's features: feature flags, extensions."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import done, json_reply
from leveret.model.errors import InvalidCommand

_FLAGS: Final = {
    "classic_mirrored_queue_version": "Support setting version for classic mirrored queues",
    "classic_queue_type_delivery_support": "Bug fix for classic queue deliveries using mixed versions",
    "direct_exchange_routing_v2": "v2 direct exchange routing implementation",
    "drop_unroutable_metric": "Count unroutable publishes to be dropped in stats",
    "empty_basic_get_metric": "Count AMQP `basic.get` on empty queues in stats",
    "feature_flags_v2": "Feature flags subsystem V2",
    "implicit_default_bindings": "Default bindings are now implicit, instead of being stored in the database",
    "listener_records_in_ets": "Store listener records in ETS instead of Mnesia",
    "maintenance_mode_status": "Maintenance mode status",
    "quorum_queue": "Support queues of type `quorum`",
    "stream_queue": "Support queues of type `stream`",
    "stream_single_active_consumer": "Single active consumer for streams",
    "tracking_records_in_ets": "Store tracking records in ETS instead of Mnesia",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}
"""RabbitMQ 3.13's feature flags, which tools read; nothing in Leveret depends on them."""


async def show_flags(call: Call) -> Response:
    """All feature flags; every one is enabled."""
    return await call.plain_list([_flag(name) for name in _FLAGS], "name")


async def enable_flag(call: Call) -> Response:
    """Enable a feature flag, which is already enabled."""
    name = call.path("name")
    if name not in _FLAGS:
        raise InvalidCommand(f"unsupported: there is no feature flag '{name}'")
    return done()


async def show_deprecated(call: Call) -> Response:
    """Deprecated features: none."""
    return json_reply([])


async def show_extensions(call: Call) -> Response:
    """The management page's further scripts, by their extensions."""
    return json_reply([{"javascript": scripts} for scripts in call.request.app.state.page_scripts])


def _flag(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "desc": _FLAGS[name],
        "doc_url": "",
        "state": "enabled",
        "stability": "stable",
        "callbacks": [],
        "provided_by": "rabbit",
    }


_ADMIN: Final = Requirement.ADMINISTRATOR
ROUTES = [
    resource("/api/feature-flags", GET=show_flags),
    resource("/api/feature-flags/{name}/enable", need=_ADMIN, defines=False, PUT=enable_flag),
    resource("/api/deprecated-features", GET=show_deprecated),
    resource("/api/deprecated-features/used", GET=show_deprecated),
    resource("/api/extensions", GET=show_extensions),
]
