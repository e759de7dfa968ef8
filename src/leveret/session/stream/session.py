"""The shared base of a stream connection's commands: the peer, its subscriptions and publishers, and the output.

This is the lower half of `connection.StreamClientConnection`. The modules that serve commands use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from leveret.core.queues.stream import LogBounds
from leveret.model.errors import LedElsewhere
from leveret.session.certificate import TlsPeer
from leveret.session.stream.types import (
    Effect,
    Operation,
    StreamAuthority,
    StreamBook,
    StreamConnectionState,
    StreamPublisher,
    Subscription,
)
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.stream.codec import Code, StreamCommand
from leveret.wire.stream.deliver import deliver_head, deliver_head_2
from leveret.wire.stream.frames import FrameDecoder

UNOPENED_FRAME_BYTES_MAX: Final = 8192
"""The largest frame of a peer that has not logged in."""
CONFIRMED_BYTES: Final = 8
FAILED_BYTES: Final = 10
"""The octets of a publishing id in a PublishConfirm, and in a PublishError with its code."""
_PUBLISHED_HEAD_BYTES: Final = 13
"""The octets of either before its ids, with the frame's length."""


@dataclass(slots=True)
class StreamSession:
    """See the module.

    Attributes:
        attachments: rises whenever a subscription or publisher is added or removed.
        updating: the unanswered ConsumerUpdates: (subscription id, subscription, active) by correlation.
        effects: the runtime's next actions, in order.
        is_turn_over: whether commands of the peer wait until other clients have been served.
        errors: the number of sent codes other than OK; shared by all sessions of the node.
    """

    authority: StreamAuthority
    from_loopback: bool
    frame_max_bytes: int
    heartbeat_s: int
    started_ms: int
    tls: TlsPeer | None = None
    errors: Counter[int] = field(default_factory=Counter)
    mechanism: str = ""
    state: StreamConnectionState = StreamConnectionState.START
    user: str = ""
    vhost: str = ""
    peer_properties: dict[str, str] = field(default_factory=dict)
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    publishers: dict[int, StreamPublisher] = field(default_factory=dict)
    updating: dict[int, tuple[int, Subscription, bool]] = field(default_factory=dict)
    updates: int = 0
    attachments: int = 0
    effects: list[Effect] = field(default_factory=list)
    deliver_version: int = 1
    unstored_bytes: int = 0
    reading: bool = True
    close_reason: str = ""
    has_answered_close: bool = False
    is_turn_over: bool = False
    _decoder: FrameDecoder = field(default_factory=lambda: FrameDecoder(UNOPENED_FRAME_BYTES_MAX))
    _output: list[bytes | memoryview] = field(default_factory=list)

    def require(self, operation: Operation, name: str) -> None:
        """Raises AccessRefused."""
        self.authority.check(self.user, self.vhost, operation, name)

    def stream(self, name: str, operation: Operation) -> StreamBook:
        """A stream that the user may read or write, which needs a leader.

        Raises AccessRefused, NotFound, LedElsewhere, StorageError.
        """
        self.require(operation, name)
        found = self.authority.stream(self.vhost, name)
        if operation == "write" and not found.is_writable:
            raise LedElsewhere(f"stream '{name}' in vhost '{self.vhost}' has no leader now")
        return found

    def log(self, stream: str) -> LogBounds:
        """The log with this name, if the user may read it.

        Raises AccessRefused, NotFound, LedElsewhere, StorageError.
        """
        if stream == OUTGOING_STREAM:
            return self.authority.outgoing_log(self.user, self.vhost)
        found = self.stream(stream, "read")
        if not found.is_readable:
            raise LedElsewhere(
                f"this node has no replica of stream '{stream}' in vhost '{self.vhost}': connect to one that has"
            )
        return found.log

    def require_readable(self, stream: str) -> None:
        """Check that the user may read the log with this name, which may be at other nodes.

        Raises AccessRefused, NotFound, StorageError.
        """
        if stream == OUTGOING_STREAM:
            self.authority.outgoing_log(self.user, self.vhost)
        else:
            self.stream(stream, "read")

    def allow_frames(self, bytes_max: int) -> None:
        """Allow frames up to this size from now on."""
        self._decoder.frame_max_bytes = max(self._decoder.frame_max_bytes, bytes_max)

    def send(self, command: StreamCommand) -> None:
        """Send a command, after all earlier ones."""
        code = getattr(command, "code", Code.OK)
        if code != Code.OK:
            self.errors[code] += 1
        self._output.append(command.encode())

    def fitting(self, ids: Sequence[int], each_bytes: int) -> Iterator[Sequence[int]]:
        """Publishing ids in parts that each fit a frame, of so many octets each."""
        most = max(1, (self.frame_max_bytes - _PUBLISHED_HEAD_BYTES) // each_bytes)
        return (ids[first : first + most] for first in range(0, len(ids), most))

    def send_chunk(self, number: int, chunk: bytes | memoryview, committed_chunk_id: int) -> None:
        """Send a Deliver."""
        if self.deliver_version == 1:
            head = deliver_head(number, len(chunk))
        else:
            head = deliver_head_2(number, len(chunk), committed_chunk_id)
        self._output += (head, chunk)
