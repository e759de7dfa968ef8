"""A TCP link that a test can harm: cut at any octet, stalled, slow, late, or with a bit turned.

    with LinkProxy(leader_port) as link:
        connect(LOOPBACK, link.port)
        link.cut_after(12_345, Direction.BACK)      # so many octets more, then both sides see the end
        link.stall(); link.resume()                 # nothing passes, nobody is told
        link.limit_bytes_s = 100_000

Everything runs on a loop of its own in one thread. Octets are never lost between the two ends of a connection
that stands: a fault ends it, holds it up, or alters exactly the bit that was named.
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
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from leveret.testing.network.ports import LOOPBACK, free_port

T = TypeVar("T")

_PIECE_BYTES: Final = 256 * 1024
_PIECES_WAITING_MAX: Final = 64
_CALL_TIMEOUT_S: Final = 10.0
_SLICE_S: Final = 0.02
"""A slow link passes on what it may pass in this time, and waits."""
_LINGER_NONE: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    """Which way octets go."""

    FORTH = "forth"
    """From whoever connected to the target."""
    BACK = "back"
    """From the target to whoever connected."""


@dataclass(slots=True)
class _Fault:
    """What happens when octet `at`, counted over all connections in this direction, is due; no `bit`: the end."""

    at: int
    bit: int | None = None
    abruptly: bool = False


@dataclass(slots=True)
class _Way:
    """One direction over all connections, one after the other."""

    passed: int = 0
    faults: list[_Fault] = field(default_factory=list)


class LinkProxy:
    """See the module; `start` or a `with` block opens the listener.

    Attributes:
        port: where to connect.
        target_port: where connections lead to; may be changed, for the connections that follow.
        limit_bytes_s: octets a second and direction; None: as fast as it goes.
        delay_s: how much later each octet arrives.
        cuts: how many connections were ended here.
        accepted: how many connections there were.
    """

    def __init__(self, target_port: int, port: int | None = None) -> None:
        """Prepare; nothing listens yet."""
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
        """Listen."""
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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- faults -------------------------------------------------------------------------------

    def cut(self, *, abruptly: bool = False) -> int:
        """End the connections that stand, `abruptly` with a reset; returns how many there were."""
        return self._on_loop(lambda: self._cut(abruptly))

    def cut_after(self, octets: int, direction: Direction, *, abruptly: bool = False) -> None:
        """End a connection when exactly so many octets more have passed, be it this one's or a later one's."""
        self._on_loop(lambda: self._add(direction, octets, _Fault(0, abruptly=abruptly)))

    def flip(self, octets: int, direction: Direction, bit: int = 0) -> None:
        """Turn one bit of the octet that follows when so many more have passed."""
        self._on_loop(lambda: self._add(direction, octets, _Fault(0, bit=bit)))

    def stall(self, *directions: Direction) -> None:
        """Pass nothing on, in these directions or in both, until `resume`; connections stand and are still taken."""
        self._on_loop(lambda: self._set_flowing(False, directions or tuple(Direction)))

    def resume(self) -> None:
        """Let what was held up go on its way."""
        self._on_loop(lambda: self._set_flowing(True, tuple(Direction)))

    def refuse(self) -> None:
        """End the connections that stand, and every new one as soon as it is made, until `allow`."""
        self._refuses = True
        self.cut()

    def allow(self) -> None:
        """Take connections again."""
        self._refuses = False

    def heal(self) -> None:
        """Undo every fault: a link as good as new."""
        self.limit_bytes_s, self.delay_s = None, 0.0
        self._on_loop(self._forget_faults)
        self.allow()
        self.resume()

    # -- looking ------------------------------------------------------------------------------

    def passed(self, direction: Direction) -> int:
        """How many octets were passed on in this direction since the start."""
        return self._ways[direction].passed

    @property
    def faults(self) -> int:
        """How many cuts and bits have not come yet."""
        return sum(len(way.faults) for way in self._ways.values())

    @property
    def connections(self) -> int:
        """How many connections stand."""
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
        # No task: one that is cancelled between a connection and its turn would lose the socket, open.
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            near, _ = self._listening.accept()
        except OSError:
            # Who knocked has gone again.
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
            # Nobody is there, or the link was cut before it stood.
            link.end(abruptly=True)
            return
        near = link.sockets[0]
        for direction, source, sink in ((Direction.FORTH, near, far), (Direction.BACK, far, near)):
            pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_WAITING_MAX)
            link.tasks.append(self._loop.create_task(self._take(link, source, pieces)))
            link.tasks.append(self._loop.create_task(self._hand_out(link, direction, sink, pieces)))

    async def _take(self, link: _Link, source: socket.socket, pieces: asyncio.Queue[Any]) -> None:
        """Read what comes, and note when it is due; an empty piece is the end."""
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
        """Send, with the faults that are due on the way; returns the one that ends the connection."""
        end = None
        while way.faults and way.faults[0].at < way.passed + len(part):
            fault = way.faults.pop(0)
            at = fault.at - way.passed
            if fault.bit is None:
                part, end = part[:at], fault
                break
            part = part[:at] + bytes([part[at] ^ 1 << fault.bit]) + part[at + 1 :]
        # Counted before it is sent: who has read an octet finds it counted.
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
        """One side has said all: tell the other; both, and it is over."""
        self._finished += 1
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        if self._finished == len(self.sockets):
            self.end(abruptly=False)

    def end(self, *, abruptly: bool) -> None:
        """Close both sockets; what was read and not passed on is gone."""
        for task in (self.task, *self.tasks):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for each in self.sockets:
            if abruptly:
                with suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            if each.fileno() >= 0:
                # At once: the number may be another socket's before the tasks have noticed.
                self._loop.remove_reader(each)
                self._loop.remove_writer(each)
            each.close()
        self._ended(self)
