"""Recovering into a broker of any make: each queue in order, each message once, by AMQP 0-9-1.

Such a broker keeps no publishing ids. What takes their place is beside the plan, durable:

    progress/<queue>.json   how many messages the queue held before the first, how many are confirmed

A publisher that begins again counts the queue: what is in it beyond what it held before is what arrived, for
a channel's messages arrive in their order. If that cannot be - something is consumed or published there
meanwhile, or a broker that crashed lost what was not persistent - it goes on behind what was confirmed. Then
the messages that were under way, WINDOW at most, may be there twice, and are counted as in doubt.

A queue that exclusively belongs to the publisher's connection is the lock: of two publishers of one queue, one
thought dead, the second waits for the end of the first one's connection.

A message keeps its routing key, properties and body: it goes through a fanout exchange of the plan's own that
only its queue is bound to, and that is gone afterwards. The exchange's name is therefore another one.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from leveret.model.errors import LeveretError, NotFound, ResourceLocked, StorageError
from leveret.pipeline.amqp_connection import AmqpConnection, AmqpConnectionLost, Channel
from leveret.pipeline.files import Place, make_directory, write_durably
from leveret.pipeline.job import AmqpTarget
from leveret.wire.record import RECOVERY_STREAM_PREFIX, decode_message
from leveret.wire.stream.publish import MessageRun
from leveret.wire.stream_entry import unpack_entry

WINDOW: Final = 1000
"""Messages of a queue whose confirms are not waited for; also how often progress is made durable."""
SETTLED_S: Final = 1.0
"""A queue whose count stays the same for so long has taken all that was sent before its publisher ended."""
_LOOKS: Final = 5
_RETRY_S: Final = 0.25
_NAME_CHARS_MAX: Final = 120


class Declined(LeveretError):
    """The broker confirms that it did not take a message, or it is none for such a broker."""


class Progress(msgspec.Struct, kw_only=True):
    """How far a queue is.

    Attributes:
        held: messages in it before the first of ours.
        confirmed: so many of ours are durable there.
        in_doubt: so many may be there twice.
    """

    held: int
    confirmed: int = 0
    in_doubt: int = 0


class AmqpClient:
    """publish.Client: a connection to the target.

    Args:
        vhost: of the messages, in the archive.
        progress: the directory of a plan's progress.
        totals: how many messages each queue gets.
        timeout_s: how long to try for a connection, or for a lock that somebody else holds.
    """

    def __init__(
        self, target: AmqpTarget, vhost: str, progress: Place, totals: Mapping[str, int], timeout_s: float
    ) -> None:
        self._target = target
        self._vhost = vhost
        self._progress = progress
        self._totals = totals
        self._timeout_s = timeout_s
        self._publishers: list[AmqpPublisher] = []
        make_directory(progress)
        self._connection = connect(target, vhost, timeout_s)

    def declare_publisher(self, reference: str, stream: str) -> AmqpPublisher:
        """Lock a queue, made if it is not there, and see how far it is."""
        queue = stream.removeprefix(RECOVERY_STREAM_PREFIX)
        name = f"leveret.{reference}.{hashlib.sha256(queue.encode()).hexdigest()[:12]}"
        self._lock(f"{name}.lock")
        ready, consumers = self._find(queue)
        progress = ProgressFile(progress_path(self._progress, queue), ready)
        if progress.is_under_way(self._totals[queue]):
            progress.resume(*self._settled(queue, ready, consumers), self._totals[queue])
        publisher = AmqpPublisher(self._connection, queue, name, progress)
        self._publishers.append(publisher)
        return publisher

    def close(self) -> None:
        """Give back what was declared for this."""
        try:
            for publisher in self._publishers:
                publisher.close()
        except LeveretError:
            pass  # The connection is gone, and its locks with it; the next publisher clears up.
        finally:
            self._connection.close()

    def _lock(self, name: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                channel = self._connection.open_channel()
                self._connection.declare_queue(channel, name, exclusive=True)
                self._connection.close_channel(channel)
                return
            except ResourceLocked:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)

    def _settled(self, queue: str, ready: int, consumers: int) -> tuple[int, int]:
        """(messages, consumers) of the queue once nothing is on its way there any more.

        RabbitMQ's queues answer how many messages they have before they take those that came before the question.
        """
        same_since = time.monotonic()
        deadline = same_since + self._timeout_s
        while time.monotonic() - same_since < SETTLED_S and time.monotonic() < deadline:
            time.sleep(SETTLED_S / _LOOKS)
            now, consumers = self._find(queue)
            if now != ready:
                ready, same_since = now, time.monotonic()
        return ready, consumers

    def _find(self, queue: str) -> tuple[int, int]:
        """(messages, consumers) of the queue; it is made as this node has it if it is not there."""
        channel = self._connection.open_channel()
        try:
            found = self._connection.declare_queue(channel, queue)
        except NotFound:
            arguments = self._target.queues.get(self._vhost, {}).get(queue)
            if arguments is None:
                raise
            channel = self._connection.open_channel()
            found = self._connection.declare_queue(channel, queue, arguments)
        self._connection.close_channel(channel)
        return found


class AmqpPublisher:
    """publish.Publisher: messages to one queue.

    Attributes:
        last_sequence: so many of the plan's messages are there already.
    """

    def __init__(self, connection: AmqpConnection, queue: str, exchange: str, progress: ProgressFile) -> None:
        self.last_sequence = progress.now.confirmed
        self._connection = connection
        self._exchange = exchange
        self._progress = progress
        self._sent: deque[tuple[int, int]] = deque()
        self._early: set[int] = set()
        self._tag = 0
        self._declined = ""
        self._queue = queue
        self._channel: Channel = connection.open_channel(self._on_settled)
        connection.declare_fanout(self._channel, exchange)
        connection.bind(self._channel, queue, exchange)

    def publish(self, run: MessageRun) -> None:
        """Send stored messages, in ascending order of ids; waits while too many are unconfirmed.

        Raises:
            Declined: the broker did not take one.
            AmqpConnectionLost: what is not confirmed may or may not be there; ask a new publisher.
        """
        exchange = self._exchange.encode()
        for publishing_id, entry in run.messages():
            if len(self._sent) >= WINDOW:
                self._wait(lambda: len(self._sent) > WINDOW // 2)
                self._progress.confirmed(self._up_to())
            if unpack_entry(entry) is not None:
                raise Declined(
                    f"queue '{self._queue}' is a stream, whose entries AMQP 0-9-1 does not carry as they are: leave it "
                    "out, by naming the others with --queues"
                )
            message = decode_message(entry)
            self._tag += 1
            self._sent.append((self._tag, publishing_id))
            self._connection.publish(
                self._channel, exchange, message.routing_key, message.header, message.body
            )
            self.last_sequence = publishing_id

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        """Return when every id sent that is not above `up_to` is durable at the broker."""
        self._wait(lambda: bool(self._sent) and self._sent[0][1] <= up_to)
        self._progress.confirmed(self._up_to())

    def close(self) -> None:
        """Take the exchange away."""
        self._connection.delete_exchange(self._channel, self._exchange)

    def _wait(self, too_many: Callable[[], bool]) -> None:
        while too_many():
            self._connection.receive()
            if self._declined:
                raise Declined(self._declined)

    def _up_to(self) -> int:
        return self._sent[0][1] - 1 if self._sent else self.last_sequence

    def _on_settled(self, tag: int, multiple: bool, taken: bool) -> None:
        if not taken:
            self._declined = (
                f"{self._connection.peer} did not take a message of queue '{self._queue}': see its limits "
                "(x-overflow, max-length) and its log; recover again, it goes on from there"
            )
            return
        if multiple:
            while self._sent and self._sent[0][0] <= tag:
                self._early.discard(self._sent.popleft()[0])
            return
        self._early.add(tag)
        while self._sent and self._sent[0][0] in self._early:
            self._early.remove(self._sent.popleft()[0])


class ProgressFile:
    """The durable progress of one queue.

    Raises:
        StorageError: it cannot be read.
    """

    def __init__(self, path: Place, ready: int) -> None:
        self._path = path
        self._is_new = not path.exists()
        self.now = Progress(held=ready) if self._is_new else read_progress(path)
        if self._is_new:
            self._save()

    def is_under_way(self, total: int) -> bool:
        """Whether messages may have been sent that are not known to be confirmed."""
        return not self._is_new and self.now.confirmed < total

    def resume(self, ready: int, consumers: int, total: int) -> None:
        """Take up what arrived after the last that is known to be confirmed; see the module."""
        under_way = min(WINDOW, total - self.now.confirmed)
        arrived = ready - self.now.held
        if not consumers and 0 <= arrived - self.now.confirmed <= under_way:
            self.now.confirmed = arrived
        else:
            self.now.in_doubt += under_way
        self._save()

    def confirmed(self, up_to: int) -> None:
        """So many of ours are durable there."""
        if up_to > self.now.confirmed:
            self.now.confirmed = up_to
            self._save()

    def _save(self) -> None:
        write_durably(self._path, msgspec.json.encode(self.now))


def read_progress(path: Place) -> Progress:
    """What a progress file says.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError(f"{path}: {error}; how far the recovery was is not known") from error


def progress_path(directory: Place, queue: str) -> Place:
    """The file of a queue's progress."""
    name = quote(queue, safe="")
    if len(name) > _NAME_CHARS_MAX:
        name = "sha256-" + hashlib.sha256(queue.encode()).hexdigest()
    return directory / f"{name}.json"


def connect(target: AmqpTarget, vhost: str, timeout_s: float, *, waits: bool = True) -> AmqpConnection:
    """A connection to the target; one that restarts is waited for, unless not `waits`.

    Raises:
        LeveretError: it declines, or there was none for `timeout_s`.
    """
    deadline = time.monotonic() + (timeout_s if waits else 0)
    while True:
        try:
            return AmqpConnection(target, vhost if target.vhost is None else target.vhost, timeout_s)
        except (OSError, AmqpConnectionLost) as error:
            if time.monotonic() > deadline:
                raise AmqpConnectionLost(
                    f"{target.host}:{target.port} cannot be reached: {error}; recover again when it can, it "
                    "goes on from there"
                ) from error
            time.sleep(_RETRY_S)
