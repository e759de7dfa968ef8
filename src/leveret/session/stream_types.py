"""What a stream session and its runtime say to each other: questions, what is held, effects, codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

from leveret.model.errors import (
    AccessRefused,
    AuthenticationFailed,
    InvalidCommand,
    LeveretError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    StorageError,
)
from leveret.wire.stream.codec import Code

CODES: Final[dict[type[LeveretError], Code]] = {
    AccessRefused: Code.ACCESS_REFUSED,
    AuthenticationFailed: Code.AUTHENTICATION_FAILURE,
    InvalidCommand: Code.PRECONDITION_FAILED,
    NotAllowed: Code.PRECONDITION_FAILED,
    NotFound: Code.STREAM_DOES_NOT_EXIST,
    PreconditionFailed: Code.PRECONDITION_FAILED,
    ResourceLocked: Code.ACCESS_REFUSED,
    StorageError: Code.STREAM_NOT_AVAILABLE,
}


def code_of(error: LeveretError) -> Code:
    """The response code for a refusal, or for a log that cannot be served."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), Code.INTERNAL_ERROR)


class LogBounds(Protocol):
    """What a log that is served has, without reading it."""

    @property
    def first_offset(self) -> int:
        """First offset retained."""

    @property
    def committed_offset(self) -> int:
        """The offset after the last one that is durable; chunks from it on are not served."""

    @property
    def last_chunk_id(self) -> int:
        """First offset of the last durable chunk, -1 when there is none."""

    @property
    def last_timestamp_ms(self) -> int:
        """Time of that chunk."""

    @property
    def bytes(self) -> int:
        """Octets retained."""

    def offset_at(self, timestamp_ms: int) -> int:
        """First offset of the first chunk that is not older."""


class SequenceBook(Protocol):
    """What a queue that takes recovered messages knows of them."""

    def last_sequence(self, reference: str) -> int:
        """The last publishing id stored under `reference`, 0 when there is none."""


class StreamAuthority(Protocol):
    """Answers a session's questions at once; its refusals are told to the peer as codes."""

    @property
    def node_name(self) -> str:
        """This node."""

    @property
    def advertised_host(self) -> str:
        """Where clients are told to find this node."""

    @property
    def advertised_port(self) -> int:
        """And at which port."""

    def authenticate(self, username: str, password: str, from_loopback: bool) -> str:
        """The user's name, or AuthenticationFailed."""

    def open_vhost(self, user: str, vhost: str) -> None:
        """NotFound, AccessRefused."""

    def outgoing_log(self, user: str, vhost: str) -> LogBounds:
        """NotFound: the vhost is not replicated. AccessRefused: no permission to read."""

    def recovery_queue(self, user: str, vhost: str, queue: str) -> SequenceBook:
        """AccessRefused, NotFound."""

    def query_offset(self, vhost: str, reference: str) -> int | None:
        """The offset stored last."""


class State(Enum):
    """Where a connection is."""

    START = "start"
    GREETED = "greeted"
    AUTHENTICATING = "authenticating"
    TUNING = "tuning"
    TUNED = "tuned"
    OPEN = "running"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(slots=True)
class Subscription:
    """What a peer still wants of a log: chunks from `next_offset` to before `until`, while it has credit."""

    stream: str
    next_offset: int
    credit: int
    whole: bool
    until: int | None

    @property
    def wanting(self) -> bool:
        """Whether a chunk may be delivered now, if there is one."""
        return self.credit > 0 and (self.until is None or self.next_offset < self.until)


@dataclass(slots=True, eq=False)
class Publisher:
    """A peer's right to publish to a queue under a reference."""

    number: int
    reference: str
    queue: str


@dataclass(slots=True, eq=False)
class Append:
    """Store these (publishing id, stored message) in order, then call `StreamSession.stored`."""

    publisher: Publisher
    entries: list[tuple[int, bytes]]
    octets: int


@dataclass(slots=True)
class KeepOffset:
    """Note how far the reader `reference` has come."""

    reference: str
    offset: int


@dataclass(slots=True)
class Subscribed:
    """Look at the log for this subscription, as long as the session has it."""

    number: int


Effect: TypeAlias = Append | KeepOffset | Subscribed
