"""The HTTP application: every resource of the API, and the metrics."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from leveret.management import metrics
from leveret.management.auth import OPERATOR_SCOPE
from leveret.management.call import internal_error, not_found
from leveret.management.node import ManagedNode
from leveret.management.rates_ticker import rates_of
from leveret.management.resources import (
    bindings,
    channels,
    connections,
    consumers,
    definitions,
    exchanges,
    global_parameters,
    health,
    nodes,
    operations,
    overview,
    parameters,
    permissions,
    policies,
    queues,
    schema_replication,
    standby_replication,
    topic_permissions,
    users,
    vhosts,
    whoami,
)

RESOURCES: Final = (
    overview,
    whoami,
    nodes,
    vhosts,
    users,
    permissions,
    topic_permissions,
    exchanges,
    queues,
    bindings,
    policies,
    parameters,
    global_parameters,
    connections,
    channels,
    consumers,
    definitions,
    health,
    operations,
    schema_replication,
    standby_replication,
    metrics,
)


class _Door:
    """Hands requests to the application, marked by the door they came through.

    Names in a path may hold `/` as `%2F`, so routes are found on the path as it was sent.
    """

    def __init__(self, app: ASGIApp, *, is_operator: bool) -> None:
        self._app = app
        self._is_operator = is_operator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] == "http":
            scope = {**scope, OPERATOR_SCOPE: self._is_operator}
            scope["path"] = scope["raw_path"].decode("latin-1")
        await self._app(scope, receive, send)


def build_app(node: ManagedNode) -> Starlette:
    """The application over a node; reach it through `public_door` or `operator_door`."""
    routes: list[BaseRoute] = [route for resource in RESOURCES for route in resource.ROUTES]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPStatus.NOT_FOUND: not_found, Exception: internal_error},
    )
    app.router.redirect_slashes = False
    app.state.node = node
    app.state.rates = rates_of(node)
    return app


def public_door(app: Starlette) -> ASGIApp:
    """For whoever connects: they must say who they are."""
    return _Door(app, is_operator=False)


def operator_door(app: Starlette) -> ASGIApp:
    """For the node's own socket only: whoever may open it is the operator."""
    return _Door(app, is_operator=True)
