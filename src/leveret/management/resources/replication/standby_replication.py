"""Message replication: status and switches; for promotions see `standby_recovery`.

`/api/tanzu/osr/standby/status` and `/api/replication/status` are the commercial product's paths, `leveretctl` uses
the rest of `/api/replication/standby/...`.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from leveret.core.broker.broker import STANDBY_TAG
from leveret.core.schema.delta import STANDBY_UPSTREAM
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.other_nodes import documents_of_others
from leveret.management.request.replies import done, json_reply
from leveret.management.resources.replication.schema_replication import SchemaModeBody
from leveret.model.definitions import GlobalParameter, Put
from leveret.runtime.process.work_slices import in_slices
from leveret.runtime.schema_sync.endpoints import decode_upstream
from leveret.runtime.standby.transfer import parse_upstream


async def show_status(call: Call) -> Response:
    """One row a vhost, in the form of the commercial product."""
    return json_reply(await standby_rows(call))


async def show_details(call: Call) -> Response:
    """The whole status of the site's standby, or, for an upstream, of its collected data."""
    status = await call.node.standby.details()
    is_downstream = status["operating_mode"] == "downstream"
    collected = [] if is_downstream else with_node(call, call.node.upstream.collected())
    downstreams = [] if is_downstream else with_node(call, call.node.upstream.downstreams())
    if not is_downstream:
        # Each node of a cluster collects what it leads.
        for other in await documents_of_others(call):
            collected += other["collected"]
            downstreams += other["downstreams"]
    untagged = call.node.upstream.untagged()
    settings = call.node.config.standby
    rest = {
        "untagged": untagged,
        "operations": call.node.event_history.running(),
        "retention_bytes_max": settings.retention_bytes_max,
        "retention_ms_max": settings.retention_ms_max,
    }
    return json_reply({**status, "collected": collected, "downstreams": downstreams, **rest})


async def set_mode(call: Call) -> Response:
    """Change sides."""
    await call.node.standby.set_mode((await call.body(SchemaModeBody)).operating_mode)
    return done()


async def set_endpoints(call: Call) -> Response:
    """Name the upstream; the body is the JSON of RabbitMQ's command."""
    await set_upstream(call, decode_upstream(await call.octets()))
    return done()


async def connect(call: Call) -> Response:
    """Start or resume transferring messages from the upstream."""
    await call.node.standby.connect()
    return done()


async def disconnect(call: Call) -> Response:
    """Stop transferring messages from the upstream."""
    await call.node.standby.disconnect()
    return done()


async def delete_data(call: Call) -> Response:
    """Remove all transferred data."""
    await call.node.standby.delete_all_data()
    return done()


async def show_upstream_metrics(call: Call) -> Response:
    """The collected queues, a row each."""
    rows = [row async for row in in_slices(call.node.upstream.metrics())]
    for others in await documents_of_others(call):
        rows += others
    return json_reply(rows)


def with_node(call: Call, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These rows, in a cluster with the node that they are about."""
    if not call.cluster.is_member:
        return rows
    return [{"node": call.cluster.name, **row} for row in rows]


async def set_upstream(call: Call, value: object) -> None:
    """Check and store the upstream's endpoints and credentials; the link follows them.

    Raises:
        InvalidCommand: a field, which the text names, is missing or malformed.
    """
    parse_upstream(value)
    await call.apply(Put(GlobalParameter(name=STANDBY_UPSTREAM, value=value)))


async def standby_rows(call: Call) -> list[dict[str, Any]]:
    """A row a vhost; an upstream has one for each vhost with an outgoing log."""
    status = call.node.standby.status()
    if status["operating_mode"] == "downstream" and call.cluster.is_member:
        status = await call.node.standby.details()
    common = {key: status[key] for key in ("operating_mode", "upstream_endpoints", "upstream_username")}
    if status["operating_mode"] == "downstream":
        return [{**row, **common} for row in status["vhosts"]]
    tagged = (
        name
        for (name,), vhost in call.definitions["vhosts"].items()
        if STANDBY_TAG in getattr(vhost, "tags", ())
    )
    return [
        {"virtual_host": name, "operating_mode": status["operating_mode"], "state": "running"}
        for name in tagged
    ]


_ADMIN: Final = Requirement.ADMINISTRATOR
_STANDBY: Final = "/api/replication/standby"
ROUTES = [
    resource("/api/tanzu/osr/standby/status", need=Requirement.MONITORING, GET=show_status),
    resource("/api/replication/status", need=Requirement.MONITORING, GET=show_status),
    resource(f"{_STANDBY}/details", need=Requirement.MONITORING, GET=show_details),
    resource(f"{_STANDBY}/mode", need=_ADMIN, defines=False, PUT=set_mode),
    resource(f"{_STANDBY}/upstream", need=_ADMIN, PUT=set_endpoints),
    resource(f"{_STANDBY}/connect", need=_ADMIN, defines=False, POST=connect),
    resource(f"{_STANDBY}/disconnect", need=_ADMIN, defines=False, POST=disconnect),
    resource(f"{_STANDBY}/data", need=_ADMIN, defines=False, DELETE=delete_data),
    resource(f"{_STANDBY}/upstream-metrics", need=Requirement.MONITORING, GET=show_upstream_metrics),
]
