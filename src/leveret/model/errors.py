"""All errors that Leveret raises on purpose, in one tree.

The core raises a `Refusal`, which knows no protocol. Each listener has one table from refusals to its own codes (AMQP
reply code, stream response code, HTTP status, exit status).
"""

from __future__ import annotations


class LeveretError(Exception):
    """The base of all expected errors. The text names the failure, the place and the remedy."""


class PeerError(LeveretError):
    """The peer broke its protocol: its session ends, the node goes on."""


class Refusal(LeveretError):
    """The node declines a valid request."""


class NotFound(Refusal):
    """The named entity does not exist."""


class AccessRefused(Refusal):
    """The user lacks the permission."""


class AuthenticationFailed(Refusal):
    """The credentials are wrong, or not allowed from the client's address."""


class ResourceLocked(Refusal):
    """The entity belongs to another connection alone."""


class PreconditionFailed(Refusal):
    """The entity exists with other properties than the request has, or a condition of the request does not hold."""


class NotAllowed(Refusal):
    """The request makes no sense on this connection."""


class Unsupported(Refusal):
    """This type of queue does not support the request."""


class InvalidCommand(Refusal):
    """The request is well-formed, but its content is invalid."""


class LedElsewhere(Refusal):
    """Another node of the cluster leads the queue, or no node leads it now."""


class StorageError(LeveretError):
    """A log cannot be served; the files on disk stay as they are."""


class Corrupt(StorageError):
    """The octets on disk differ from the octets written.

    Attributes:
        log: directory of the log.
        offset: first offset that cannot be read.
        byte: position in the segment file.
    """

    def __init__(self, log: str, segment: str, offset: int, byte: int, what: str) -> None:
        super().__init__(
            f"log {log}: damaged chunk in segment {segment} at byte {byte} (offset {offset}): {what}; "
            "nothing was changed, restore this segment from a copy or move the log aside"
        )
        self.log = log
        self.segment = segment
        self.offset = offset
        self.byte = byte


class ConfigError(LeveretError):
    """A setting is unknown or malformed. The text names its key, its place and the allowed values."""
