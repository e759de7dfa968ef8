"""Recovers into any AMQP 0-9-1 broker: each queue in order, each message once.

Such a broker keeps no publishing ids. A durable file beside the plan replaces them:

    progress/<queue>.json   number of messages in the queue before the first of ours, number of confirmed ones

If a restarted publisher finds more messages in the queue than these two numbers explain, it reads the queue
(`browse`). Messages of ours behind the confirmed ones have arrived. A message is skipped only if the next of
those has the same content. So the publisher never skips a message that is missing, even if others publish, consume
or have messages refused. A queue that cannot be read - it is not classic, or it has a consumer - or that lacks
expected messages gets everything behind the confirmed ones again. Then the messages in flight, WINDOW at most, may
be duplicated, and are counted as in doubt.

A stream is read in the same case, and the messages of ours in it are counted, whatever else it has. Their exchange
identifies them. The publisher takes another exchange after every SPAN messages, once all earlier ones are
confirmed, so that at most one span of the stream has to be read. An entry of a stream may be many messages; a
restart may continue in the middle of one. A queue's messages get another exchange when the queue no longer has all
messages of the one before.

A queue that exclusively belongs to the publisher's connection is the lock: of two publishers to one queue, one
considered dead, the second waits for the end of the first one's connection.

A message keeps its routing key, properties and body. It is published to a fanout exchange of the plan, which has
only this queue bound and is deleted afterwards. So the exchange's name is the one property that changes.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from leveret.model.errors import AccessRefused, LeveretError, NotFound, ResourceLocked, StorageError
from leveret.pipeline.archive.documents import read_document, write_document
from leveret.pipeline.files.files import Place, make_directory
from leveret.pipeline.jobs.job import AmqpTarget
from leveret.pipeline.target_broker.browse import Found, QueueDeclaration, browse, digest_of, is_classic
from leveret.pipeline.target_broker.confirms import UnconfirmedTags
from leveret.pipeline.target_broker.connection import AmqpConnection, AmqpConnectionLost, ClientChannel
from leveret.pipeline.target_broker.streams import (
    EntryReader,
    MessageDeclined,
    count_from,
    declare_stream,
    end_of,
    is_stream,
)
from leveret.wire.record import RECOVERY_STREAM_PREFIX, StoredMessage
from leveret.wire.stream.publish import MessageRun

WINDOW: Final = 1000
"""The most messages of a queue in flight; also the interval of durable progress."""
SPAN: Final = 50_000
"""The messages to a stream through one exchange; a restart reads at most so many."""
SETTLED_S: Final = 1.0
"""A queue whose count is constant for so long has taken everything that its earlier publisher sent."""
_LOOKS: Final = 5
_RETRY_S: Final = 0.25
_NAME_CHARS_MAX: Final = 120
_DIGEST: Final = "sha256-"
_CHANNELS: Final = 3
"""The most channels that are open at once for one more queue."""


class QueueProgress(msgspec.Struct, kw_only=True):
    """The progress of a queue.

    Attributes:
        held: the messages in it before the first of ours; for a stream, the offset before which none is ours.
        confirmed: the number of ours that are durable there.
        in_doubt: the number that may be there twice.
        messages: the number of messages in the confirmed ones: more, if some are a stream's batches.
        span: the number of the present exchange.
        since: the number of messages through earlier exchanges.
    """

    held: int
    confirmed: int = 0
    in_doubt: int = 0
    messages: int = 0
    span: int = 0
    since: int = 0

    def __post_init__(self) -> None:
        """Complete a file of an earlier version, which does not count messages."""
        self.messages = max(self.messages, self.confirmed)


class NotAtTarget(LeveretError):
    """The next message is missing at the target, for a client that does not send."""


class AmqpClient:
    """publish.IngestClient: a connection to the target.

    Args:
        vhost: the messages' vhost in the archive.
        progress: the directory of a plan's progress.
        totals: the number of messages for each queue.
        timeout_s: the time for a connection, or for a lock that another publisher holds.
        sends: false only to look at the present messages.
        on_blocked: see AmqpConnection.
    """

    def __init__(
        self,
        target: AmqpTarget,
        vhost: str,
        progress: Place,
        totals: Mapping[str, int],
        timeout_s: float,
        *,
        sends: bool = True,
        on_blocked: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._target = target
        self._vhost = vhost
        self._progress = progress
        self._totals = totals
        self._timeout_s = timeout_s
        self._sends = sends
        self._publishers: list[AmqpPublisher] = []
        self._on_blocked = on_blocked
        self._connections: list[AmqpConnection] = []
        make_directory(progress)
        self._connection = self._connect()

    def _connect(self) -> AmqpConnection:
        """One more connection, which has the channels and the locks of the next publishers."""
        made = connect(self._target, self._vhost, self._timeout_s, on_blocked=self._on_blocked)
        self._connections.append(made)
        return made

    def declare_publisher(self, reference: str, stream: str) -> AmqpPublisher:
        """Lock a queue, made if it is missing, and find its progress."""
        queue = stream.removeprefix(RECOVERY_STREAM_PREFIX)
        digest = hashlib.sha256(queue.encode()).hexdigest()[:12]
        if self._connection.channels and not self._connection.has_room(_CHANNELS):
            # Some brokers allow few channels on a connection.
            self._connection = self._connect()
        name = f"leveret.{reference}.{digest}"
        self._lock(f"leveret.recovery.{digest}.lock", queue)
        ready, consumers, is_new = self._find(queue)
        to_stream = self._is_stream(queue)
        path, total = progress_path(self._progress, queue), self._totals[queue]
        if to_stream:
            progress = ProgressFile(path, lambda: 0 if is_new else end_of(self._connection, queue))
            if progress.is_under_way(total):
                self._resume_stream(queue, name, progress)
        else:
            progress = ProgressFile(path, lambda: ready)
            if progress.is_under_way(total):
                # A stream's batch has an unknown number of messages.
                left = WINDOW if self._was_stream(queue) else total - progress.now.confirmed
                ready, consumers = self._settled(queue, ready, consumers)
                self._resume(queue, name, progress, Count(ready, consumers, min(WINDOW, left)))
        publisher = AmqpPublisher(
            self._connection, queue, name, progress, to_stream=to_stream, sends=self._sends
        )
        self._publishers.append(publisher)
        return publisher

    def close(self) -> None:
        """Release the locks of this client."""
        for connection in self._connections:
            connection.wait_for_no_alarm()
        try:
            for publisher in self._publishers:
                publisher.close()
        except LeveretError:
            pass  # The connection is gone with its locks; the next publisher cleans up.
        finally:
            for connection in self._connections:
                connection.close()

    def _lock(self, name: str, queue: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                channel = self._connection.open_channel()
                self._connection.declare_queue(channel, name, exclusive=True)
                self._connection.close_channel(channel)
                return
            except ResourceLocked as error:
                if time.monotonic() > deadline:
                    raise ResourceLocked(
                        f"{error}; another recovery uses queue '{queue}' there: wait for its end, then recover again"
                    ) from error
                time.sleep(_RETRY_S)

    def _settled(self, queue: str, ready: int, consumers: int) -> tuple[int, int]:
        """(messages, consumers) of the queue once no message is in flight to it.

        RabbitMQ's queues report a count before they take all earlier messages.
        """
        same_since = time.monotonic()
        deadline = same_since + self._timeout_s
        while time.monotonic() - same_since < SETTLED_S and time.monotonic() < deadline:
            time.sleep(SETTLED_S / _LOOKS)
            now, consumers, _ = self._find(queue)
            if now != ready:
                ready, same_since = now, time.monotonic()
        return ready, consumers

    def _find(self, queue: str) -> tuple[int, int, bool]:
        """(messages, consumers, whether it was made now) of the queue; it is made with this node's arguments.

        A broker that has just started may report a queue as missing for a while, and not make it either.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._find_now(queue)
            except NotFound:
                if self._arguments(queue) is None or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)

    def _find_now(self, queue: str) -> tuple[int, int, bool]:
        channel = self._connection.open_channel()
        try:
            found = self._connection.declare_queue(channel, queue)
        except NotFound:
            arguments = self._arguments(queue)
            if arguments is None:
                raise
            if self._was_stream(queue):
                declare_stream(self._connection, queue, arguments)
                return 0, 0, True
            channel = self._connection.open_channel()
            auto_delete = self._target.is_auto_delete(self._vhost, queue)
            found = self._connection.declare_queue(channel, queue, arguments, auto_delete=auto_delete)
            self._connection.close_channel(channel)
            return *found, True
        self._connection.close_channel(channel)
        return *found, False

    def _arguments(self, queue: str) -> dict[str, Any] | None:
        return self._target.queues.get(self._vhost, {}).get(queue)

    def _was_stream(self, queue: str) -> bool:
        """Whether it is a stream at this node."""
        return (self._arguments(queue) or {}).get("x-queue-type") == "stream"

    def _is_stream(self, queue: str) -> bool:
        """Whether it is a stream at the target.

        A user that may not declare it gets no answer, and needs none for others.
        """
        try:
            return is_stream(self._connection, queue)
        except AccessRefused:
            if self._was_stream(queue):
                raise
            return False

    def _resume(self, queue: str, name: str, progress: ProgressFile, count: Count) -> None:
        """Find our messages in a queue."""
        exchange = span_name(name, progress.now.span)
        found: Found | None = None
        if progress.has_more(count) and self._is_classic(queue):
            found = browse(self._connection, queue, exchange, count.ready, progress.known)
        progress.resume(count, found)
        self._end_span(name, progress, exchange)

    def _is_classic(self, queue: str) -> bool:
        """Whether it is surely a classic queue at the target."""
        arguments = self._arguments(queue)
        shape = None
        if arguments is not None:
            shape = QueueDeclaration(arguments, self._target.is_auto_delete(self._vhost, queue))
        return is_classic(self._connection, queue, shape)

    def _resume_stream(self, stream: str, name: str, progress: ProgressFile) -> None:
        """Find the number of our messages in a stream."""
        now = progress.now
        exchange, least = span_name(name, now.span), now.messages - now.since
        found = count_from(self._connection, stream, now.held + now.since, exchange, least, self._timeout_s)
        progress.resume_stream(now.since + found)
        self._end_span(name, progress, exchange)

    def _end_span(self, name: str, progress: ProgressFile, exchange: str) -> None:
        """Delete an exchange, if another one is used from now on."""
        if exchange != span_name(name, progress.now.span):
            channel = self._connection.open_channel()
            self._connection.delete_exchange(channel, exchange)
            self._connection.close_channel(channel)


