"""The simulated network: connections between processes, with delays, cuts in one or both directions, and resets.

A connection has a queue in each direction. Octets arrive in order, whole or in pieces, each a delay after they were
sent. A *cut* holds sent octets, as TCP does by sending again; they arrive after the cut is mended. The kernel resets
the connections of a process that ends; a machine that loses power sends no reset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from random import Random
from typing import Any, Final, NamedTuple

from leveret.runtime.sockets.acceptor import Accepted, ProtocolEndpoint
from leveret.runtime.sockets.connection_budget import ConnectionSlot, process_sockets
from leveret.testing.simulation.machine.loop import VirtualLoop, virtual_loop
from leveret.testing.simulation.machine.process import SimulatedProcess, current_process
from leveret.testing.simulation.machine.waiting import wake_all

HIGH_WATER_BYTES: Final = 64 * 1024
PIECE_BYTES_MAX: Final = 64 * 1024
_FIN: Final = "fin"
_RESET: Final = "reset"
_FIRST_PORT: Final = 40_000


class _Listening(NamedTuple):
    process: SimulatedProcess
    protocol: Callable[[], asyncio.BaseProtocol]


class SimulatedNetwork:
    """See the module.

    Attributes:
        delay_s: the longest delay of a message; most take a tenth of it.
        cuts: pairs (from, to) of hosts between which no octet passes.
    """

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        """Begin without connections."""
        self.loop = loop
        self.random = random
        self.delay_s = 0.002
        self.cuts: set[tuple[str, str]] = set()
        self._listening: dict[int, _Listening] = {}
        self._transports: dict[SimulatedTransport, None] = {}
        self._next_port = _FIRST_PORT
        self._mended: list[asyncio.Future[None]] = []
        loop.network = self

    # -- connecting ---------------------------------------------------------------------------

    def free_port(self) -> int:
        """Return a port that was never used before."""
        self._next_port += 1
        return self._next_port

    def listen(self, port: int, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections at a port, as the present process.

        Raises:
            OSError: another process has the port.
        """
        process = current_process()
        assert process is not None
        taken = self._listening.get(port)
        if taken is not None and taken.process.is_alive:
            raise OSError(98, f"port {port} is in use by {taken.process.name}")
        self._listening[port] = _Listening(process, protocol)

    def close(self, port: int) -> None:
        """Accept no more connections at a port."""
        self._listening.pop(port, None)

    async def connect(
        self, protocol: Callable[[], asyncio.BaseProtocol], port: int
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect the present process to the listener at a port.

        Raises:
            OSError: no process listens at the port.
        """
        process = current_process()
        assert process is not None
        await self._travel(process.name, port)
        listening = self._listening.get(port)
        if listening is None or not listening.process.is_alive:
            raise ConnectionRefusedError(111, f"nobody listens at port {port}")
        mine = SimulatedTransport(self, process, ("127.0.0.1", self.free_port()), ("127.0.0.1", port))
        other = SimulatedTransport(self, listening.process, mine.peername, mine.sockname)
        mine.peer, other.peer = other, mine
        self._transports |= {mine: None, other: None}
        other.attach(listening.protocol)
        await self._travel(process.name, port)
        made = mine.attach_now(protocol)
        return mine, made

    async def _travel(self, host: str, port: int) -> None:
        """Wait for the delay of a packet to the host; in a cut, for ever or until the caller gives up."""
        listening = self._listening.get(port)
        if listening is not None and self.is_cut(host, listening.process.name):
            mended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._mended.append(mended)
            await mended
        await asyncio.sleep(self.delay())

    def delay(self) -> float:
        """Return the delay of a message: usually short, sometimes long."""
        share = self.random.random()
        return self.delay_s * (0.1 + 0.9 * share**6)

    # -- faults -------------------------------------------------------------------------------

    def is_cut(self, one: str, other: str) -> bool:
        """Return whether a direction between two hosts is cut: TCP then passes no octets in either direction."""
        return (one, other) in self.cuts or (other, one) in self.cuts

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Cut the direction from `one` to `other`, and the other direction if `both`."""
        self.cuts.add((one, other))
        if both:
            self.cuts.add((other, one))

    def mend(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """End all cuts, or those of these pairs."""
        self.cuts -= set(self.cuts if pairs is None else pairs)
        wake_all(self._mended)
        for transport in list(self._transports):
            transport.pump()

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two hosts, and lose their octets in flight."""
        for transport in list(self._transports):
            if transport.process.name == one and transport.peer.process.name == other:
                transport.lose(ConnectionResetError(104, "connection reset"))
                transport.peer.lose(ConnectionResetError(104, "connection reset"))

    def process_ended(self, process: SimulatedProcess, *, silently: bool = False) -> None:
        """Close the sockets of an ended process, as its kernel does; `silently` if the machine lost power."""
        for child in process.children:
            self.process_ended(child, silently=silently)
        for port, listening in list(self._listening.items()):
            if listening.process is process:
                del self._listening[port]
        for transport in list(self._transports):
            if transport.process is process:
                self.forget(transport)
                if not silently:
                    transport.send(_RESET)

    def forget(self, transport: SimulatedTransport) -> None:
        """Remove a transport that its own end has closed."""
        self._transports.pop(transport, None)


class _Socket:
    """A socket whose options have no effect."""

    def setsockopt(self, *_: Any) -> None:
        """Ignore an option."""

    def fileno(self) -> int:
        """Return -1: there is no descriptor."""
        return -1


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: SimulatedNetwork,
        process: SimulatedProcess,
        sockname: tuple[str, int],
        peername: tuple[str, int],
    ) -> None:
        """Make an end without a protocol; `peer` is set next."""
        super().__init__({"peername": peername, "sockname": sockname, "socket": _Socket()})
        self.network = network
        self.process = process
        self.sockname, self.peername = sockname, peername
        self.peer: SimulatedTransport
        self._protocol: Any = None
        self._sent: deque[bytes | str] = deque()
        """The items in flight to the peer, or held by a cut."""
        self._sent_bytes = 0
        self._arrives_s = 0.0
        self._is_pumping = False
        self._arrived: deque[bytes | str] = deque()
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._is_write_paused = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4

    # -- the protocol of this end ---------------------------------------------------------------

    def attach(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Make the protocol as this end's process, and attach it."""
        self._call(lambda: self.attach_now(protocol))

    def attach_now(self, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Make the protocol in the present process, and attach it."""
        made = protocol()
        self._protocol = made
        made.connection_made(self)
        self._call(self._hand_out)
        return made

    def _call(self, callback: Callable[[], object], delay_s: float = 0.0) -> None:
        """Call `callback` as the process of this end."""
        context = self.process.context()
        if delay_s:
            self.network.loop.call_later(delay_s, callback, context=context)
        else:
            self.network.loop.call_soon(callback, context=context)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio."""
        made: asyncio.BaseProtocol = self._protocol
        return made

    # -- sending --------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        if self._is_closing or self._is_lost or not len(data):
            return
        self.send(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """See asyncio."""
        self.write(b"".join(list_of_data))

    def send(self, item: bytes | str) -> None:
        """Send octets, or the end of the connection, to the peer."""
        if item == _RESET:
            # A reset overtakes no octets, but octets that a cut holds are lost with the socket.
            self._sent = deque(self._sent if not self._is_cut else ())
        self._sent.append(item)
        if isinstance(item, bytes):
            self._sent_bytes += len(item)
            if self._sent_bytes > self._high and not self._is_write_paused:
                self._is_write_paused = True
                self._protocol.pause_writing()
        self.pump()

    @property
    def _is_cut(self) -> bool:
        # A cut in either direction: without acknowledgements TCP sends no more than a window.
        return self.network.is_cut(self.process.name, self.peer.process.name)

    def pump(self) -> None:
        """Deliver the first waiting item after its delay."""
        if self._is_pumping or not self._sent or self._is_cut:
            return
        loop = self.network.loop
        self._is_pumping = True
        self._arrives_s = max(self._arrives_s, loop.time() + self.network.delay())
        # The callback belongs to no process: octets arrive at the peer's kernel even after a process ends.
        loop.call_at(self._arrives_s, self._deliver, context=_NO_PROCESS)

    def _deliver(self) -> None:
        self._is_pumping = False
        if not self._sent or self._is_cut:
            return
        batch: list[bytes] = []
        while self._sent and isinstance(self._sent[0], bytes) and sum(map(len, batch)) < PIECE_BYTES_MAX:
            batch.append(self._sent.popleft())  # type: ignore[arg-type]
        if batch:
            octets = b"".join(batch)
            self._sent_bytes -= len(octets)
            self.peer.receive(octets)
        else:
            self.peer.receive(self._sent.popleft())
        if self._is_write_paused and self._sent_bytes <= self._low:
            self._is_write_paused = False
            self._call(self._resume_writing)
        self.pump()

    def _resume_writing(self) -> None:
        if not self._is_lost and not self._is_write_paused:
            self._protocol.resume_writing()

    # -- receiving ------------------------------------------------------------------------------

    def receive(self, item: bytes | str) -> None:
        """Take an arrived item; the process reads it when it runs."""
        if not self.process.is_alive:
            return
        if self._is_lost:
            if item != _RESET:
                self.peer.receive(_RESET)
            return
        if item == _RESET:
            self._arrived.clear()
        self._arrived.append(item)
        if self._protocol is not None:
            self._call(self._hand_out)

    def _hand_out(self) -> None:
        while self._arrived and not self._is_lost and self._protocol is not None:
            item = self._arrived[0]
            if item == _RESET:
                self.lose(ConnectionResetError(104, "Connection reset by peer"))
                return
            if not self._is_reading:
                return
            self._arrived.popleft()
            if item == _FIN:
                if not self._protocol.eof_received():
                    self.close()
            else:
                self._give(item)  # type: ignore[arg-type]

    def _give(self, octets: bytes) -> None:
        random = self.network.random
        if len(octets) > 1 and random.random() < 0.2:
            # A read returns the present octets, which may be a part of a message.
            at = random.randrange(1, len(octets))
            self._arrived.appendleft(octets[at:])
            octets = octets[:at]
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(octets)
            return
        while octets and not self._is_lost:
            buffer = memoryview(protocol.get_buffer(-1))
            some = min(len(buffer), len(octets))
            buffer[:some] = octets[:some]
            octets = octets[some:]
            protocol.buffer_updated(some)
            if not self._is_reading and octets:
                self._arrived.appendleft(octets)
                return

    def pause_reading(self) -> None:
        """See asyncio."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """See asyncio."""
        self._is_reading = True
        self._call(self._hand_out)

    def is_reading(self) -> bool:
        """See asyncio."""
        return self._is_reading

    # -- its end --------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_closing

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return False

    def close(self) -> None:
        """See asyncio: octets that were written before still arrive."""
        if not self._is_closing:
            self._is_closing = True
            self._is_reading = False
            self.send(_FIN)
            self._call(lambda: self.lose(None))

    def abort(self) -> None:
        """See asyncio."""
        self._is_closing = True
        if not self._is_lost:
            self.send(_RESET)
            self._call(lambda: self.lose(None))

    def lose(self, error: Exception | None) -> None:
        """Report the end of the connection to the protocol, once."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self.network.forget(self)
        if self._protocol is not None:
            self._call(lambda: self._protocol.connection_lost(error))

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self._sent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio."""
        return self._low, self._high


_NO_PROCESS: Final = Context()


class SimulatedAcceptor:
    """Replaces runtime.sockets.acceptor.Acceptor: listens in the simulated network."""

    def __init__(
        self,
        listening: SimulatedListeningSocket,
        endpoint: ProtocolEndpoint,
        **_: Any,
    ) -> None:
        """Begin to accept, without counting connections, because all nodes are in one process."""
        self._network = listening.network
        self._port = listening.port
        counting = process_sockets()
        uncounted = ConnectionSlot(counting, counting.tallies[endpoint.kind], "")
        self._network.listen(self._port, lambda: endpoint.protocol(Accepted(None, uncounted)))

    def close(self) -> None:
        """Stop accepting."""
        self._network.close(self._port)


class SimulatedListeningSocket:
    """Replaces a listening socket."""

    def __init__(self, network: SimulatedNetwork, port: int) -> None:
        """Make a socket for a port; 0 takes a free one."""
        self.network = network
        self.port = port or network.free_port()

    def getsockname(self) -> tuple[str, int]:
        """Return its address."""
        return "127.0.0.1", self.port

    def close(self) -> None:
        """Do nothing: no descriptor is open."""


def simulated_listen(ip: str, port: int, backlog: int = 128) -> SimulatedListeningSocket:
    """Replace `listen` of runtime.sockets.acceptor, where the listeners have it."""
    return SimulatedListeningSocket(virtual_loop().network, port)
