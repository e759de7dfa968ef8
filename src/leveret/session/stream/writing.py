"""Publishers of a stream session: declaring, publishing, confirming, deleting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leveret.core.queues.stream import StreamBatch
from leveret.model.errors import AccessRefused, LeveretError, PeerError
from leveret.session.stream.session import FAILED_BYTES, StreamSession
from leveret.session.stream.types import (
    Append,
    AskSequence,
    Declared,
    SequenceBook,
    StoreBatch,
    StreamPublisher,
    code_of,
)
from leveret.wire.record import OUTGOING_STREAM, RECOVERY_STREAM_PREFIX
from leveret.wire.staged_segment import STAGED_STREAM_PREFIX
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from leveret.wire.stream.fields import FailedPublish
from leveret.wire.stream.publish import VERSION_MAX, decode_published, run_of

RECOVERY_FRAME_BYTES_MAX: Final = 2**29 + 2**20
"""The largest frame of a peer with stored messages: each comes whole, as large as `max_message_size` allows."""
PUBLISH_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest frame of a publisher: clients ignore the agreed size when they batch, and RabbitMQ accepts that."""
REFERENCE_BYTES_MAX: Final = 255


def _book(session: StreamSession, stream: str) -> SequenceBook:
    """Raises NotFound, AccessRefused."""
    if stream.startswith(STAGED_STREAM_PREFIX):
        queue = stream.removeprefix(STAGED_STREAM_PREFIX)
        return session.authority.staged_queue(session.user, session.vhost, queue)
    if stream.startswith(RECOVERY_STREAM_PREFIX):
        queue = stream.removeprefix(RECOVERY_STREAM_PREFIX)
        return session.authority.recovery_queue(session.user, session.vhost, queue)
    if stream == OUTGOING_STREAM:
        session.log(stream)
        raise AccessRefused(f"stream '{stream}' is written by the node alone")
    return session.stream(stream, "write")


def declare_publisher(session: StreamSession, command: wire.DeclarePublisher) -> Code:
    """Add a publisher."""
    _book(session, command.stream)
    is_staged = command.stream.startswith(STAGED_STREAM_PREFIX)
    recovers = is_staged or command.stream.startswith(RECOVERY_STREAM_PREFIX)
    prefix = STAGED_STREAM_PREFIX if is_staged else RECOVERY_STREAM_PREFIX
    queue = command.stream.removeprefix(prefix) if recovers else command.stream
    publisher = StreamPublisher(command.publisher, command.reference, queue, not recovers, is_staged)
    in_use = {(each.reference, each.queue) for each in session.publishers.values() if each.reference}
    if (
        (recovers and not command.reference)
        or len(command.reference.encode()) > REFERENCE_BYTES_MAX
        or (publisher.reference, queue) in in_use
        or publisher.number in session.publishers
    ):
        return Code.PRECONDITION_FAILED
    session.publishers[publisher.number] = publisher
    if recovers:
        session.allow_frames(RECOVERY_FRAME_BYTES_MAX)
    else:
        session.allow_frames(PUBLISH_FRAME_BYTES_MAX)
        session.attachments += 1
        session.effects.append(Declared(queue))
    return Code.OK


def delete_publisher(session: StreamSession, command: wire.DeletePublisher) -> Code:
    """Remove a publisher."""
    gone = session.publishers.pop(command.publisher, None)
    session.attachments += 1
    return Code.PUBLISHER_UNKNOWN if gone is None else Code.OK


def query_sequence(session: StreamSession, command: wire.QueryPublisherSequence) -> None:
    """Send the last id of a publisher's reference; once the leader has told, if it is at another node."""
    code, sequence = Code.OK, 0
    try:
        book = _book(session, command.stream)
        asked = _asked_elsewhere(session, command)
        if asked is not None:
            session.effects.append(asked)
            return
        sequence = book.last_sequence(command.reference)
    except LeveretError as error:
        code = code_of(error)
    session.send(wire.QueryPublisherSequenceResponse(command.correlation, code, sequence))


def _asked_elsewhere(session: StreamSession, command: wire.QueryPublisherSequence) -> AskSequence | None:
    """The question to the leader of a queue, which may be any node, or of a stream at another one; None for none."""
    name = command.stream
    if name.startswith(RECOVERY_STREAM_PREFIX):
        return AskSequence(command.correlation, command.reference, name.removeprefix(RECOVERY_STREAM_PREFIX))
    if name.startswith(STAGED_STREAM_PREFIX) or not session.stream(name, "write").is_replica:
        return None
    return AskSequence(command.correlation, command.reference, name, of_stream=True)


def publish(session: StreamSession, frame: bytes) -> None:
    """Take the messages of an undecoded Publish frame.

    Raises:
        PeerError: the frame is malformed, or of an unserved version.
    """
    version = int.from_bytes(frame[2:4], "big")
    if not 1 <= version <= VERSION_MAX or len(frame) < 5:
        raise PeerError(f"Publish of {len(frame)} octets in version {version} is not served")
    publisher = session.publishers.get(frame[4])
    if publisher is not None and publisher.to_stream:
        _write(session, publisher, frame)
        return
    if publisher is None or version != 1:
        code = Code.PUBLISHER_UNKNOWN if publisher is None else Code.PRECONDITION_FAILED
        fail(session, frame[4], decode_published(frame).ids, code)
        return
    _recover(session, publisher, frame)


def _write(session: StreamSession, publisher: StreamPublisher, frame: bytes) -> None:
    """Publish to a stream; the messages of one read are one batch."""
    _, ids, entries, records, filters = decode_published(frame)
    octets = len(frame)
    last = session.effects[-1] if session.effects else None
    if (
        isinstance(last, StoreBatch)
        and last.publisher is publisher
        and (last.batch.filters is None) == (filters is None)
    ):
        last.batch.extend(ids, entries, records, filters or set())
        last.octets += octets
        session.unstored_bytes += octets
    elif ids and _may_write(session, publisher):
        batch = StreamBatch(publisher.reference.encode(), ids, entries, records, filters)
        session.effects.append(StoreBatch(publisher, batch, octets))
        session.unstored_bytes += octets
    elif ids:
        fail(session, publisher.number, ids, Code.ACCESS_REFUSED)


def _may_write(session: StreamSession, publisher: StreamPublisher) -> bool:
    """Whether the user may still write to the stream: a publisher may last for months."""
    try:
        session.require("write", publisher.queue)
    except AccessRefused:
        return False
    return True


def _recover(session: StreamSession, publisher: StreamPublisher, frame: bytes) -> None:
    """Publish to a queue: stored messages, many in one entry (`MessageRun`) or each in its own."""
    published = decode_published(frame)
    found = map(run_of, published.ids, published.entries)
    runs = [run for run in found if run is not None]
    if len(runs) < len(published.ids):
        # Compressed; taking a part of the frame would break the order.
        fail(session, publisher.number, published.ids, Code.PRECONDITION_FAILED)
    elif not session.authority.may_recover(session.user):
        fail(session, publisher.number, published.ids, Code.ACCESS_REFUSED)
    elif runs:
        octets = sum([len(run.data) for run in runs])
        session.unstored_bytes += octets
        session.effects.append(Append(publisher, runs, octets))


def fail(session: StreamSession, publisher: int, ids: Sequence[int], code: Code) -> None:
    """Report messages that are not stored; one error for any number of them."""
    session.errors[code] += 1
    for some in session.fitting(ids, FAILED_BYTES):
        session.send(wire.PublishError(publisher, [FailedPublish(each, code) for each in some]))
