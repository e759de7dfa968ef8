"""`leveret`: runs a node, or the console.

    leveret serve --data-dir D [--config F]
    leveret console --site NAME=URL

The node prints `leveret ready ...`, and sends READY=1 to systemd, once its listeners are open. It logs to standard
error or a file. It ends in order on SIGTERM or SIGINT, and at once on a second one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

import leveret
from leveret.cli import exits
from leveret.cli.console import console
from leveret.cli.data_dir import DataDirBusy, DataDirError, claimed
from leveret.cli.logs import Logs
from leveret.cli.program import run
from leveret.cli.program_aliases import SERVER_PROGRAMS, option_without_value, program_of, server_arguments
from leveret.cli.service import ServiceManager, pid_file
from leveret.config import Address, Config, build, config_files, gather, render, unknown_variables
from leveret.config.syntax import SettingText
from leveret.model.errors import ConfigError, LeveretError, StorageError
from leveret.storage.disk import free_disk_bytes
from leveret.storage.reserve import Reserve
from leveret.storage.secret_file import SecretError

if TYPE_CHECKING:
    from leveret.management.http.server import ManagementServer
    from leveret.runtime.node.node import Node
    from leveret.runtime.roles.roles import Roles

logger = logging.getLogger("leveret.cli.server")

OWN_VARIABLES: Final = frozenset({"LEVERET_DATA_DIR", "LEVERET_CONFIG_FILE", "LEVERET_URL"})

_BIND: Final = ("--replication-bind", "replication.bind")
_PORT: Final = ("--replication-port", "replication.port")
_FOLLOW: Final = ("--follow", "replication.follow")

_MISSING: Final = {
    _BIND[0]: "the address is missing: name the IP address where followers connect, such as 127.0.0.1",
    _PORT[0]: "the port is missing: name the TCP port where followers connect, such as 5679",
    _FOLLOW[0]: "the leader is missing: name it as tcp://HOST:PORT or tls://HOST:PORT",
}

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Leveret: a message broker for RabbitMQ's clients that keeps data on more than one machine.",
    epilog="`leveretctl` operates a running node.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leveret {leveret.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all commands."""


app.command()(console)


@app.command()
def serve(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="LEVERET_DATA_DIR", help="Data directory of the node; made if missing, mode 0700."
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="LEVERET_CONFIG_FILE",
            metavar="<path>",
            help="Settings, in the form of rabbitmq.conf: a file, or a directory whose *.conf files are read in the "
            "order of their names. Of several, later ones take precedence. A file *.ini is read as LavinMQ's.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting that takes precedence over files and environment."
        ),
    ] = None,
    replication_bind: Annotated[
        str | None,
        typer.Option(metavar="ADDR", help="IP address of the listener for followers; like replication.bind."),
    ] = None,
    replication_port: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="TCP port of the listener for followers, 5679 by default; like replication.port.",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="The leader to follow, as tcp://HOST:PORT or tls://HOST:PORT; like replication.follow. "
            "These three take precedence over --set.",
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print all settings with their sources, and start nothing."),
    ] = False,
) -> int:
    """Run a node until SIGTERM or SIGINT. SIGHUP reopens its log file."""
    flags = _flags({_BIND: replication_bind, _PORT: replication_port, _FOLLOW: follow})
    given = gather(*(config or ()), environ=os.environ, overrides=_pairs(overrides or ()), flags=flags)
    settings = build(given, config_files(*(config or ())))
    unknown = unknown_variables(os.environ, OWN_VARIABLES)
    if print_config:
        typer.echo(render(given), nl=False)
        for name in unknown:
            typer.echo(f"leveret: {name} is no setting, and is ignored", err=True)
        return exits.OK
    if data_dir is None:
        raise typer.BadParameter("name one, or set LEVERET_DATA_DIR", param_hint="--data-dir")
    with claimed(data_dir.absolute()) as claim, pid_file(settings.process.pid_file):
        # Before anything is written, also the log file.
        reserve = Reserve(claim, settings.storage.reserve_bytes)
        gave_up = reserve.give_up(free_disk_bytes(claim))
        logs = Logs(settings.log, claim)
        if gave_up:
            logger.warning("disk_reserve_given_up size_bytes=%d reason=start", reserve.size_bytes)
        for name in unknown:
            logger.warning("unknown_variable name=%s action=ignored", name)
        return _run_node(settings, claim, logs)


def _pairs(overrides: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in overrides]
    for key, equals, _ in pairs:
        if not equals:
            raise typer.BadParameter(f"'{key}' is not of the form KEY=VALUE", param_hint="--set")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _flags(values: Mapping[tuple[str, str], str | None]) -> dict[str, SettingText]:
    return {key: SettingText(text, flag) for (flag, key), text in values.items() if text is not None}


