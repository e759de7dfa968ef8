"""A TCP proxy with faults: it cuts a connection at any octet, stalls, slows or delays it, or flips a bit.

    with LinkProxy(leader_port) as link:
        connect(LOOPBACK, link.port)
        link.cut_after(12_345, Direction.BACK)      # after so many more octets both sides see the end
        link.stall(); link.resume()                 # no octet passes between the two calls
        link.limit_bytes_s = 100_000

The proxy runs on an event loop of its own in one thread. An open connection never loses octets: a fault ends it, delays
it, or flips exactly the named bit.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Self, TypeVar

from leveret.testing.network.ports import LOOPBACK, free_port

T = TypeVar("T")

_PIECE_BYTES: Final = 256 * 1024
_PIECES_WAITING_MAX: Final = 64
_CALL_TIMEOUT_S: Final = 10.0
_SLICE_S: Final = 0.02
"""A slow link forwards the octets of this time at once, and then waits."""
_LINGER_NONE: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    """The direction of octets."""

    FORTH = "forth"
    """From the client to the target."""
    BACK = "back"
    """From the target to the client."""


@dataclass(slots=True)
class _Fault:
    """A fault at octet `at`, counted over all connections in its direction: a flipped `bit`, or with None a cut."""

    at: int
    bit: int | None = None
    abruptly: bool = False


@dataclass(slots=True)
class _Way:
    """One direction of all connections, counted one after the other."""

    passed: int = 0
    faults: list[_Fault] = field(default_factory=list)


class LinkProxy:
    """See the module; `start` or a `with` block opens the listener.

    Attributes:
        port: the port of the listener.
        target_port: the port to which the proxy connects; a new value holds for later connections.
        limit_bytes_s: the limit of octets a second in each direction; None for no limit.
        delay_s: the delay of each octet.
        cuts: the number of connections that the proxy has ended.
        accepted: the number of accepted connections.
    """

    def __init__(self, target_port: int, port: int | None = None) -> None:
        """Prepare the proxy; nothing listens yet."""
        self.port = port or free_port()
        self.target_port = target_port
        self.limit_bytes_s: float | None = None
        self.delay_s = 0.0
        self.cuts = 0
        self.accepted = 0
        self._refuses = False
        self._ways = {direction: _Way() for direction in Direction}
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = {direction: asyncio.Event() for direction in Direction}
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"link :{self.port}", daemon=True)

    def start(self) -> Self:
        """Open the listener."""
        self._thread.start()
        self._on_loop(self._open)
        return self

    def close(self) -> None:
        """End every connection and the thread."""
        if not self._thread.is_alive():
            return
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- faults -------------------------------------------------------------------------------

    def cut(self, *, abruptly: bool = False) -> int:
        """End all open connections, `abruptly` with a reset; return their number."""
        return self._on_loop(lambda: self._cut(abruptly))

    def cut_after(self, octets: int, direction: Direction, *, abruptly: bool = False) -> None:
        """End a connection, an open or a later one, when exactly so many more octets have passed."""
        self._on_loop(lambda: self._add(direction, octets, _Fault(0, abruptly=abruptly)))

    def flip(self, octets: int, direction: Direction, bit: int = 0) -> None:
        """Flip one bit of the octet that follows after exactly so many more."""
        self._on_loop(lambda: self._add(direction, octets, _Fault(0, bit=bit)))

    def stall(self, *directions: Direction) -> None:
        """Forward nothing, in these directions or in both, until `resume`; connections stay open, also new ones."""
        self._on_loop(lambda: self._set_flowing(False, directions or tuple(Direction)))

    def resume(self) -> None:
        """Forward the stalled octets and all later ones."""
        self._on_loop(lambda: self._set_flowing(True, tuple(Direction)))

    def refuse(self) -> None:
        """End all open connections, and until `allow` every new one at once."""
        self._refuses = True
        self.cut()

    def allow(self) -> None:
        """Accept connections again."""
        self._refuses = False

    def heal(self) -> None:
        """Undo every fault."""
        self.limit_bytes_s, self.delay_s = None, 0.0
        self._on_loop(self._forget_faults)
        self.allow()
        self.resume()

    # -- counts -------------------------------------------------------------------------------

    def passed(self, direction: Direction) -> int:
        """Return the number of forwarded octets in this direction since the start."""
        return self._ways[direction].passed

    @property
    def faults(self) -> int:
        """The number of cuts and flips that are still due."""
        return sum(len(way.faults) for way in self._ways.values())

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._links)

    # -- on the loop --------------------------------------------------------------------------

    def _on_loop(self, act: Callable[[], T]) -> T:
        async def do() -> T:
            return act()

        return self._run(do())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    def _set_flowing(self, flows: bool, directions: tuple[Direction, ...]) -> None:
        for each in directions:
            if flows:
                self._flowing[each].set()
            else:
                self._flowing[each].clear()

    def _forget_faults(self) -> None:
        for way in self._ways.values():
            way.faults.clear()

    def _open(self) -> None:
        self._set_flowing(True, tuple(Direction))
        self._listening = socket.create_server((LOOPBACK, self.port), backlog=128)
        self._listening.setblocking(False)
        # A callback instead of a task: a task that is cancelled behind its `accept` would leave the socket open.
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            near, _ = self._listening.accept()
        except OSError:
            # The client has closed the connection again.
            return
        if self._refuses:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            near.close()
            return
        self.accepted += 1
        link = _Link(self._loop, near, self._ended)
        self._links.add(link)
        link.task = self._loop.create_task(self._carry(link))

    async def _carry(self, link: _Link) -> None:
        far = socket.socket()
        link.sockets.append(far)
        try:
            for each in link.sockets:
                each.setblocking(False)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(far, (LOOPBACK, self.target_port))
        except OSError:
            # The target does not listen, or the link was cut before the connection was open.
            link.end(abruptly=True)
            return
        near = link.sockets[0]
        for direction, source, sink in ((Direction.FORTH, near, far), (Direction.BACK, far, near)):
            pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_WAITING_MAX)
            link.tasks.append(self._loop.create_task(self._take(link, source, pieces)))
            link.tasks.append(self._loop.create_task(self._hand_out(link, direction, sink, pieces)))

    async def _take(self, link: _Link, source: socket.socket, pieces: asyncio.Queue[Any]) -> None:
        """Read pieces, and put each into the queue with the time when it is due; an empty piece is the end."""
        while True:
            try:
                piece = await self._loop.sock_recv(source, _PIECE_BYTES)
            except OSError:
                link.end(abruptly=True)
                return
            await pieces.put((self._loop.time() + self.delay_s, piece))
            if not piece:
                return

    async def _hand_out(
        self, link: _Link, direction: Direction, sink: socket.socket, pieces: asyncio.Queue[Any]
    ) -> None:
        way, flowing = self._ways[direction], self._flowing[direction]
        while True:
            due_s, piece = await pieces.get()
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            await flowing.wait()
            if not piece:
                link.finish(sink)
                return
            while piece:
                part, piece = self._slice(piece)
                await flowing.wait()
                try:
                    ended = await self._pass(way, part, sink)
                except OSError:
                    link.end(abruptly=True)
                    return
                if ended is not None:
                    self.cuts += 1
                    link.end(abruptly=ended.abruptly)
                    return

    def _slice(self, piece: bytes) -> tuple[bytes, bytes]:
        if self.limit_bytes_s is None:
            return piece, b""
        size = max(1, int(self.limit_bytes_s * _SLICE_S))
        return piece[:size], piece[size:]

    async def _pass(self, way: _Way, part: bytes, sink: socket.socket) -> _Fault | None:
        """Send a part with its faults; return the fault that ends the connection, or None."""
        end = None
        while way.faults and way.faults[0].at < way.passed + len(part):
            fault = way.faults.pop(0)
            at = fault.at - way.passed
            if fault.bit is None:
                part, end = part[:at], fault
                break
            part = part[:at] + bytes([part[at] ^ 1 << fault.bit]) + part[at + 1 :]
        # Count before sending: a test that has read an octet must find it counted.
        way.passed += len(part)
        await self._loop.sock_sendall(sink, part)
        if self.limit_bytes_s is not None:
            await asyncio.sleep(len(part) / self.limit_bytes_s)
        return end

    def _add(self, direction: Direction, octets: int, fault: _Fault) -> None:
        way = self._ways[direction]
        fault.at = way.passed + octets
        way.faults.append(fault)
        way.faults.sort(key=lambda each: each.at)

    def _cut(self, abruptly: bool) -> int:
        links = list(self._links)
        for link in links:
            link.end(abruptly=abruptly)
        self.cuts += len(links)
        return len(links)

    def _ended(self, link: _Link) -> None:
        self._links.discard(link)

    async def _close(self) -> None:
        self._loop.remove_reader(self._listening)
        self._listening.close()
        tasks = [task for link in self._links for task in (link.task, *link.tasks) if task is not None]
        self._cut(abruptly=True)
        await asyncio.gather(*tasks, return_exceptions=True)


class _Link:
    """One connection: two sockets and the tasks that carry octets between them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, near: socket.socket, ended: Callable[[_Link], None]
    ) -> None:
        self._loop = loop
        self.sockets = [near]
        self.task: asyncio.Task[None] | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self._ended = ended
        self._finished = 0

    def finish(self, sink: socket.socket) -> None:
        """Forward the end of one direction; close both sockets once both directions have ended."""
        self._finished += 1
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        if self._finished == len(self.sockets):
            self.end(abruptly=False)

    def end(self, *, abruptly: bool) -> None:
        """Close both sockets; octets that were not forwarded are lost."""
        for task in (self.task, *self.tasks):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for each in self.sockets:
            if abruptly:
                with suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            if each.fileno() >= 0:
                # At once: another socket may get the descriptor's number before the tasks notice.
                self._loop.remove_reader(each)
                self._loop.remove_writer(each)
            each.close()
        self._ended(self)
