"""The HTTP application: every resource of the API, and the metrics."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from leveret.management.http.console_process import with_console
from leveret.management.http.page_files import OWN_SCRIPT, extension_scripts, page_routes
from leveret.management.http.rates_ticker import SampledRates
from leveret.management.metrics import scrape
from leveret.management.node import ManagedNode
from leveret.management.request.auth import OPERATOR_SCOPE
from leveret.management.request.call import internal_error, not_found
from leveret.management.request.large_answers import LargeAnswers
from leveret.management.resources import (
    bindings,
    channels,
    connections,
    consumers,
    definitions,
    exchanges,
    global_parameters,
    landing_page,
    messages,
    parameters,
    policies,
    queue_restart,
    queues,
    stream_replicas,
    streams,
    vhosts,
)
from leveret.management.resources.access import limits, logins, permissions, topic_permissions, users, whoami
from leveret.management.resources.nodes import cluster, features, health, nodes, operations, overview, plots
from leveret.management.resources.replication import (
    divergent,
    events,
    node_replication,
    schema_replication,
    standby_archive,
    standby_logs,
    standby_recovery,
    standby_replication,
)

RESOURCES: Final = (
    overview,
    whoami,
    logins,
    nodes,
    vhosts,
    users,
    permissions,
    topic_permissions,
    exchanges,
    queues,
    queue_restart,
    stream_replicas,
    messages,
    bindings,
    policies,
    parameters,
    global_parameters,
    limits,
    connections,
    channels,
    consumers,
    streams,
    definitions,
    health,
    features,
    operations,
    schema_replication,
    standby_replication,
    standby_recovery,
    standby_archive,
    standby_logs,
    events,
    plots,
    divergent,
    node_replication,
    cluster,
    scrape,
)
_NOWHERE: Final = "/nowhere"

_METHODS: Final = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")
_HEADERS: Final = ("authorization", "content-type", "x-reason")


class _ListenerApp:
    """Passes requests to the application, marked with their listener.

    Names in a path may hold `/` as `%2F`, so routes match the path as it was sent.
    """

    def __init__(self, app: ASGIApp, *, is_operator: bool, prefix: str = "") -> None:
        """`prefix` is the begin of all paths at this listener; the application does not see it."""
        self._app = app
        self._is_operator = is_operator
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] == "http":
            scope = {**scope, OPERATOR_SCOPE: self._is_operator}
            path = scope["raw_path"].decode("latin-1")
            # A path without the prefix matches no route.
            path = path.removeprefix(self._prefix) if path.startswith(self._prefix) else _NOWHERE
            # As in RabbitMQ, one slash at the end is ignored.
            scope["path"] = path.removesuffix("/") or "/"
        await self._app(scope, receive, send)


def build_app(node: ManagedNode) -> Starlette:
    """The application over a node; reach it through `public_app` or `operator_app`.

    Raises:
        NoPageFiles: the configured page is missing.
    """
    settings = node.config.management
    routes: list[BaseRoute] = [route for resource in RESOURCES for route in resource.ROUTES]
    scripts: list[str | list[str]] = [OWN_SCRIPT]
    if settings.ui_path is None:
        routes += landing_page.ROUTES
    else:
        routes += page_routes(settings.ui_path, settings.path_prefix)
        scripts = extension_scripts(settings.ui_path)
    if settings.console:
        routes = [
            with_console(each) if getattr(each, "path", "") == "/" and isinstance(each, Route) else each
            for each in routes
        ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPStatus.NOT_FOUND: not_found, Exception: internal_error},
        middleware=[Middleware(LargeAnswers)],
    )
    app.router.redirect_slashes = False
    app.state.node = node
    app.state.rates = SampledRates(node)
    app.state.imports = asyncio.Lock()
    app.state.page_scripts = scripts
    return app


def public_app(app: Starlette) -> ASGIApp:
    """The application for all clients, which have to log in."""
    settings = app.state.node.config.management
    listener = _ListenerApp(app, is_operator=False, prefix=settings.path_prefix)
    if not settings.allowed_origins:
        return listener
    return CORSMiddleware(
        listener,
        allow_origins=settings.allowed_origins,
        allow_methods=_METHODS,
        allow_headers=_HEADERS,
        allow_credentials=True,
        max_age=settings.cors_max_age_s,
    )


def operator_app(app: Starlette) -> ASGIApp:
    """The application for the node's own socket only: a process that may open it is the operator."""
    return _ListenerApp(app, is_operator=True)
