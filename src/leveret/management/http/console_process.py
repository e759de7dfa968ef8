"""A console beside the node (`management.console`): a process of its own.

It listens on loopback, or, with the certificate of the HTTP API, on another address. The node starts it again when it
ends. It ends with the node, after any kind of end, because the node holds a pipe whose end it notices. `/` leads
browsers that can reach the console to it.
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
from leveret.config.sections.management import Management
from leveret.model.addresses import bracketed, is_address, is_loopback
from leveret.model.errors import ConfigError
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
        ConfigError: the console could not reach the HTTP API, or would serve other machines without TLS.
    """
    settings = config.management
    ip = _WILDCARDS.get(settings.ip, settings.ip)
    if not is_loopback(ip):
        raise ConfigError(
            f"management.console: the HTTP API listens on {ip}, which is not on loopback: set management.tcp.ip to "
            "127.0.0.1 and give other machines management.ssl.port, or run `leveret console` with a console.toml"
        )
    name = _NO_NAME.sub("-", config.cluster_name)[:_NAME_CHARACTERS_MAX]
    site = f"{name}=http://{bracketed(ip)}:{port}{settings.path_prefix}"
    beyond = [] if is_loopback(settings.console_ip) else _beyond_loopback(settings)
    # On loopback the console has the address by which browsers of this machine reach the HTTP API.
    listen = f"{bracketed(settings.console_ip if beyond else ip)}:{settings.console_port}"
    return ["console", "--site", site, "--listen", listen, *beyond, "--end-with-stdin"]


def _beyond_loopback(settings: Management) -> list[str]:
    """Options of a console for other machines: its certificate, and its names.

    Raises:
        ConfigError: there is no certificate, or one that the console cannot use as the HTTP API does.
    """
    tls, place = settings.tls, f"management.console.ip: {settings.console_ip} is reached from other machines"
    if tls.certfile is None or tls.keyfile is None:
        raise ConfigError(
            f"{place}, and passwords would travel in clear text: set management.ssl.certfile and "
            "management.ssl.keyfile, or listen on 127.0.0.1"
        )
    if tls.password is not None:
        raise ConfigError(
            f"{place}, and the console reads no encrypted key (management.ssl.password): give it a key without a "
            "password, or run `leveret console` with a console.toml"
        )
    if tls.verify == "verify_peer" and tls.fail_if_no_peer_cert:
        raise ConfigError(
            f"{place}, and the console asks browsers for no certificate, as management.ssl.fail_if_no_peer_cert "
            "demands: listen on 127.0.0.1"
        )
    names = [word for name in settings.console_names for word in ("--name", name)]
    return ["--certfile", str(tls.certfile), "--keyfile", str(tls.keyfile), *names]


async def keep_console(config: Config, port: int) -> None:
    """Keep a console running beside the node until this is cancelled."""
    arguments = console_arguments(config, port)
    loop, failures = asyncio.get_running_loop(), 0
    while True:
        began_s = loop.time()
        try:
            status = str(await _run(arguments))
        except OSError as error:  # no descriptor or no memory for a process, for now
            status = str(error)
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


def console_url(settings: Management, host: str, *, is_local: bool) -> str | None:
    """Where a browser that came to `host` finds the console; None if it cannot reach it there.

    Args:
        settings: of the HTTP API.
        host: the name or the address in the browser's request.
        is_local: whether the browser is on this machine.
    """
    ip, port = settings.console_ip, settings.console_port
    if is_loopback(ip):
        is_reached = is_local and (host == "localhost" or is_loopback(host))
        return f"http://{bracketed(host)}:{port}/" if is_reached else None
    if host.lower() in {name.lower() for name in settings.console_names}:
        return f"https://{host}:{port}/"
    if is_local and host == "localhost":
        host = _WILDCARDS.get(ip, ip)
    is_reached = host == ip or (ip in _WILDCARDS and is_address(host))
    return f"https://{bracketed(host)}:{port}/" if is_reached else None


async def redirect_to_console(request: Request) -> Response | None:
    """The redirection to the console; None for a browser that cannot reach it."""
    settings = request.app.state.node.config.management
    if not settings.console or request.client is None:
        return None
    host = request.url.hostname or ""
    url = console_url(settings, host, is_local=is_loopback(request.client.host))
    return None if url is None else RedirectResponse(url, headers={"cache-control": "no-store"})


def with_console(home: Route) -> Route:
    """The route of `/`, which leads to the console if there is one."""

    async def show(request: Request) -> Response:
        answer = await redirect_to_console(request)
        found: Response = answer or await home.endpoint(request)
        return found

    return Route("/", show, methods=["GET"])
