"""Streams and super streams of a stream session: declares, deletes and looks up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from leveret.core.rules.validation import RESERVED_PREFIX, declared_name
from leveret.model.errors import AccessRefused, LedElsewhere, LeveretError, NotFound
from leveret.session.stream.login import place
from leveret.session.stream.session import StreamSession
from leveret.session.stream.types import ChangeStreams, SendResponse, StreamPlaces, UpstreamSite, code_of
from leveret.wire.log_name import label_of_partition, partition_name
from leveret.wire.record import OUTGOING_STREAM, RECOVERY_STREAM_PREFIX
from leveret.wire.site_order import ORDER_STATISTIC, ORDER_STREAM
from leveret.wire.staged_segment import STAGED_STREAM_PREFIX
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code, Response, StreamRequest
from leveret.wire.stream.fields import NO_LEADER, BrokerNode, StreamMetadata


def _change(
    session: StreamSession, command: StreamRequest, answer: type[Response], apply: Callable[[], Code]
) -> None:
    """Change the definitions; the response waits for the disk and for other nodes, a refusal does not."""
    if session.authority.may_change:
        _change_now(session, command, answer, apply)
    else:
        session.effects.append(ChangeStreams(partial(_change_now, session, command, answer, apply)))


def _change_now(
    session: StreamSession, command: StreamRequest, answer: type[Response], apply: Callable[[], Code]
) -> None:
    try:
        code = apply()
    except LeveretError as error:
        code = code_of(error)
    response = answer(command.correlation, code)
    if code == Code.OK:
        session.effects.append(SendResponse(response))
    else:
        session.send(response)


def create(session: StreamSession, command: wire.Create) -> None:
    """Make a stream."""
    name = declared_name(command.stream)

    def apply() -> Code:
        if not _is_free(name):
            return Code.PRECONDITION_FAILED
        made = session.authority.create_stream(session.user, session.vhost, name, command.arguments)
        return Code.OK if made else Code.STREAM_EXISTS

    _change(session, command, wire.CreateResponse, apply)


def _is_free(name: str) -> bool:
    """Whether a stream may have this name."""
    is_taken = (
        name == OUTGOING_STREAM
        or name.startswith((RECOVERY_STREAM_PREFIX, STAGED_STREAM_PREFIX))
        or label_of_partition(name)
    )
    return bool(name) and not is_taken and not name.startswith(RESERVED_PREFIX)


def delete(session: StreamSession, command: wire.DeleteStream) -> None:
    """Delete a stream."""

    def apply() -> Code:
        if command.stream == OUTGOING_STREAM:
            return Code.ACCESS_REFUSED
        session.authority.delete_stream(session.user, session.vhost, command.stream)
        return Code.OK

    _change(session, command, wire.DeleteResponse, apply)


def create_super_stream(session: StreamSession, command: wire.CreateSuperStream) -> None:
    """Make an exchange and the streams bound to it."""
    names = [declared_name(each) for each in (command.super_stream, *command.partitions)]
    partitions = dict(zip(names[1:], command.binding_keys, strict=False))

    def apply() -> Code:
        unequal = len(partitions) != len(command.partitions) or len(partitions) != len(command.binding_keys)
        if unequal or not partitions or not all(map(_is_free, names)):
            return Code.PRECONDITION_FAILED
        made = session.authority.create_super_stream(
            session.user, session.vhost, names[0], partitions, command.arguments
        )
        return Code.OK if made else Code.STREAM_EXISTS

    _change(session, command, wire.CreateSuperStreamResponse, apply)


def delete_super_stream(session: StreamSession, command: wire.DeleteSuperStream) -> None:
    """Delete a super stream."""

    def apply() -> Code:
        session.authority.delete_super_stream(session.user, session.vhost, command.super_stream)
        return Code.OK

    _change(session, command, wire.DeleteSuperStreamResponse, apply)


def metadata(session: StreamSession, command: wire.Metadata) -> None:
    """Report the places of streams: the leader, if it runs, and the replicas that have everything."""
    places: dict[tuple[str, int], int] = {}
    streams = [_metadata_of(session, stream, places) for stream in command.streams]
    brokers = [BrokerNode(reference, *where) for where, reference in places.items()]
    session.send(wire.MetadataResponse(command.correlation, brokers, streams))


def _metadata_of(session: StreamSession, stream: str, places: dict[tuple[str, int], int]) -> StreamMetadata:
    """`places` are the nodes' references so far, to which one may be added."""
    try:
        if stream == OUTGOING_STREAM:
            session.log(stream)
            found = StreamPlaces(place(session))
        elif label := label_of_partition(stream):
            found = _places_of_log(session, label)
        else:
            found = session.authority.places_of(session.vhost, stream, tls=session.tls is not None)
    except LeveretError as error:
        return StreamMetadata(stream, code_of(error), NO_LEADER, [])
    # As in RabbitMQ: a stream exists without a leader.
    leader = NO_LEADER if found.leader is None else places.setdefault(found.leader, len(places))
    replicas = [places.setdefault(each, len(places)) for each in found.replicas]
    return StreamMetadata(stream, Code.OK, leader, replicas)


