"""Free loopback ports, and waiting for what listens on them.

Everything a test starts listens on 127.0.0.1 on a port nobody else has. That a port is free is
found by binding to it, and that it stays so is agreed on: who is given one keeps a lock on it
that the other workers of a run see. Without that lock a worker takes the port of a node that
another one has stopped for a moment, to start it again.
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
"""Not the module's own generator: tests seed that, and two workers with one seed would meet."""
_KEPT_PORTS: Final = 1000
"""How many of those it was given last a process keeps to itself; it has ended what used the ones before."""
_GIVEN: Final[deque[int]] = deque()


class NotReady(Exception):
    """What was waited for did not come before the deadline; the text says what and how long."""


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports that are free on loopback, and that no process was given lately.

    They are below those that the system gives to clients: a client that tries a listener again and again while its
    node is down would else be given the listener's own port one day, connect to itself, and keep the node out.
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
    """Lock the octet of the file that stands for the port; the lock ends with the process, however that ends."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _release(port: int) -> None:
    fcntl.lockf(_claims(), fcntl.LOCK_UN, 1, port)


@cache
def _claims() -> int:
    """The file of all claims, opened once: to close it anywhere in the process would end all its locks."""
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
    """Return one TCP port that is free on loopback at this moment."""
    return free_ports(1)[0]


def accepts(port: int, timeout_s: float = 1.0) -> bool:
    """Tell whether something accepts TCP connections on this loopback port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def speaks_amqp(port: int, timeout_s: float = 2.0) -> bool:
    """Tell whether an AMQP 0-9-1 broker answers the protocol header on this port.

    A listener accepts before its broker has finished starting, so only an answer counts.
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
    """Ask `holds` again and again until it says yes: every `interval_s`, or ever less often.

    Each question costs the asked as well: the pauses grow with the time that has been waited, of which they add a
    twentieth at most.

    Raises:
        NotReady: it did not within `timeout_s`; `what` names the wish in the message.
    """
    began = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            raise NotReady(f"{what}: not within {timeout_s:g} s")
        growing_s = min(max(waited_s / 20, POLL_INTERVAL_S), POLL_INTERVAL_MAX_S)
        time.sleep(growing_s if interval_s is None else interval_s)
