"""The service manager's side of a node: ready, stopping, still alive, and the process id file.

systemd listens on the datagram socket in `NOTIFY_SOCKET`; without it, nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

from leveret.model.errors import ConfigError

_PINGS_A_WATCHDOG: Final = 3
_US_PER_S: Final = 1_000_000
_READY_WAIT_S: Final = 1.0
"""The wait for a service manager's room for the one message that does not come again."""


class ServiceManager:
    """Reports the node's state to the service manager.

    Attributes:
        watchdog_s: the service manager restarts a node after this time without a message; None for never.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the service manager's variables out of the environment, so that child processes do not see them."""
        address = environ.pop("NOTIFY_SOCKET", "")
        silence_us = environ.pop("WATCHDOG_USEC", "")
        watched = environ.pop("WATCHDOG_PID", str(os.getpid()))
        # A name that begins with @ is in the kernel's abstract name space, which has a zero octet there.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = (
            int(silence_us) / _US_PER_S if silence_us.isdigit() and watched == str(os.getpid()) else None
        )
        self._watchdog: asyncio.Task[None] | None = None

    def ready(self, status: str) -> None:
        """Report that all listeners are open."""
        self._report("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}", wait_s=_READY_WAIT_S)
        if self.watchdog_s and self._address:
            self._watchdog = asyncio.get_running_loop().create_task(
                self._ping(self.watchdog_s / _PINGS_A_WATCHDOG)
            )

    def status(self, text: str) -> None:
        """Report the node's present work, in a line."""
        self._report(f"STATUS={text}")

    def stopping(self) -> None:
        """Report that the node stops."""
        self._report("STOPPING=1", "STATUS=stopping")

    async def _ping(self, interval_s: float) -> None:
        """Ping while the event loop runs."""
        while True:
            self._report("WATCHDOG=1")
            await asyncio.sleep(interval_s)

    def _report(self, *lines: str, wait_s: float = 0.0) -> None:
        if not self._address:
            return
        # The node serves also without a listening service manager.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
            # One that is frozen, or busy, takes nothing once its queue is full.
            teller.settimeout(wait_s)
            teller.connect(self._address)
            teller.send("\n".join(lines).encode())


@contextlib.contextmanager
def pid_file(path: Path | None) -> Iterator[None]:
    """Keep a file with this process's id while the context lasts; None for no file.

    Raises:
        ConfigError: it cannot be written.
    """
    if path is None:
        yield
        return
    try:
        path.write_text(f"{os.getpid()}\n")
    except OSError as error:
        raise ConfigError(f"pid_file: cannot write {path}: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
