"""Every error Leveret raises on purpose, in one tree.

The core raises `Refusal`s that know no protocol; each listener owns one table from refusal to its
own code (AMQP reply code, stream response code, HTTP status, exit status).
"""

from __future__ import annotations


class LeveretError(Exception):
    """Anything that is not a bug: its text names what, where and what to do."""


class PeerError(LeveretError):
    """The other side broke its protocol: its session ends, the node stays."""


class Refusal(LeveretError):
    """A lawful request that is declined."""


class NotFound(Refusal):
    """The named entity does not exist."""


class AccessRefused(Refusal):
    """The user may not do this."""


class AuthenticationFailed(Refusal):
    """The credentials are wrong, or not allowed from where they came."""


class ResourceLocked(Refusal):
    """The entity belongs exclusively to another connection."""


class PreconditionFailed(Refusal):
    """The entity exists but differs from what was asked, or a condition does not hold."""


class NotAllowed(Refusal):
    """The request makes no sense for this connection."""


class Unsupported(Refusal):
    """This kind of queue does not do that."""


class InvalidCommand(Refusal):
    """The request is well-formed but its content is not valid."""


class LedElsewhere(Refusal):
    """Another node of the cluster leads the queue, or none does now."""


class StorageError(LeveretError):
    """A log cannot be served; what is on disk is left as it is."""


class Corrupt(StorageError):
    """Bytes on disk are not what was written.

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
    """A setting is unknown or malformed; names its key, place and allowed values."""
