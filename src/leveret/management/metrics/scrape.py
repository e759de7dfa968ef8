"""The metrics for Prometheus, with RabbitMQ's paths and names, so that its dashboards work.

    /metrics                    sums, and the node
    /metrics/per-object         a row for each queue, channel and connection, and the node
    /metrics/detailed           the families asked for, `?family=queue_coarse_metrics&vhost=v`

They are collected at the request, from the node's own state; so they cost nothing in the hot path. An answer is
written in pieces, between which the node continues its work. The HTTP API has these paths, and so has the metrics'
own port (`prometheus.tcp.port`); like RabbitMQ's, neither asks for a password.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from http import HTTPStatus
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from leveret.config.sections.metrics import Metrics as Settings
from leveret.management.metrics.cluster import ClusterMetrics
from leveret.management.metrics.followers import FollowerMetrics
from leveret.management.metrics.leveret_metrics import LeveretMetrics
from leveret.management.metrics.node import NodeMetrics
from leveret.management.metrics.objects import ObjectFamilies, Vhosts
from leveret.management.metrics.text import CONTENT_TYPE, Family, render, summed
from leveret.model.errors import LeveretError
from leveret.runtime.process.work_slices import in_slices

logger = logging.getLogger(__name__)

_PREFIX: Final = "rabbitmq_"
_DETAILED: Final = "rabbitmq_detailed_"
_CLUSTER: Final = "rabbitmq_cluster_"
_OWN: Final = "leveret_"
_SEND_AT_ONCE: Final = 64 * 1024


class Scrape:
    """One answer, in pieces."""

    def __init__(self, request: Request) -> None:
        """Read the request's node."""
        state = request.app.state
        self._objects = ObjectFamilies(state.node, state.rates)
        self._node = NodeMetrics(state.node)
        self._own = LeveretMetrics(state.node)
        self._followers = FollowerMetrics(state.node)
        self._cluster = ClusterMetrics(state.node)

    def whole(self, *, per_object: bool) -> Iterator[str]:
        """All families; with a row for each object, or sums."""
        yield from _families(_PREFIX, self._node.families())
        for family in self._objects.families():
            yield from _family(_PREFIX, family, per_object=per_object)
        node = self._node
        yield from _family("", node.start(), per_object=True)
        yield from _families(_PREFIX, (node.alarms(), node.totals(), *node.identity(), *node.globals()))
        yield from _families(_OWN, (*self._own.families(), *self._followers.families()))
        yield from _families(_OWN, self._cluster.families())
        for family in self._cluster.mirror_families():
            yield from _family(_OWN, family, per_object=per_object)

    def detailed(self, names: frozenset[str], vhosts: Vhosts) -> Iterator[str]:
        """The named families, of some virtual hosts or all."""
        objects = self._objects
        ordinary = (*self._node.families(), *objects.families())
        yield from _families(
            _OWN, [each for each in self._cluster.mirror_families() if each.name in names], vhosts
        )
        if "queue_metrics" not in names:
            ordinary += objects.detailed_families()
        for prefix, families in ((_DETAILED, ordinary), (_CLUSTER, objects.cluster_families())):
            chosen = [family for family in families if family.name in names]
            yield from _families(prefix, chosen, vhosts)
        yield from _families(_PREFIX, self._node.identity())


def _families(prefix: str, families: Iterable[Family], vhosts: Vhosts = None) -> Iterator[str]:
    for family in families:
        yield from _family(prefix, family, per_object=True, vhosts=vhosts)


def _family(prefix: str, family: Family, *, per_object: bool, vhosts: Vhosts = None) -> Iterator[str]:
    try:
        rows = family.rows(vhosts)
        if per_object and not family.is_summed:
            yield from render(prefix, family.metrics, rows)
        else:
            yield from summed(prefix, family.metrics, rows, by_labels=family.is_summed)
    except (OSError, LeveretError) as error:
        # A disk, or a system, that does not tell one figure is no reason to leave out all others.
        logger.warning("metrics_left_out family=%s error=%s", family.name, error)


async def show(request: Request) -> Response:
    """Sums, and the node."""
    return _reply(Scrape(request).whole(per_object=False))


async def show_per_object(request: Request) -> Response:
    """A row for each object, and the node."""
    return _reply(Scrape(request).whole(per_object=True))


async def show_detailed(request: Request) -> Response:
    """The families asked for by name; missing virtual hosts are ignored, as in RabbitMQ."""
    query = request.query_params
    vhosts = frozenset(query.getlist("vhost")) if "vhost" in query else None
    return _reply(Scrape(request).detailed(frozenset(query.getlist("family")), vhosts))


async def _unknown(request: Request) -> Response:
    return PlainTextResponse("Unknown Registry", HTTPStatus.NOT_FOUND)


def _reply(pieces: Iterator[str]) -> Response:
    return StreamingResponse(_between_others(pieces), media_type=CONTENT_TYPE)


async def _between_others(pieces: Iterator[str]) -> AsyncIterator[str]:
    waiting: list[str] = []
    size = 0
    async for piece in in_slices(pieces):
        waiting.append(piece)
        size += len(piece)
        if size > _SEND_AT_ONCE:
            yield "".join(waiting)
            waiting, size = [], 0
    yield "".join(waiting)


def _routes(path: str, *, per_object: bool) -> list[Route]:
    return [
        Route(path, show_per_object if per_object else show),
        Route(f"{path}/per-object", show_per_object),
        Route(f"{path}/detailed", show_detailed),
        Route(f"{path}/{{registry}}", _unknown),
    ]


ROUTES: Final = _routes("/metrics", per_object=False)


def build_metrics_app(app: Starlette, settings: Settings) -> Starlette:
    """The application of the metrics' own port, for the node of `app`."""
    own = Starlette(routes=_routes(settings.path, per_object=settings.per_object))
    # The same state object, because its node is another one after a promotion.
    own.state = app.state
    return own
