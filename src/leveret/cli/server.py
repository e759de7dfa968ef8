"""`leveret`: runs a node.

    leveret serve --data-dir D [--config F]

The node says `leveret ready ...` on standard output once its doors are open, logs to standard error,
and ends in order on SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

import leveret
from leveret.cli import exits
from leveret.cli.data_dir import DataDirBusy, DataDirError, claimed
from leveret.cli.logs import start_logging
from leveret.cli.program import run
from leveret.config import Config, build, gather, render, unknown_variables
from leveret.model.errors import ConfigError, LeveretError, StorageError

if TYPE_CHECKING:
    from leveret.management.server import ManagementServer
    from leveret.runtime.node import Node

logger = logging.getLogger(__name__)

OWN_VARIABLES: Final = frozenset({"LEVERET_DATA_DIR", "LEVERET_CONFIG", "LEVERET_URL"})

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Leveret: a message broker RabbitMQ's clients already speak to, with a standby that follows.",
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


@app.command()
def serve(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="LEVERET_DATA_DIR", help="Where the node keeps everything; made if need be, mode 0700."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="LEVERET_CONFIG", help="Settings, in the form of rabbitmq.conf.")
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print all settings and where each comes from; start nothing."),
    ] = False,
) -> int:
    """Run a node until SIGTERM or SIGINT."""
    given = gather(config, environ=os.environ)
    settings = build(given)
    if print_config:
        typer.echo(render(given), nl=False)
        return exits.OK
    if data_dir is None:
        raise typer.BadParameter("name one, or set LEVERET_DATA_DIR", param_hint="--data-dir")
    start_logging(settings.log.level)
    for name in unknown_variables(os.environ, OWN_VARIABLES):
        logger.warning("unknown_variable name=%s action=ignored", name)
    with claimed(data_dir.absolute()) as claim:
        return _run_node(settings, claim)


def _run_node(config: Config, data_dir: Path) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, data_dir))


async def _serve(config: Config, data_dir: Path) -> int:
    """Start, wait for a signal or a failed disk, stop; return the exit status."""
    from leveret.management.server import ManagementServer
    from leveret.runtime.node import Node

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    node = Node(config, data_dir)
    management = ManagementServer(node, config)
    try:
        await node.start()
        await management.start()
        print(_ready_line(node, management), flush=True)
        await _first(stop, node.failed)
        logger.info("stopping reason=%s", "disk_failed" if node.failed.is_set() else "signal")
    finally:
        await management.stop()
        await node.stop()
    return exits.INPUT_OUTPUT if node.failed.is_set() else exits.OK


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _ready_line(node: Node, management: ManagementServer) -> str:
    places = [
        *(f"amqp={address}" for address in node.config.listeners.amqp),
        *(f"stream={address}" for address in node.config.listeners.stream),
        f"http={management.address}",
        f"data_dir={node.data_dir}",
        f"pid={os.getpid()}",
    ]
    return "leveret ready " + " ".join(places)


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
    sys.exit(run(app, "leveret", _describe))


if __name__ == "__main__":
    main()
