"""A console beside the node (`management.console`): a process of its own, for browsers of this machine.

It listens on loopback only, because it has no certificate of its own. The node starts it again when it ends. It ends
with the node, after any kind of end, because the node holds a pipe whose end it notices. `/` leads browsers of this
machine to it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from leveret.config import Config
from leveret.model.errors import ConfigError
from leveret.runtime.sockets.addresses import is_loopback
from leveret.runtime.sockets.backoff import delay_s

logger = logging.getLogger(__name__)

_RETRY_S: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
_STOP_S: Final = 5.0
_WELL_S: Final = 60.0
"""A console that ran for so long has started well."""
_PROGRAM: Final = "leveret.cli.server"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_NAME_CHARACTERS_MAX: Final = 64
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def console_arguments(config: Config, port: int) -> list[str]:
    """The command line of the console, for an HTTP API that listens on `port`.

    Raises:
        ConfigError: the HTTP API is not on loopback, so the console could not reach it.
    """
    settings = config.management
    ip = _WILDCARDS.get(settings.ip, settings.ip)
    if not is_loopback(ip):
        raise ConfigError(
            f"management.console: the HTTP API listens on {ip}, which is not on loopback: set management.tcp.ip to "
            "127.0.0.1 and give other machines management.ssl.port, or run `leveret console` with a console.toml"
        )
    host = f"[{ip}]" if ":" in ip else ip
    name = _NO_NAME.sub("-", config.cluster_name)[:_NAME_CHARACTERS_MAX]
    site = f"{name}=http://{host}:{port}{settings.path_prefix}"
    return ["console", "--site", site, "--listen", f"{host}:{settings.console_port}", "--end-with-stdin"]


async def keep_console(config: Config, port: int) -> None:
    """Keep a console running beside the node until this is cancelled."""
    arguments = console_arguments(config, port)
    loop, failures = asyncio.get_running_loop(), 0
    while True:
        began_s = loop.time()
        status = await _run(arguments)
        failures = 0 if loop.time() - began_s > _WELL_S else failures + 1
        wait_s = delay_s(_RETRY_S, failures - 1 if failures else 0)
        logger.warning("console_ended status=%s action=start_again wait_s=%s", status, wait_s)
        await asyncio.sleep(wait_s)


async def _run(arguments: list[str]) -> int:
    """Run one process from its start to its end; its output goes to the node's."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _PROGRAM,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    logger.info("console_started pid=%d", process.pid)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                process.kill()


async def lead_to_console(request: Request) -> Response | None:
    """The redirection to the console for a browser of this machine; None for others, which cannot reach it."""
    settings = request.app.state.node.config.management
    host = request.url.hostname or ""
    client = request.client
    if not settings.console or client is None or not is_loopback(client.host):
        return None
    if host != "localhost" and not is_loopback(host):
        return None
    shown = f"[{host}]" if ":" in host else host
    return RedirectResponse(f"http://{shown}:{settings.console_port}/", headers={"cache-control": "no-store"})


def with_console(home: Route) -> Route:
    """The route of `/`, which leads to the console if there is one."""

    async def show(request: Request) -> Response:
        answer = await lead_to_console(request)
        found: Response = answer or await home.endpoint(request)
        return found

    return Route("/", show, methods=["GET"])
