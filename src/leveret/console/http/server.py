"""The console's server: runs until a signal ends it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from leveret.console.http.app import build_console
from leveret.console.http.deadline import BrowserPeer
from leveret.console.settings import ConsoleSettings, check_certificate
from leveret.model.addresses import bracketed
from leveret.model.errors import LeveretError

_BACKLOG: Final = 128
_CONNECTIONS_MAX: Final = 512
_STOP_S: Final = 3


class ConsoleAddressInUse(LeveretError):
    """The console cannot listen on its address."""


def serve_console(settings: ConsoleSettings, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `on_ready` receives the URL once browsers can connect.

    Raises:
        ConfigError: the TLS files are unusable. ConsoleAddressInUse: the address is not available.
    """
    check_certificate(settings)
    listener = _listen(settings)
    port: int = listener.getsockname()[1]
    scheme = "https" if settings.has_tls else "http"
    config = uvicorn.Config(
        build_console(settings, port),
        log_config=None,
        log_level="warning",
        access_log=False,
        http=BrowserPeer,
        ws="none",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_graceful_shutdown=_STOP_S,
        ssl_certfile=settings.certfile,
        ssl_keyfile=None if settings.keyfile is None else str(settings.keyfile),
    )
    server = _Server(config, lambda: on_ready(f"{scheme}://{bracketed(settings.host)}:{port}/"))
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that reports when it is ready."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then report."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def _listen(settings: ConsoleSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConsoleAddressInUse(
            f"listen: cannot listen on {settings.host}:{settings.port}: {error.strerror}"
        ) from error
    return listener
