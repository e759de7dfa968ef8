"""What a recovery publishes on one connection of the stream protocol: numbered messages, and whole staged segments."""

from __future__ import annotations

from collections.abc import Callable

from leveret.model.errors import LeveretError, PeerError
from leveret.runtime.clients.stream_host import RecoveryQueue, StagedQueue, StreamHost
from leveret.session.stream.connection import StreamClientConnection
from leveret.session.stream.types import Append, StreamPublisher
from leveret.wire.staged_segment import StagedSegment


class RecoveredPublishes:
    """Finds the queue of each publisher once, and forgets the queues of publishers that are gone."""

    def __init__(self, host: StreamHost, session: StreamClientConnection) -> None:
        """Begin without a publisher of the session."""
        self._host = host
        self._session = session
        self._queues: dict[StreamPublisher, RecoveryQueue] = {}
        self._staged: dict[StreamPublisher, StagedQueue] = {}

    def append(
        self, append: Append, done: Callable[[], None], failed: Callable[[LeveretError], None]
    ) -> None:
        """Append to the publisher's queue, then call `done` once that is safe, or `failed`.

        Raises:
            LeveretError: the queue cannot be found or written to; neither of both is called.
        """
        publisher = append.publisher
        if publisher.is_staged:
            self._staged_queue(publisher).take_in(publisher.reference, _announced(append), done, failed)
        else:
            self._queue(publisher).append(publisher.reference, append.runs, done, failed)

    def _queue(self, publisher: StreamPublisher) -> RecoveryQueue:
        if publisher not in self._queues:
            alive = self._session.publishers.values()
            self._queues = {each: queue for each, queue in self._queues.items() if each in alive}
            found = self._host.recovery_queue(self._session.user, self._session.vhost, publisher.queue)
            self._queues[publisher] = found
        return self._queues[publisher]

    def _staged_queue(self, publisher: StreamPublisher) -> StagedQueue:
        if publisher not in self._staged:
            alive = self._session.publishers.values()
            self._staged = {each: queue for each, queue in self._staged.items() if each in alive}
            found = self._host.staged_queue(self._session.user, self._session.vhost, publisher.queue)
            self._staged[publisher] = found
        return self._staged[publisher]


def _announced(append: Append) -> StagedSegment:
    """Return the segment that is announced, one in each frame."""
    bodies = [body for run in append.runs for _, body in run.messages()]
    if len(bodies) != 1:
        raise PeerError(f"{len(bodies)} staged segments are announced at once")
    return StagedSegment.decode(bodies[0])
