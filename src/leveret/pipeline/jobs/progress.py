"""Progress reports from Spark's processes to the driver, which prints them as JSON lines.

A micro-batch runs in four processes, of which only the driver's own output reaches the node. So the others send
datagrams to the driver if they are on its machine. Reports may be lost, and nothing depends on them.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

Event: TypeAlias = dict[str, Any]
DATAGRAM_BYTES_MAX: Final = 65_536
ROOM_TIMEOUT_S: Final = 0.1
"""The longest wait for room at the receiver: the kernel keeps ten reports, and a batch of many vhosts sends more."""
_directories: Final[set[Path]] = set()


class Inbox:
    """The receiver of progress reports; `address` is for `report`."""

    def __init__(self, address: str = "") -> None:
        """Receive at a new address, or at this one in place of whoever did before."""
        self._directory: Path | None = None
        if not address:
            # Outside of the data directory, because a socket's path is limited to 107 octets.
            self._directory = Path(tempfile.mkdtemp(prefix="leveret-"))
            _directories.add(self._directory)
            address = str(self._directory / "news")
        self.address = address
        Path(address).unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)

    def wait(self, timeout_s: float) -> list[Event]:
        """All reports that arrived, at most `timeout_s` after the call; empty if none came."""
        events: list[Event] = []
        self._socket.settimeout(timeout_s)
        with contextlib.suppress(BlockingIOError, TimeoutError):
            while True:
                if octets := self._socket.recv(DATAGRAM_BYTES_MAX):
                    events.append(msgspec.json.decode(octets, type=Event))
                self._socket.settimeout(0)
        return events

    def wake(self) -> None:
        """End a present wait of another thread, or else the next one."""
        _send(self.address, b"")

    def close(self) -> None:
        """Remove the address, unless it is not this one's own."""
        self._socket.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            _directories.discard(self._directory)

    def __enter__(self) -> Inbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def remove_addresses() -> None:
    """Remove the addresses of this process's inboxes, if the process ends without closing them."""
    for directory in list(_directories):
        shutil.rmtree(directory, ignore_errors=True)


def report(address: str, event: str, **details: object) -> None:
    """Send a report; does nothing if there is no receiver."""
    _send(address, msgspec.json.encode({"event": event, **details}))


def _send(address: str, octets: bytes) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(ROOM_TIMEOUT_S)
        # The kernel tells a connected socket when there is room.
        sender.connect(address)
        sender.send(octets)
