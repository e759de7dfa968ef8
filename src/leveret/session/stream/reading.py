"""Subscriptions of a stream session: their begin, their chunks, and their turns in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leveret.core.queues.stream import first_wanted
from leveret.model.errors import LeveretError, NotFound
from leveret.model.whole_number import whole_number
from leveret.session.stream.session import StreamSession
from leveret.session.stream.types import (
    AskOffset,
    KeepOffset,
    SteppedDown,
    Subscribed,
    Subscription,
    code_of,
)
from leveret.wire.chunk import HEADER, HEADER_BYTES, Attribute, ChunkType, decode_trailer
from leveret.wire.record import OUTGOING_STREAM
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code

SELECTOR: Final = "chunk_selector"
UNTIL: Final = "leveret.until"
"""Subscription property of Leveret's own: the end offset of the wanted chunks."""
_OFFSET_MAX: Final = 2**64 - 1
SUPER_STREAM: Final = "super-stream"


def subscribe(session: StreamSession, command: wire.Subscribe) -> Code:
    """Add a subscription."""
    log = session.log(command.stream)
    if command.subscription in session.subscriptions:
        return Code.SUBSCRIPTION_ID_EXISTS
    properties = command.properties
    selector, until = properties.get(SELECTOR, "user_data"), properties.get(UNTIL)
    end = None if until is None else whole_number(until, most=_OFFSET_MAX)
    if selector not in ("all", "user_data") or (until is not None and end is None):
        return Code.PRECONDITION_FAILED
    subscription = Subscription(
        command.stream,
        first_wanted(log, command.offset),
        command.credit,
        selector == "all",
        end,
        frozenset(value.encode()[:255] for key, value in properties.items() if key.startswith("filter.")),
        properties.get("match-unfiltered") == "true",
        properties=dict(properties),
    )
    if properties.get("single-active-consumer") == "true" and not _group(session, subscription, properties):
        return Code.PRECONDITION_FAILED
    session.subscriptions[command.subscription] = subscription
    session.attachments += 1
    session.effects.append(Subscribed(command.subscription))
    return Code.OK


def _group(session: StreamSession, subscription: Subscription, properties: dict[str, str]) -> bool:
    """Put the subscription into its group; False if it cannot be in one.

    Raises:
        NotFound: there is no such super stream.
    """
    name = properties.get("name", "")
    if not name or subscription.stream == OUTGOING_STREAM:
        return False
    super_stream = properties.get(SUPER_STREAM)
    if super_stream:
        partitions = session.authority.partitions(session.vhost, super_stream)
        if subscription.stream not in partitions:
            return False
        subscription.partition = partitions.index(subscription.stream)
    subscription.group = name
    subscription.active = False
    return True


def unsubscribe(session: StreamSession, command: wire.Unsubscribe) -> Code:
    """Remove a subscription."""
    session.attachments += 1
    if command.subscription not in session.subscriptions:
        return Code.SUBSCRIPTION_ID_UNKNOWN
    _remove(session, command.subscription)
    return Code.OK


def _remove(session: StreamSession, number: int) -> None:
    """Remove a subscription, and its questions that the client has not answered, and perhaps never will."""
    gone = session.subscriptions.pop(number)
    for correlation in [each for each, asked in session.updating.items() if asked[1] is gone]:
        del session.updating[correlation]


def credit(session: StreamSession, command: wire.Credit) -> None:
    """Add credit to a subscription."""
    subscription = session.subscriptions.get(command.subscription)
    if subscription is None:
        session.send(wire.CreditResponse(Code.SUBSCRIPTION_ID_UNKNOWN, command.subscription))
        return
    if subscription.stream == OUTGOING_STREAM:
        # It has all messages of the vhost, and its reader stays for months: a permission that is taken from a standby
        # ends its transfer. Readers of streams keep what they have begun, as consumers of queues do.
        try:
            session.require_readable(OUTGOING_STREAM)
        except LeveretError as error:
            gone(session, OUTGOING_STREAM, error)
            return
    subscription.credit += command.credit


def consumer_update(session: StreamSession, number: int, active: bool) -> None:
    """Ask a subscription's client for its begin, or ask it to stop."""
    subscription = session.subscriptions[number]
    subscription.active = False
    session.updates += 1
    session.updating[session.updates] = (number, subscription, active)
    session.send(wire.ConsumerUpdate(session.updates, number, int(active)))