class Count(NamedTuple):
    """A broker's counts of a queue.

    Attributes:
        under_way: the number of our messages that may be in it without a known confirm.
    """

    ready: int
    consumers: int
    under_way: int


class _Sent(NamedTuple):
    """A message in flight.

    Attributes:
        before: the number of messages before those of its id.
    """

    publishing_id: int
    before: int


class AmqpPublisher:
    """publish.IngestPublisher: messages to one queue.

    Attributes:
        last_sequence: the number of the plan's messages that are there already.
    """

    def __init__(
        self,
        connection: AmqpConnection,
        queue: str,
        name: str,
        progress: ProgressFile,
        *,
        to_stream: bool,
        sends: bool = True,
    ) -> None:
        self._sends = sends
        self.last_sequence = progress.now.confirmed
        self._connection = connection
        self._name = name
        self._progress = progress
        self._messages = self._whole = progress.now.messages
        self._there = progress.arrived
        self._found = progress.found
        self._span_end = progress.now.since + SPAN if to_stream else sys.maxsize
        self._sent: UnconfirmedTags[_Sent] = UnconfirmedTags()
        self._queue = queue
        self._entries = EntryReader(queue)
        self._channel: ClientChannel = connection.open_channel(self._on_settled)
        self._exchange = b""
        self._bind()

    def publish(self, run: MessageRun) -> None:
        """Send stored messages, in ascending order of ids; waits while too many are unconfirmed.

        Raises:
            MessageDeclined: the broker refused a message.
            NotAtTarget: a message would have to be sent.
            AmqpConnectionLost: unconfirmed messages may or may not be there; a new publisher finds out.
        """
        for publishing_id, stored in run.messages():
            before = self._messages
            for message in self._entries.messages(stored):
                self._messages += 1
                if self._is_there(message, before):
                    continue
                if not self._sends:
                    self._messages -= 1
                    raise NotAtTarget
                self._send(message, publishing_id, before)
            self.last_sequence, self._whole = publishing_id, self._messages

    def _is_there(self, message: StoredMessage, before: int) -> bool:
        if self._messages <= self._there:
            return True
        if not self._found:
            return False
        if self._found[0] == digest_of(message):
            self._found.popleft()
            return True
        # A consumer took an earlier one, or the broker refused this one.
        self._progress.doubt_behind(self._messages - 1)
        self._begin_span(before)
        return False

    def _send(self, message: StoredMessage, publishing_id: int, before: int) -> None:
        if self._messages > self._span_end:
            self._begin_span(before)
        if len(self._sent) >= WINDOW:
            self._wait(lambda: len(self._sent) > WINDOW // 2)
            self._note_confirmed(before)
        self._sent.sent(_Sent(publishing_id, before))
        self._connection.publish(
            self._channel, self._exchange, message.routing_key, message.header, message.body
        )

    def _bind(self) -> None:
        """Declare the exchange for further messages, and bind the queue to it."""
        name = span_name(self._name, self._progress.now.span)
        self._connection.declare_fanout(self._channel, name)
        self._connection.bind(self._channel, self._queue, name)
        self._exchange = name.encode()

    def _begin_span(self, before: int) -> None:
        """Continue with another exchange, once the messages of this one are there."""
        self._wait(lambda: bool(self._sent))
        self._note_confirmed(before)
        self._connection.delete_exchange(self._channel, self._exchange.decode())
        self._progress.begin_span(self._messages - 1)
        self._span_end += SPAN
        self._bind()

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        """Wait until every sent id up to `up_to` is durable at the broker."""
        self._wait(lambda: bool(self._sent) and self._sent.first.publishing_id <= up_to)
        self._note_confirmed(self._messages)

    @property
    def is_behind(self) -> bool:
        """Whether our messages behind `last_sequence` are there."""
        return self._there > self._messages or bool(self._found)

    def give_up(self) -> int:
        """Leave all messages behind `last_sequence`, which this returns, to another plan.

        Those in flight are in doubt.
        """
        there = max(self._there, self._messages) + len(self._found)
        self._progress.confirmed(self.last_sequence, self._whole)
        if there > self._whole:
            self._progress.doubt(there - self._whole, self._whole)
            self._progress.begin_span(there)
        return self.last_sequence

    def close(self) -> None:
        """Delete the exchange."""
        self._connection.delete_exchange(self._channel, self._exchange.decode())

    def _wait(self, too_many: Callable[[], bool]) -> None:
        while too_many():
            # A refusal may have been read while the connection waited for another queue.
            self._check_declined()
            self._connection.receive()
            self._check_declined()

    def _check_declined(self) -> None:
        if self._sent.declined:
            raise MessageDeclined(
                f"{self._connection.peer} did not take a message of queue '{self._queue}': see its limits "
                "(x-overflow, max-length) and its log; then recover again: the recovery goes on from there"
            )

    def _note_confirmed(self, messages: int) -> None:
        """Store the progress; `messages` is the number of messages up to `last_sequence`."""
        if self._sent:
            self._progress.confirmed(self._sent.first.publishing_id - 1, self._sent.first.before)
        else:
            self._progress.confirmed(self.last_sequence, messages)

    def _on_settled(self, tag: int, multiple: bool, taken: bool) -> None:
        self._sent.settle(tag, multiple=multiple, taken=taken)


class ProgressFile:
    """The durable progress of one queue.

    Attributes:
        arrived: the number of our messages that are there, confirmed or not.
        found: the digests of those behind them, in a queue.

    Raises:
        StorageError: the file cannot be read.
    """

    def __init__(self, path: Place, held: Callable[[], int]) -> None:
        """`held` gives the queue's number of messages, if none of ours was sent yet."""
        self._path = path
        self._is_new = not path.exists()
        self.now = QueueProgress(held=held()) if self._is_new else read_progress(path)
        # The first messages of a batch may have been confirmed with the span before.
        self.arrived = max(self.now.messages, self.now.since)
        self.found: deque[bytes] = deque()
        self._ready = self.now.held
        self._doubtful_end = 0
        if self._is_new:
            self._save()

    def is_under_way(self, total: int) -> bool:
        """Whether messages may have been sent without a known confirm."""
        return not self._is_new and self.now.confirmed < total

    def has_more(self, count: Count) -> bool:
        """Whether a queue without consumers has more than it held and than is known to have arrived."""
        return not count.consumers and count.ready - self.now.held > self.arrived

    @property
    def known(self) -> int:
        """The number of known messages through the present exchange."""
        return self.arrived - self.now.since

    def resume(self, count: Count, found: Found | None) -> None:
        """Take the messages that arrived in a queue, `found` if it was read; see the module."""
        self._ready = count.ready
        if found is not None and found.messages >= self.known:
            self.found.extend(found.digests)
            self._doubtful_end = self.arrived + count.under_way
            return
        more = count.ready - self.now.held - self.arrived
        is_consumed = count.consumers > 0 or more < 0 or found is not None
        if doubt := count.under_way if is_consumed else min(count.under_way, more):
            self.doubt(doubt, self.arrived)
            self.begin_span(self.arrived)

    def doubt_behind(self, sent: int) -> None:
        """Count possible duplicates, because the found messages differ from those sent behind the first `sent`."""
        self.doubt(max(len(self.found), self._doubtful_end - sent), sent)
        self.found.clear()

    def doubt(self, count: int, sent: int) -> None:
        """Count possible duplicates, with `sent` messages of ours there. The next span stores that."""
        self.now.in_doubt += count
        # Counted from the present number: a duplicate must not be taken for a later message.
        self.now.held = self._ready - sent

    def resume_stream(self, arrived: int) -> None:
        """The same for a stream in which so many of our messages were found."""
        now = self.now
        if arrived >= now.messages:
            self.arrived = arrived
        else:
            # Its retention dropped some already, or it is another stream.
            now.in_doubt += WINDOW
            self.begin_span(now.messages)

    def begin_span(self, since: int) -> None:
        """Use another exchange from now on, after so many messages."""
        self.now.span, self.now.since = self.now.span + 1, since
        self._save()

    def confirmed(self, up_to: int, messages: int) -> None:
        """Store that messages up to an id are durable there, and their number."""
        if up_to > self.now.confirmed:
            self.now.confirmed, self.now.messages = up_to, messages
            self._save()

    def _save(self) -> None:
        write_document(self._path, self.now)


def span_name(name: str, span: int) -> str:
    """The exchange of a span."""
    return f"{name}.{span}" if span else name


def read_progress(path: Place) -> QueueProgress:
    """The progress in a file.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        return read_document(path, QueueProgress)
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError(f"{path}: {error}; the progress of the recovery is unknown") from error


def give_up(path: Place, total: int) -> int:
    """As `AmqpPublisher.give_up`, for a queue that cannot be reached."""
    now = read_progress(path)
    now.in_doubt += min(WINDOW, total - now.confirmed)
    write_document(path, now)
    return now.confirmed


def progress_path(directory: Place, queue: str) -> Place:
    """The file of a queue's progress."""
    name = quote(queue, safe="")
    # A queue may have the digest of another one's name as its name.
    if len(name) > _NAME_CHARS_MAX or name.startswith(_DIGEST):
        name = _DIGEST + hashlib.sha256(queue.encode()).hexdigest()
    return directory / f"{name}.json"


def connect(
    target: AmqpTarget,
    vhost: str,
    timeout_s: float,
    *,
    waits: bool = True,
    on_blocked: Callable[[str], None] = lambda reason: None,
) -> AmqpConnection:
    """A connection to the target; with `waits`, tries again while the target restarts.

    Raises:
        LeveretError: the target refuses, or did not answer for `timeout_s`.
    """
    deadline = time.monotonic() + (timeout_s if waits else 0)
    while True:
        try:
            return AmqpConnection(target, target.place_of(vhost), timeout_s, on_blocked)
        except (OSError, AmqpConnectionLost) as error:
            if time.monotonic() > deadline:
                raise AmqpConnectionLost(
                    f"{target.host}:{target.port} cannot be reached: {error}; recover again when it can: the "
                    "recovery goes on from there"
                ) from error
            time.sleep(_RETRY_S)