def stream_stats(session: StreamSession, command: wire.StreamStats) -> None:
    """Report the bounds of a stream: the outgoing log's with the offset after the last, others' with the last.

    For a queue that takes in staged segments, report the end of its log; for ORDER_STREAM how the outgoing log stands.
    """
    if command.stream.startswith(STAGED_STREAM_PREFIX):
        _staged_stats(session, command)
        return
    try:
        if command.stream == ORDER_STREAM:
            coverage = session.authority.log_coverage(session.user, session.vhost)
            session.send(wire.StreamStatsResponse(command.correlation, Code.OK, coverage._asdict()))
            return
        log = session.log(command.stream)
    except LeveretError as error:
        session.send(wire.StreamStatsResponse(command.correlation, code_of(error), {}))
        return
    if command.stream == OUTGOING_STREAM:
        collected = session.authority.outgoing_log(session.user, session.vhost)
        statistics = {
            "first_chunk_id": log.first_offset,
            "committed_chunk_id": log.last_chunk_id,
            "committed_offset": log.committed_offset,
            "committed_timestamp_ms": log.last_timestamp_ms,
            "bytes": log.bytes,
            "log_id": collected.log_id,
            "writer": collected.writer,
            "missing_messages": collected.missing_messages,
            "has_stopped": int(collected.has_stopped),
            "uncollected": collected.uncollected,
            "is_downstream": int(session.authority.is_downstream),
            "catching_up": collected.catching_up_records,
            "confirms_waiting": collected.confirms_waiting,
            ORDER_STATISTIC: 1,
        }
    else:
        is_empty = log.committed_offset == log.first_offset
        statistics = {
            "first_chunk_id": -1 if is_empty else log.first_offset,
            "last_chunk_id": log.last_chunk_id,
            "committed_chunk_id": log.last_chunk_id,
            "committed_offset": log.committed_offset - 1,
        }
    session.send(wire.StreamStatsResponse(command.correlation, Code.OK, statistics))


def _staged_stats(session: StreamSession, command: wire.StreamStats) -> None:
    code, statistics = Code.OK, {}
    queue = command.stream.removeprefix(STAGED_STREAM_PREFIX)
    try:
        statistics = session.authority.staged_queue(session.user, session.vhost, queue).end().statistics()
    except LeveretError as error:
        code = code_of(error)
    session.send(wire.StreamStatsResponse(command.correlation, code, statistics))


def route(session: StreamSession, command: wire.Route) -> None:
    """Report the streams that a routing key leads to."""
    code, streams = Code.OK, []
    try:
        streams = session.authority.route(session.vhost, command.super_stream, command.routing_key)
    except NotFound:
        code = Code.STREAM_DOES_NOT_EXIST
    session.send(wire.RouteResponse(command.correlation, code, streams))


def partitions(session: StreamSession, command: wire.Partitions) -> None:
    """Report the streams of a super stream."""
    code, streams = Code.OK, []
    try:
        if command.super_stream == OUTGOING_STREAM:
            streams = list(map(partition_name, _site(session).labels()))
        else:
            streams = session.authority.partitions(session.vhost, command.super_stream)
    except (NotFound, AccessRefused) as error:
        code = code_of(error)
    session.send(wire.PartitionsResponse(command.correlation, code, streams))


def _site(session: StreamSession) -> UpstreamSite:
    """The cluster whose outgoing logs the peer may read.

    Raises:
        NotFound: this node is a single one, or the vhost is not collected.
        AccessRefused: the peer may not read them.
    """
    session.authority.outgoing_log(session.user, session.vhost)
    site = session.authority.site
    if site is None:
        raise NotFound(f"{OUTGOING_STREAM} is no super stream: this is a single node")
    return site


def _places_of_log(session: StreamSession, label: str) -> StreamPlaces:
    """The place of a node's outgoing log; none while a node does not run that leads queues which are collected.

    Raises:
        NotFound: the node does not run, and nobody misses it; or there is no such node.
    """
    try:
        return StreamPlaces(
            _site(session).place(session.vhost, label, tls=session.tls is not None) or place(session)
        )
    except LedElsewhere:
        return StreamPlaces(None)
