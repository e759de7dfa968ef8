"""One peer of the stream protocol: its socket, timers and log reads around `session.stream.connection`.

Chunks are read on the event loop, a quarter of a megabyte at a time, not in an executor. A reader that keeps up finds
them in the page cache, where such a read takes some 30 microseconds, less than a thread hop; one that catches up from
disk is served by the kernel's read-ahead. And a read never races with appends and retention, which run on the loop
too. Between two reads the loop serves the other connections.

Memory is bounded per connection: chunks are read only while less than `WRITE_BUFFER_BYTES_MAX` wait
for the socket, so a slow reader holds that much plus one read; a peer that does not take its answers
is not read from; and published octets that wait for the disk are bounded by the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, cast

from leveret.core.broker.limits import OtherConnection
from leveret.model.addresses import is_loopback
from leveret.model.errors import (
    LedElsewhere,
    LeveretError,
    NotFound,
    PreconditionFailed,
    Refusal,
)
from leveret.runtime.clients import connection_log
from leveret.runtime.clients.recovered_publishes import RecoveredPublishes
from leveret.runtime.clients.stream_host import (
    ServedLog,
    StreamGroups,
    StreamHandle,
    StreamHost,
)
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.sockets.lingering_close import LingeringClose
from leveret.runtime.sockets.tls import tls_peer
from leveret.runtime.sockets.write_stall import WriteStall
from leveret.session.certificate import TlsPeer
from leveret.session.stream.connection import StreamClientConnection
from leveret.session.stream.types import (
    Append,
    AskOffset,
    AskSequence,
    ChangeStreams,
    Declared,
    Effect,
    KeepOffset,
    SendResponse,
    SteppedDown,
    StoreBatch,
    StreamConnectionState,
    StreamPublisher,
    Subscribed,
    Subscription,
    code_of,
)
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.stream.codec import Code
from leveret.wire.stream.commands import QueryPublisherSequenceResponse

READ_BYTES_MAX: Final = 262_144
READ_BYTES_PER_CREDIT: Final = 65_536
"""The octets of one read for each credit, so that a reader with little credit gets small reads."""
WRITE_BUFFER_BYTES_MAX: Final = 1_048_576
FLUSH_TIMEOUT_S: Final = 5.0
_DOWNSTREAMS_MAX: Final = 16
"""The most downstreams that one connection reports for; a reader could invent any number of them."""

log = logging.getLogger(__name__)


class _Watch(NamedTuple):
    """A log that is read or written, and the function that ends its notifications."""

    log: ServedLog
    release: Callable[[], None]


class _Member:
    """core.queues.stream_groups.GroupMember: a subscription in a group with a single active consumer."""

    def __init__(
        self, connection: StreamPeer, number: int, subscription: Subscription, groups: StreamGroups
    ) -> None:
        self.number = number
        self.subscription = subscription
        self.key = (connection.vhost, subscription.stream, subscription.group)
        self.groups = groups
        self._connection = connection

    def activate(self, active: bool) -> None:
        """See GroupMember."""
        self._connection.update_consumer(self, active)

    def end(self) -> None:
        """See GroupMember."""
        self._connection.end_consumer(self)


class StreamPeer(asyncio.Protocol):
    """One connection of the stream protocol.

    Attributes:
        name: both ends, as RabbitMQ writes them.
        proxied_by: the node that passes the connection on to this one; empty for none.
        since_ms: the Unix time of its acceptance. octets_received, octets_sent: counters.
        closed: done when the connection is gone.
    """

    protocol = "stream"
    channels = 0
    channel_max = 0

    def __init__(
        self, host: StreamHost, frame_max_bytes: int, heartbeat_s: int, register: dict[StreamPeer, None]
    ) -> None:
        self.name = ""
        self.proxied_by = ""
        self.since_ms = clock_ms()
        self.octets_received = 0
        self.octets_sent = 0
        self._host = host
        self._limits = (frame_max_bytes, heartbeat_s)
        self._register = register
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._watches: dict[str, _Watch] = {}
        self._streams: dict[str, StreamHandle] = {}
        self._members: dict[int, _Member] = {}
        self._downstreams: set[str] = set()
        self._attachments = 0
        self._settling = False
        self._goes_on = False
        self._served_last = -1
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._pump_waits = False
        self._writable = True
        self._standstill = WriteStall()
        self._member: OtherConnection | None = None
        self._lingering: LingeringClose | None = None

    # --- What others ask --------------------------------------------------------------------------

    @property
    def user(self) -> str:
        """The user; empty before login."""
        return self._session.user

    @property
    def vhost(self) -> str:
        """The vhost; empty before Open."""
        return self._session.vhost

    @property
    def tls(self) -> TlsPeer | None:
        """The peer's TLS parameters and certificate, None without TLS."""
        return self._session.tls

    @property
    def mechanism(self) -> str:
        """The SASL mechanism; empty before login."""
        return self._session.mechanism

    @property
    def state(self) -> str:
        """The state: `running`, or another one of RabbitMQ's."""
        return self._session.state.value

    @property
    def peer_properties(self) -> dict[str, str]:
        """The peer's properties."""
        return self._session.peer_properties

    @property
    def subscriptions(self) -> dict[int, Subscription]:
        """The subscriptions by id."""
        return self._session.subscriptions

    def offset_lag(self, subscription: Subscription) -> int:
        """The number of committed offsets that were not sent yet."""
        watch = self._watches.get(subscription.stream)
        return 0 if watch is None else max(0, watch.log.committed_offset - subscription.next_offset)

    @property
    def publishers(self) -> dict[int, StreamPublisher]:
        """The publishers by id."""
        return self._session.publishers

    @property
    def unsent_bytes(self) -> int:
        """Octets that wait for the socket: bounded, however slow the peer is."""
        return self._transport.get_write_buffer_size()

    @property
    def frame_max_bytes(self) -> int:
        """The largest frame that both sides agreed on."""
        return self._session.frame_max_bytes

    @property
    def heartbeat_s(self) -> int:
        """The heartbeat interval that both sides agreed on; 0 for none."""
        return self._session.heartbeat_s

    @property
    def unstored_bytes(self) -> int:
        """Published octets that wait for the disk."""
        return self._session.unstored_bytes

    def close(self, reason: str) -> None:
        """Send a close with the reason; `closed` is done when the connection is gone."""
        self._session.close(Code.OK, reason, self._now_ms())
        self._settle()

    def cut(self, reason: str) -> None:
        """End the connection without a close; the client may connect again."""
        self._leave_node()
        self._session.cut(reason)
        self._settle()

    def look_again(self) -> None:
        """Settle again, because something around the connection changed."""
        self._guarded(self._settle)

    def abort(self) -> None:
        """Close the socket at once."""
        self._transport.abort()

    # --- What the event loop calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a connected socket; the peer sends first."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        with contextlib.suppress(OSError):
            # The kernel finds dead peers without heartbeats, such as our own blocking client.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A peer that has gone already has no name.
        peer = transport.get_extra_info("peername") or ("", 0)
        here = transport.get_extra_info("sockname") or ("", 0)
        self.name = f"{peer[0]}:{peer[1]} -> {here[0]}:{here[1]}"
        self.proxied_by = transport.get_extra_info("proxied_by") or ""
        self._session = StreamClientConnection(
            self._host,
            is_loopback(peer[0]),
            *self._limits,
            self._now_ms(),
            tls_peer(transport),
            self._host.stream_errors,
        )
        self._recovered = RecoveredPublishes(self._host, self._session)
        self._register[self] = None
        connection_log.accepted(self.name, "stream")
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Take octets from the socket."""
        self.octets_received += len(data)
        if self._lingering is not None:
            self._lingering.drop(len(data))
            return
        self._guarded(partial(self._receive, data))

    def pause_writing(self) -> None:
        """Pause all reads, from the peer and for it, because it takes less than it is sent."""
        self._writable = False
        self._pace()

    def resume_writing(self) -> None:
        """Resume reads, because the peer has caught up."""
        self._writable = True
        self._guarded(self._settle)

    def connection_lost(self, error: Exception | None) -> None:
        """Release everything, because the socket is gone."""
        if self._lingering is not None:
            self._lingering.over()
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._watches):
            self._watches.pop(stream).release()
        for number in list(self._members):
            self._leave(number)
        self._register.pop(self, None)
        for reference in self._downstreams:
            self._host.downstream_left(self.vhost, reference)
        self._leave_node()
        reason = self._session.close_reason or (
            str(error) if error else "the peer hung up" if self.user else ""
        )
        connection_log.closed(self.name, self.user, self.vhost, reason[:200])
        if not self.closed.done():
            self.closed.set_result(None)

    # --- Steps ------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; a bug in it ends this connection and not the node."""
        if self.closed.done():
            return
        try:
            step()
        except Exception:
            log.exception("connection_failed name=%s action=dropped", self.name)
            self._transport.abort()

    def _receive(self, data: bytes) -> None:
        before = self._session.state
        effects = self._session.receive(data, self._now_ms())
        if before is not StreamConnectionState.OPEN and self._session.state is StreamConnectionState.OPEN:
            self._member = OtherConnection(self._host.connections, self.user, self.vhost, self.cut)
            connection_log.authenticated(self.name, self.user, self.vhost)
        self._flush()
        for effect in effects:
            self._perform(effect)
        self._settle()
        if self._session.is_turn_over and not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._guarded, self._go_on)

    def _go_on(self) -> None:
        """Others had their turn."""
        self._goes_on = False
        if self._lingering is None:
            self._receive(b"")

    def _leave_node(self) -> None:
        if self._member is not None:
            self._member.leave()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case StoreBatch():
                self._write(effect)
            case Append():
                self._append(effect)
            case AskSequence():
                self._ask_sequence(effect)
            case KeepOffset():
                self._keep_offset(effect)
            case Subscribed() if subscription := self._session.subscriptions.get(effect.number):
                self._read(subscription.stream)
                self._join(effect.number, subscription)
            case Declared():
                self._watch(effect.stream)
            case SteppedDown() if member := self._members.get(effect.number):
                member.groups.stepped_down(member.key, member)
            case AskOffset():
                self._ask_offset(effect)
            case ChangeStreams():
                self._host.when_may_change(partial(self._guarded, partial(self._change, effect)))
            case SendResponse():
                answer = partial(self._session.answer, effect.response)
                self._host.when_durable(partial(self._guarded, partial(self._then_settle, answer)))

    def _change(self, change: ChangeStreams) -> None:
        effects = self._session.change(change)
        self._flush()
        for effect in effects:
            self._perform(effect)
        self._settle()

    def _then_settle(self, step: Callable[[], None]) -> None:
        """Change the session now, and settle at the end of this turn of the loop."""
        step()
        if not self._settling:
            self._settling = True
            self._loop.call_soon(self._guarded, self._settle)

    def _write(self, write: StoreBatch) -> None:
        counters, count = self._host.stream_counters, len(write.ids)
        write.publisher.published += count
        counters.publish += count
        counters.publish_confirm += count
        write.batch.done = partial(self._written, write)
        stream = self._streams.get(write.publisher.queue)
        if write.publisher.is_cut:
            # An earlier batch of the same read failed: what comes behind it must not be stored without it.
            write.batch.done(NotFound(f"publisher {write.publisher.number} is gone"))
        elif stream is None:
            write.batch.done(NotFound(f"stream '{write.publisher.queue}' is gone"))
        elif self._host.refuses_publishes:
            write.batch.done(PreconditionFailed("too few followers are in sync; see replication.min_in_sync"))
        else:
            stream.publish(write.batch)

    def _written(self, write: StoreBatch, error: LeveretError | None) -> None:
        count = len(write.ids)
        if error is None:
            write.publisher.confirmed += count
            self._host.stream_counters.confirm += count
            step = partial(self._session.stored, write)
        else:
            write.publisher.errored += count
            step = partial(self._not_written, write, error)
        self._guarded(partial(self._then_settle, step))

    def _not_written(self, write: StoreBatch, error: LeveretError) -> None:
        """Report a batch that is not stored.

        After a change of leaders the client publishes it again by itself. So does a publisher with a reference, whose
        later batches must not be stored before that: by their higher ids this batch would count as stored, too.
        """
        publisher = write.publisher
        is_repeated = bool(publisher.reference) or isinstance(error, LedElsewhere)
        if is_repeated and self._session.publishers.get(publisher.number) is publisher:
            # Clients look the stream up again if it is told to be not available.
            self._drop(publisher.queue, error if isinstance(error, NotFound) else NotFound(str(error)))
        self._session.not_stored(write, error)

    def _keep_offset(self, effect: KeepOffset) -> None:
        if effect.stream == OUTGOING_STREAM:
            if effect.reference not in self._downstreams and len(self._downstreams) < _DOWNSTREAMS_MAX:
                self._downstreams.add(effect.reference)
                self._host.downstream_came(self.vhost, effect.reference)
            self._host.store_offset(self.vhost, effect.reference, effect.offset)
            return
        try:
            stream = self._streams.get(effect.stream) or self._host.stream(self.vhost, effect.stream)
        except LeveretError as error:
            log.info("offset_not_kept name=%s stream=%s error=%s", self.name, effect.stream, error)
        else:
            stream.store_offset(effect.reference, effect.offset)

    def _ask_offset(self, ask: AskOffset) -> None:
        """Send a reader's offset once the leader of its stream has said it."""

        def found(offset: int | LeveretError | None) -> None:
            self._guarded(partial(self._then_settle, partial(self._session.offset_found, ask, offset)))

        try:
            stream = self._streams.get(ask.stream) or self._host.stream(self.vhost, ask.stream)
        except LeveretError as error:
            found(error)
        else:
            stream.ask_offset(ask.reference, found)

    def _append(self, append: Append) -> None:
        done = partial(self._guarded, partial(self._stored, append))

        def failed(error: LeveretError) -> None:
            self._guarded(partial(self._then_settle, partial(self._not_stored, append, error)))

        try:
            self._recovered.append(append, done, failed)
        except LeveretError as error:
            self._not_stored(append, error)

    def _not_stored(self, append: Append, error: LeveretError) -> None:
        log.warning("stream_not_written name=%s stream=%s error=%s", self.name, append.publisher.queue, error)
        self._session.not_stored(append, error)

    def _ask_sequence(self, asked: AskSequence) -> None:
        """Answer with the last number of a publisher, which the leader of its stream or queue knows."""

        def answer(code: Code, last: int) -> None:
            response = QueryPublisherSequenceResponse(asked.correlation, code, last)
            self._guarded(partial(self._then_settle, partial(self._session.answer, response)))

        def failed(error: LeveretError) -> None:
            log.warning("stream_not_asked name=%s stream=%s error=%s", self.name, asked.queue, error)
            answer(code_of(error), 0)

        def found(last: int | LeveretError | None) -> None:
            if isinstance(last, LeveretError):
                failed(last)
            else:
                answer(Code.OK, last or 0)

        try:
            if asked.of_stream:
                self._host.stream(self.vhost, asked.queue).ask_sequence(asked.reference, found)
                return
            queue = self._host.recovery_queue(self.user, self.vhost, asked.queue)
            queue.ask_sequence(asked.reference, partial(answer, Code.OK), failed)
        except LeveretError as error:
            failed(error)

    def _stored(self, append: Append) -> None:
        self._then_settle(partial(self._session.stored, append))

    def _read(self, stream: str) -> None:
        """Watch a log for a reader; the publishers of a stream may watch it without a copy, from before it came."""
        handle = self._streams.get(stream)
        if handle is not None and not handle.is_readable:
            self._watches.pop(stream).release()
        self._watch(stream)

    def _watch(self, stream: str) -> None:
        if stream in self._watches:
            return
        served: ServedLog
        try:
            if stream == OUTGOING_STREAM:
                served = self._host.outgoing_log(self.user, self.vhost)
            else:
                handle = self._streams[stream] = self._host.stream(self.vhost, stream)
                served = handle.log
        except LeveretError as error:
            self._drop(stream, error)
            return
        self._watches[stream] = _Watch(served, served.on_commit(self._wake))

    def _drop(self, stream: str, error: LeveretError) -> None:
        level = logging.INFO if isinstance(error, Refusal) else logging.ERROR
        log.log(level, "stream_ended name=%s stream=%s error=%s", self.name, stream, error)
        self._session.stream_gone(stream, error)

    def _join(self, number: int, subscription: Subscription) -> None:
        """Add a subscription of a group to its group."""
        stream = self._streams.get(subscription.stream)
        if subscription.group and (number not in self._members) and stream is not None:
            member = self._members[number] = _Member(self, number, subscription, stream.groups)
            member.groups.join(member.key, member, subscription.partition)

    def _leave(self, number: int) -> None:
        member = self._members.pop(number)
        member.groups.leave(member.key, member)

    def update_consumer(self, member: _Member, active: bool) -> None:
        """Activate or stop a subscription, as its group decides."""

        def report() -> None:
            if self._session.subscriptions.get(member.number) is member.subscription:
                self._session.consumer_update(member.number, active)

        self._guarded(partial(self._then_settle, report))

    def end_consumer(self, member: _Member) -> None:
        """End the subscription of a member whose group is gone, with all that the peer has of its stream."""
        stream = member.subscription.stream
        error = LedElsewhere(f"stream '{stream}' has another leader, which has no such group yet")
        self._guarded(partial(self._then_settle, partial(self._drop, stream, error)))

    def _settle(self) -> None:
        """Adjust socket, logs and timers to the session's state."""
        self._settling = False
        self._flush()
        if self._attachments != self._session.attachments:
            self._attachments = self._session.attachments
            self._detach()
        if self._session.state is StreamConnectionState.CLOSED:
            self._hang_up()
            return
        self._pace()
        self._arm()
        if self._watches:
            self._wake()

    def _detach(self) -> None:
        """Release logs without subscriptions and publishers, and leave their groups."""
        for stream in self._watches.keys() - self._session.streams:
            self._watches.pop(stream).release()
            self._streams.pop(stream, None)
        for number, member in list(self._members.items()):
            subscription = self._session.subscriptions.get(number)
            if subscription is not member.subscription:
                self._leave(number)
                if subscription is not None:
                    self._join(number, subscription)

    def _flush(self) -> None:
        output = self._session.take_output(self._now_ms())
        if output and not self._transport.is_closing():
            self.octets_sent += sum(map(len, output))
            self._transport.writelines(output)

    def _hang_up(self) -> None:
        if self._transport.is_closing() or self._lingering is not None:
            return
        if self._session.has_answered_close:
            # Another thread of the client may still publish.
            self._lingering = LingeringClose(self._transport, peer_closes=False)
            self._transport.resume_reading()
        else:
            self._transport.close()
            # A peer that does not take its output in time does not keep the socket.
            self._timer_at(self._loop.time() + FLUSH_TIMEOUT_S, self._transport.abort)

    def _pace(self) -> None:
        """Read from the peer, or pause reading."""
        publishes = any(each.to_stream for each in self._session.publishers.values())
        wanted = self._writable and self._session.takes_more and not (publishes and self._host.is_blocked)
        if wanted != self._session.reading and not self._transport.is_closing():
            self._session.set_reading(wanted, self._now_ms())
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    # --- Chunks -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Call `_pump` once, soon."""
        if not self._pump_waits:
            self._pump_waits = True
            self._loop.call_soon(self._guarded, self._pump)

    def _pump(self) -> None:
        """Read once for each subscription that can take chunks; again after the loop has served others."""
        self._pump_waits = False
        self._look_for_deleted()
        progress = False
        for number in self._turns():
            if not self._writable:
                return
            progress |= self._deliver(number)
        if progress:
            self._wake()

    def _look_for_deleted(self) -> None:
        for stream, watch in list(self._watches.items()):
            if watch.log.is_closed:
                self._drop(stream, watch.log.ended)
                self._settle()

    def _turns(self) -> list[int]:
        """All subscriptions, the last served at the end: so a full buffer stops another one next time."""
        numbers = sorted(self._session.subscriptions)
        split = bisect_right(numbers, self._served_last)
        return numbers[split:] + numbers[:split]

    def _deliver(self, number: int) -> bool:
        subscription = self._session.subscriptions.get(number)
        watch = self._watches.get(subscription.stream) if subscription is not None else None
        if subscription is None or watch is None or not subscription.wanting:
            return False
        try:
            if subscription.next_offset >= watch.log.committed_offset:
                return False
            bytes_max = min(READ_BYTES_MAX, subscription.credit * READ_BYTES_PER_CREDIT)
            chunks = watch.log.read(subscription.next_offset, bytes_max)
        except LeveretError as error:
            self._drop(subscription.stream, error)
            self._settle()
            return False
        before = subscription.consumed
        self._session.deliver(number, chunks, watch.log.last_chunk_id)
        self._host.stream_counters.deliver_no_ack += subscription.consumed - before
        self._served_last = number
        self._flush()
        return bool(chunks)

    # --- Time -------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Schedule `_tick` at the session's deadline or earlier."""
        deadline = self._session.next_deadline_ms()
        if deadline is None:
            return
        # One millisecond later, because the session's clock is truncated to milliseconds.
        when = (deadline + 1) / 1000
        if self._timer is None or when < self._timer_due_s:
            self._timer_at(when, partial(self._guarded, self._tick))

    def _tick(self) -> None:
        self._timer = None
        if self._takes_nothing():
            self._session.cut("missed heartbeats from client, which does not read")
            self._transport.abort()
            return
        self._session.tick(self._now_ms())
        self._settle()

    def _takes_nothing(self) -> bool:
        if self._writable or not self.heartbeat_s:
            self._standstill.is_read()
            return False
        return self._standstill.is_lasting(self.unsent_bytes, self._now_ms(), self.heartbeat_s * 1000)

    def _timer_at(self, when: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # The time is kept here, because uvloop's handle of a call that is due at once has none.
        self._timer, self._timer_due_s = self._loop.call_at(when, call), when
