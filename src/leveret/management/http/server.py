"""The HTTP listeners of a node: a TCP port for all, and a socket in the data directory for the operator.

Both run in the node's own event loop. A process that may open `control.sock` (mode 0600 in a directory of mode 0700)
needs no password.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from leveret.config import Address, Config
from leveret.core.rules.descriptors import NO_LISTENER_LIMITS, ListenerKind, ListenerLimits
from leveret.management.http.app import build_app, operator_app, public_app
from leveret.management.http.console_process import console_arguments, keep_console
from leveret.management.http.http_peer import HttpDeadlines, HttpPeer
from leveret.management.http.rates_ticker import SampledRates, keep_sampling
from leveret.management.http.socket_path import CONTROL_SOCKET, short_path
from leveret.management.metrics.scrape import build_metrics_app
from leveret.management.node import ManagedNode
from leveret.management.request.other_nodes import answer_by
from leveret.management.request.single_node import cluster_of
from leveret.model.errors import LeveretError
from leveret.runtime.sockets.acceptor import Accepted, Acceptor, ProtocolEndpoint
from leveret.runtime.sockets.tls import ListenerTls

logger = logging.getLogger(__name__)

_BACKLOG: Final = 128
_STOP_TIMEOUT_S: Final = 5
_TICK_S: Final = 1
_PRIVATE_UMASK: Final = 0o177
_FOR_STREAMS: Final = "anyio._backends._asyncio"
"""The module that the first streamed answer imports, which takes 40 to 110 ms: a thread does so at the start."""


class AddressInUse(LeveretError):
    """A listener cannot bind."""


class _Server(uvicorn.Server):
    """uvicorn's server inside the node: the node handles signals, and its acceptor accepts connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        accept: Callable[[Callable[[], HttpPeer]], Acceptor],
        deadlines: HttpDeadlines,
    ) -> None:
        """`accept` makes the acceptor for a factory of connections."""
        super().__init__(config)
        self._accept = accept
        self._deadlines = deadlines
        self._acceptor: Acceptor | None = None
        self._ending = asyncio.Event()

    def end(self) -> None:
        """End the server."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Update the header `Date` once a second; uvicorn's own loop wakes ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _TICK_S)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await self.lifespan.startup()
        self.servers = []
        self._acceptor = self._accept(self._peer)
        self.started = True

    def _peer(self) -> HttpPeer:
        return HttpPeer(
            deadlines=self._deadlines,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, then end as uvicorn does, which waits for its clients for 0.1 s even if there are none."""
        if self._acceptor is not None:
            self._acceptor.close()
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the node."""
        yield


class ManagementServer:
    """Both listeners of one process; see `serve_for` for a change of the process's node."""

    def __init__(self, node: ManagedNode, config: Config) -> None:
        """Begin without listeners."""
        self.address = Address(config.management.ip, config.management.port)
        self.tls_address: Address | None = None
        self.metrics_address: Address | None = None
        self._settings = config.management
        self._metrics = config.metrics
        self._data_dir = node.data_dir
        self._app = build_app(node)
        self._answer_others(node)
        self._running: list[tuple[_Server, asyncio.Task[None]]] = []
        self._sampling: asyncio.Task[None] | None = None
        self._config = config
        self._console: asyncio.Task[None] | None = None
        self._importing: asyncio.Task[ModuleType] | None = None
        self._endpoints: dict[bool, ProtocolEndpoint] = {}
        self.detour: Callable[[str, Accepted], asyncio.BaseProtocol | None] = lambda endpoint, accepted: None
        """Makes the object that passes a connection on, which came to `http` or `https`; None to answer it here."""

    async def start(self) -> None:
        """Open both listeners.

        Raises:
            AddressInUse: the address or the socket cannot be used.
            ConfigError: a console is configured, and cannot reach the HTTP API.
        """
        if self._config.management.console:
            console_arguments(self._config, self.address.port)
        with contextlib.ExitStack() as opened:
            public = opened.enter_context(_listen(self.address))
            control = opened.enter_context(_listen_in(self._data_dir))
            metrics = self._listen_for_metrics()
            secured = self._listen_with_tls()
            opened.pop_all()
        self.address = Address(self.address.ip, public.getsockname()[1])
        self._serve(public_app(self._app), ListenerKind.HTTP, public)
        self._serve(operator_app(self._app), ListenerKind.CONTROL, control)
        if secured is not None:
            self._serve(public_app(self._app), ListenerKind.HTTP, *secured)
        if metrics is not None:
            self._serve(build_metrics_app(self._app, self._metrics), ListenerKind.METRICS, metrics)
        self._sampling = self._sample()
        self._importing = asyncio.create_task(asyncio.to_thread(import_module, _FOR_STREAMS))
        if self._config.management.console:
            beside = keep_console(self._config, self.address.port)
            self._console = asyncio.create_task(beside, name="console")
        logger.info("management_listening address=%s socket=%s", self.address, CONTROL_SOCKET)

    def endpoint(self, is_tls: bool) -> ProtocolEndpoint | None:
        """The way in to the port for all, without its socket; None if there is none."""
        return self._endpoints.get(is_tls)

    def serve_for(self, node: ManagedNode) -> None:
        """Serve another node of the same data directory from now on, after a change of the process's role.

        The listeners stay. Running requests continue with the node that they began with.
        """
        self._app.state.node = node
        self._app.state.rates = SampledRates(node)
        self._answer_others(node)
        if self._sampling is not None:
            self._sampling.cancel()
            self._sampling = self._sample()

    def _answer_others(self, node: ManagedNode) -> None:
        """Let the cluster's other nodes ask this one."""
        cluster_of(node).answer_with(answer_by(self._app))

    def _sample(self) -> asyncio.Task[None]:
        return asyncio.create_task(keep_sampling(self._app.state.rates), name="rates")

    def _listen_for_metrics(self) -> socket.socket | None:
        """The socket of the metrics' own port, if it is configured."""
        settings = self._metrics
        if settings.port is None:
            return None
        listener = _listen(Address(settings.ip, settings.port), "prometheus.tcp")
        self.metrics_address = Address(settings.ip, listener.getsockname()[1])
        logger.info("metrics_listening address=%s path=%s", self.metrics_address, settings.path)
        return listener

    def _listen_with_tls(self) -> tuple[socket.socket, ListenerTls] | None:
        """The socket of the port with TLS, if it is configured."""
        settings = self._settings
        if settings.tls_port is None:
            return None
        tls = ListenerTls(settings.tls, "management.ssl")
        listener = _listen(Address(settings.tls_ip, settings.tls_port), "management.ssl")
        self.tls_address = Address(settings.tls_ip, listener.getsockname()[1])
        logger.info("management_tls_listening address=%s", self.tls_address)
        return listener, tls

    async def stop(self) -> None:
        """Finish running requests, for a few seconds, and close both listeners."""
        if self._sampling is not None:
            self._sampling.cancel()
        if self._importing is not None:
            await self._importing
        if self._console is not None:
            self._console.cancel()
            await asyncio.gather(self._console, return_exceptions=True)
        for server, _ in self._running:
            server.end()
        for _, task in self._running:
            await task
        if self._running:
            # A disk that became read-only must not keep the rest of the node from its end.
            with contextlib.suppress(OSError):
                (self._data_dir / CONTROL_SOCKET).unlink()
        self._running.clear()

    def _serve(
        self,
        app: ASGIApp,
        kind: ListenerKind,
        listener: socket.socket,
        tls: ListenerTls | None = None,
    ) -> None:
        own = self._settings
        deadlines = HttpDeadlines(
            own.request_timeout_ms / 1000, own.body_bytes_s_min, own.idle_timeout_ms / 1000
        )
        limits = (
            ListenerLimits(own.connection_max, own.connection_max_per_address)
            if kind is ListenerKind.HTTP
            else NO_LISTENER_LIMITS
        )
        settings = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=math.ceil(deadlines.request_s),
            timeout_graceful_shutdown=_STOP_TIMEOUT_S,
        )

        def accept(peer: Callable[[], HttpPeer]) -> Acceptor:
            endpoint = ProtocolEndpoint(kind, lambda _: peer(), deadlines.request_s, tls, limits)
            is_public = kind is ListenerKind.HTTP
            if is_public:
                self._endpoints[tls is not None] = endpoint
            name = "http" if tls is None else "https"
            return Acceptor(
                listener,
                endpoint,
                detour=lambda accepted: self.detour(name, accepted) if is_public else None,
            )

        server = _Server(settings, accept, deadlines)
        task = asyncio.create_task(server.serve(), name="management")
        self._running.append((server, task))


def _listen(address: Address, setting: str = "management.tcp") -> socket.socket:
    family = socket.AF_INET6 if ":" in address.ip else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.ip, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressInUse(f"{setting}: cannot listen on {address}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _listen_in(data_dir: Path) -> socket.socket:
    """The control socket: made with its final mode; one of a killed node is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (data_dir / CONTROL_SOCKET).unlink(missing_ok=True)
        umask = os.umask(_PRIVATE_UMASK)
        try:
            with short_path(data_dir) as path:
                listener.bind(path)
        finally:
            os.umask(umask)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressInUse(f"cannot listen on {data_dir / CONTROL_SOCKET}: {error.strerror}") from error
    listener.setblocking(False)
    return listener
