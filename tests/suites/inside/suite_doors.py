"""Inside a suite's pytest: nothing beyond loopback, and the usual ports lead to the broker under test.

Suites name hosts on the internet in defaults and in tests, and some can not be told a port. Here
every other host is unknown, as on a machine without a network, and SUITE_DOORS ("5672=40123 ...")
says where the usual ports of loopback are to be found.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_listeners = dict(pair.split("=") for pair in os.environ.get("SUITE_DOORS", "").split())


def _is_loopback(host: str | bytes | None) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    return not name or name in LOOPBACK or name.startswith("127.")


def _stay(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what would leave the machine; the interpreter calls this before it is done."""
    if event == "socket.connect":
        address = arguments[1]
        if isinstance(address, tuple) and not _is_loopback(address[0]):
            raise ConnectionRefusedError(f"the suites stay on loopback: {address}")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname") and not _is_loopback(arguments[0]):
        raise socket.gaierror(socket.EAI_NONAME, f"the suites stay on loopback: {arguments[0]}")


def _through(address: Any) -> Any:
    """The address behind a usual port of loopback; any other as it is."""
    if isinstance(address, tuple) and _is_loopback(address[0]) and str(address[1]) in _listeners:
        return (address[0], int(_listeners[str(address[1])]), *address[2:])
    return address


def _led_through(connect: Callable[[socket.socket, Any], Any]) -> Callable[[socket.socket, Any], Any]:
    return lambda self, address: connect(self, _through(address))


sys.addaudithook(_stay)
for _name in ("connect", "connect_ex"):
    setattr(socket.socket, _name, _led_through(getattr(socket.socket, _name)))