def consumer_updated(session: StreamSession, command: wire.ConsumerUpdateResponse) -> None:
    """Take the client's answer to that."""
    number, subscription, active = session.updating.pop(command.correlation, (0, None, False))
    if subscription is None or session.subscriptions.get(number) is not subscription:
        return
    if not active:
        session.effects.append(SteppedDown(number))
        return
    if command.code == Code.OK and command.offset is not None:
        try:
            subscription.next_offset = first_wanted(session.log(subscription.stream), command.offset)
        except LeveretError as error:
            gone(session, subscription.stream, error)
            return
    subscription.active = True


def store_offset(session: StreamSession, command: wire.StoreOffset) -> None:
    """Store a reader's offset; there is no response, also without permission."""
    try:
        session.require_readable(command.stream)
    except LeveretError:
        return
    if len(command.reference.encode()) <= 255:
        session.effects.append(KeepOffset(command.reference, command.offset, command.stream))


def query_offset(session: StreamSession, command: wire.QueryOffset) -> None:
    """Send a reader's stored offset."""
    code, offset, asks = Code.OK, None, False
    try:
        session.require_readable(command.stream)
        if command.stream == OUTGOING_STREAM:
            offset = session.authority.query_offset(session.vhost, command.reference)
        else:
            book = session.stream(command.stream, "read")
            offset = None if book.is_replica else book.stored_offset(command.reference)
            asks = book.is_replica
        # A StoreOffset of the same read is not passed on yet.
        for effect in session.effects:
            if isinstance(effect, KeepOffset) and (effect.stream, effect.reference) == (
                command.stream,
                command.reference,
            ):
                offset, asks = effect.offset, False
        if asks:
            session.effects.append(AskOffset(command.correlation, command.stream, command.reference))
            return
        code = Code.NO_OFFSET if offset is None else Code.OK
    except LeveretError as error:
        code = code_of(error)
    session.send(wire.QueryOffsetResponse(command.correlation, code, offset or 0))


def offset_found(session: StreamSession, ask: AskOffset, found: int | LeveretError | None) -> None:
    """Send a reader's stored offset, which the leader was asked for."""
    code = Code.OK
    if not isinstance(found, int):
        code = Code.NO_OFFSET if found is None else code_of(found)
        found = 0
    session.send(wire.QueryOffsetResponse(ask.correlation, code, found))


def deliver(
    session: StreamSession, number: int, chunks: Sequence[bytes | memoryview], committed_id: int
) -> None:
    """Send as many of these chunks (raw, trailer included) as the subscription wants and has credit for."""
    subscription = session.subscriptions[number]
    for chunk in chunks:
        if not subscription.wanting:
            return
        _, kind, _, records, _, _, chunk_id, _, data_bytes, *_ = HEADER.unpack_from(chunk)
        if subscription.until is not None and chunk_id >= subscription.until:
            subscription.next_offset = subscription.until
            return
        subscription.next_offset = chunk_id + records
        if not subscription.whole:
            if kind != ChunkType.USER:
                continue
            end = HEADER_BYTES + data_bytes
            if subscription.filters and not _matches(subscription, chunk[end:]):
                continue
            chunk = chunk[:end]
        subscription.credit -= 1
        if not subscription.whole:
            subscription.consumed += records
        session.send_chunk(number, chunk, committed_id)


def _matches(subscription: Subscription, trailer: bytes | memoryview) -> bool:
    """Whether a message of the chunk may pass the filters; a reader looks at each message again."""
    values = [(name, value) for kind, name, value in decode_trailer(trailer) if kind == Attribute.FILTER]
    for name, many in values or [(b"", 0)]:
        if many or (subscription.match_unfiltered if not name else name in subscription.filters):
            return True
    return False


def gone(session: StreamSession, stream: str, error: LeveretError) -> None:
    """Tell the peer that a stream cannot be used (any more), and drop its subscriptions and publishers."""
    for number in [n for n, each in session.subscriptions.items() if each.stream == stream]:
        _remove(session, number)
    for number in [n for n, each in session.publishers.items() if each.to_stream and each.queue == stream]:
        session.publishers.pop(number).is_cut = True
    session.attachments += 1
    code = Code.STREAM_NOT_AVAILABLE if isinstance(error, NotFound) else code_of(error)
    session.send(wire.MetadataUpdate(code, stream))