def _run_node(config: Config, data_dir: Path, logs: Logs) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, data_dir, logs))


async def _serve(config: Config, data_dir: Path, logs: Logs) -> int:
    """Start, wait for a signal or a failed disk, stop; return the exit status."""
    from leveret.management.http.server import ManagementServer
    from leveret.runtime.process.allocator import freeze_objects
    from leveret.runtime.process.huge_pages import collapse_pages
    from leveret.runtime.roles.operations import ReplicationCommands
    from leveret.runtime.roles.roles import Roles
    from leveret.runtime.sockets.connection_budget import process_sockets

    # The check comes before the first use of descriptors.
    process_sockets()
    stop = _on_signals(config, logs)
    service = ServiceManager(os.environ)
    service.status("recovering queues")
    logger.info("starting version=%s data_dir=%s", leveret.__version__, data_dir)
    roles = Roles(config, data_dir, ReplicationCommands)
    # All modules are loaded: a follower that is promoted need not have them visited, 40 ms before its first client.
    freeze_objects()
    collapse_pages()
    management: ManagementServer | None = None
    try:
        if await _done_before(stop, roles.start()):
            management = ManagementServer(roles.node, config)
            roles.on_node = management.serve_for
            roles.http_endpoint, management.detour = management.endpoint, roles.proxied
            await management.start()
            line = _ready_line(roles, management)
            print(line, flush=True)
            logger.info("ready role=%s queues=%d", roles.role, len(roles.node.broker.queues))
            service.ready(line.removeprefix("leveret "))
            await _first(stop, roles.failed)
        service.stopping()
        logger.info("stopping reason=%s", _why_stopping(roles))
    finally:
        if management is not None:
            await management.stop()
        await roles.stop()
    logger.info("stopped")
    if roles.failure is not None:
        raise roles.failure
    return exits.INPUT_OUTPUT if roles.failed.is_set() else exits.OK


def _why_stopping(roles: Roles) -> str:
    if not roles.failed.is_set():
        return "signal"
    match roles.failure:
        case SecretError():
            return "cannot_follow"
        case None | StorageError():
            return "disk_failed"
    return "cannot_lead"


def _on_signals(config: Config, logs: Logs) -> asyncio.Event:
    """Return an event that a first SIGTERM or SIGINT sets; a second one ends the process."""
    stop = asyncio.Event()

    def end() -> None:
        if not stop.is_set():
            stop.set()
            return
        logger.warning("stop_forced reason=second_signal")
        if config.process.pid_file is not None:
            with contextlib.suppress(OSError):
                config.process.pid_file.unlink()
        logging.shutdown()
        os._exit(exits.FORCED)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, logs.reopen)
    return stop


async def _done_before(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do work that may wait for etcd or a leader; return whether it ended before `stop`, which cancels it."""
    doing = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not doing.done():
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        return False
    await doing
    return True


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _ready_line(roles: Roles, management: ManagementServer) -> str:
    node = roles.node
    places = [
        *([] if roles.role == "leader" else [f"role={roles.role}"]),
        *(f"{_amqp(node, address)}={address}" for address in node.amqp.addresses),
        *(f"{_stream(node, address)}={address}" for address in node.streams.addresses),
        *(f"{endpoint}={address}" for endpoint, address in (roles.proxy.addresses if roles.proxy else ())),
        *([f"replication={roles.listener.address}"] if roles.listener is not None else []),
        f"http={management.address}",
        *([f"https={management.tls_address}"] if management.tls_address is not None else []),
        f"data_dir={node.data_dir}",
        f"pid={os.getpid()}",
    ]
    return "leveret ready " + " ".join(places)


def _amqp(node: Node, address: Address) -> str:
    return "amqps" if address in node.amqp.tls_addresses else "amqp"


def _stream(node: Node, address: Address) -> str:
    return "streams" if address in node.streams.tls_addresses else "stream"


def _describe(error: Exception) -> tuple[int, str] | None:
    match error:
        case ConfigError():
            return exits.CONFIG, str(error)
        case DataDirBusy():
            return exits.RETRY, str(error)
        case DataDirError() | StorageError():
            return exits.INPUT_OUTPUT, str(error)
        case LeveretError():
            return exits.UNAVAILABLE, str(error)
        case OSError():
            return exits.SYSTEM, str(error)
    return None


def main() -> None:
    """Entry point of the command."""
    program = program_of(sys.argv[0], "leveret", SERVER_PROGRAMS)
    arguments = server_arguments(sys.argv[1:])
    if (option := option_without_value(arguments, _MISSING)) is not None:
        print(f"{program}: {option}: {_MISSING[option]}", file=sys.stderr)
        sys.exit(exits.USAGE)
    sys.exit(run(app, program, _describe, arguments))


if __name__ == "__main__":
    main()
