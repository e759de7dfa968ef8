"""Free loopback ports, and waits for their listeners.

Every server of a test listens on 127.0.0.1 on a port of its own. A bind shows that a port is free. A lock on the port,
which all workers of a run respect, keeps it for the process that got it. Without the lock a worker could take the port
of a node that another worker has stopped and is about to start again.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
POLL_INTERVAL_S: Final = 0.02
POLL_INTERVAL_MAX_S: Final = 0.25
AMQP_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_FRAME_METHOD: Final = b"\x01"
_FRAME_HEADER_BYTES: Final = 7
_LOWEST_PORT: Final = 10_000
_FIRST_CLIENT_PORT_USUAL: Final = 32_768
_CLIENT_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_CHOICE: Final = random.SystemRandom()
"""Not the generator of module `random`: tests seed it, and two workers with one seed would choose the same ports."""
_KEPT_PORTS: Final = 1000
"""The number of ports that a process keeps locked, the latest ones; its servers on earlier ones have ended."""
_GIVEN: Final[deque[int]] = deque()


class NotReady(Exception):
    """A condition did not hold before the deadline; the text names the condition and the time."""


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports that are free on loopback, and that no other process keeps.

    They are below the ports that the system gives to clients. A client that retries while its node is down could
    otherwise get the listener's own port, connect to itself, and keep the node from listening.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _CHOICE.randrange(_LOWEST_PORT, _first_client_port())
        if port not in _GIVEN and _claim(port):
            if _is_free(port):
                ports.append(port)
                _keep(port)
            else:
                _release(port)
    return ports


def _keep(port: int) -> None:
    _GIVEN.append(port)
    if len(_GIVEN) > _KEPT_PORTS:
        _release(_GIVEN.popleft())


def _claim(port: int) -> bool:
    """Lock the port's octet in the file of claims; the lock ends with the process, also after a crash."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _release(port: int) -> None:
    fcntl.lockf(_claims(), fcntl.LOCK_UN, 1, port)


@cache
def _claims() -> int:
    """Return the file of claims. It is opened once, because closing any descriptor of it ends the process's locks."""
    place = Path(tempfile.gettempdir()) / f"leveret-test-ports-{os.getuid()}"
    return os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _first_client_port() -> int:
    try:
        return int(_CLIENT_PORTS.read_text().split()[0])
    except (OSError, ValueError):
        return _FIRST_CLIENT_PORT_USUAL


def free_port() -> int:
    """Return one TCP port; see `free_ports`."""
    return free_ports(1)[0]


def accepts(port: int, timeout_s: float = 1.0) -> bool:
    """Return whether a listener accepts TCP connections on this loopback port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def speaks_amqp(port: int, timeout_s: float = 2.0) -> bool:
    """Return whether an AMQP 0-9-1 broker answers the protocol header on this port.

    A listener may accept before its broker has started, so only an answer counts.
    """
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s) as peer:
            peer.sendall(AMQP_HEADER)
            answer = b""
            while len(answer) < _FRAME_HEADER_BYTES:
                piece = peer.recv(4096)
                if not piece:
                    return False
                answer += piece
            return answer.startswith(_FRAME_METHOD)
    except OSError:
        return False


def wait_until(
    holds: Callable[[], bool], what: str, timeout_s: float, *, interval_s: float | None = None
) -> None:
    """Call `holds` until it returns true: every `interval_s`, or with growing pauses.

    Each call also costs the process that answers. So the pauses grow with the time waited, of which a pause is at most
    a twentieth.

    Raises:
        NotReady: it did not within `timeout_s`; `what` names the condition in the message.
    """
    began = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            raise NotReady(f"{what}: not within {timeout_s:g} s")
        growing_s = min(max(waited_s / 20, POLL_INTERVAL_S), POLL_INTERVAL_MAX_S)
        time.sleep(growing_s if interval_s is None else interval_s)
