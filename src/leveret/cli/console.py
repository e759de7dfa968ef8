"""`leveret console`: all sites on one page, in a browser."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from leveret.cli import exits
from leveret.cli.log_lines import KeyValueLine


def console(
    sites: Annotated[
        list[str] | None,
        typer.Option(
            "--site",
            metavar="NAME=URL",
            help="A site and the URL of its HTTP API, such as eu=http://127.0.0.1:15672; of a cluster the URLs of its "
            "nodes, with commas between. Give one for each site.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="<path>", help="The sites and all other settings, as TOML; options take precedence."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="ADDR:PORT", help="Address of the listener; 127.0.0.1:15680 by default."),
    ] = None,
    certfile: Annotated[
        str | None,
        typer.Option(metavar="<path>", help="Certificate for TLS, which any address beyond loopback needs."),
    ] = None,
    keyfile: Annotated[
        str | None, typer.Option(metavar="<path>", help="Private key of that certificate.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="HOST",
            help="A name by which browsers reach the console beyond loopback. Give one for each name.",
        ),
    ] = None,
    end_with_stdin: Annotated[
        bool, typer.Option("--end-with-stdin", hidden=True, help="End when standard input does; for a node.")
    ] = False,
) -> int:
    """Show the state of all sites, and the loss that is possible now, on one page in a browser.

    The console is a program of its own, which speaks only to the HTTP API of each site. Log in at the page as a user
    that a site knows. It stores nothing, and ends on SIGTERM or SIGINT.
    """
    from leveret.console.http.server import serve_console
    from leveret.console.settings import read_settings

    options = {"listen": listen, "certfile": certfile, "keyfile": keyfile, "names": names or None}
    settings = read_settings(config, sites or (), options)
    handler = logging.StreamHandler(sys.stderr)
    # One line for each event, whatever a site's answer or a user's name holds.
    handler.setFormatter(KeyValueLine())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # Otherwise each request would log a line with its URL.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if end_with_stdin:
        threading.Thread(target=_end_with_stdin, name="end with standard input", daemon=True).start()
    serve_console(settings, lambda url: print(f"leveret console ready {url}", flush=True))
    return exits.OK


def _end_with_stdin() -> None:
    """End with standard input: the holder of the pipe's other end has ended, in any way."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
