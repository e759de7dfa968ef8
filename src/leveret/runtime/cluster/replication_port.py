"""The engine's port to other nodes (ports.ReplicationPort): changes for them, and acks that promises wait for.

Changes of definitions go to all nodes, messages of queues led elsewhere to their leaders, and messages of queues
led here to their mirrors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream
from leveret.model import definitions as d
from leveret.runtime.cluster.definitions_publication import DefinitionsPublication
from leveret.runtime.cluster.forwarding import Forwarding
from leveret.runtime.cluster.placement.due_queues import DueQueues
from leveret.runtime.cluster.placement.placement_controller import PlacementController
from leveret.runtime.cluster.placement.queue_roles import QueueRoles
from leveret.runtime.logs.commit import ReplicationBarrier
from leveret.runtime.logs.ports import Part
from leveret.runtime.mirroring.sources import MirrorSources
from leveret.session.forwarding.remote_ports import RemotePorts

_WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Publishers are not read while a mirror has more than this to receive."""


class ClusterBarrier:
    """commit.ReplicationBarrier: promises need the lease, and each round ends a batch for the mirrors.

    A node with followers beyond the cluster promises nothing that those in sync lack, be it a confirm or an ack to the
    leader of a queue that is mirrored here. So a confirm waits for the followers of every node that it waits for.
    """

    def __init__(
        self,
        holds_lease: Callable[[], bool],
        cut: Callable[[], int],
        followers: ReplicationBarrier | None = None,
    ) -> None:
        """`cut` sends mirrors the appends since the last cut; `followers` is the barrier of this node's followers."""
        self._holds_lease = holds_lease
        self._cut = cut
        self._followers = followers

    def cut(self) -> int:
        """See commit.ReplicationBarrier; positions do not cover mirrors."""
        self._cut()
        return self._followers.cut() if self._followers is not None else 0

    def committed(self) -> int:
        """See commit.ReplicationBarrier."""
        if not self._holds_lease():
            return -1
        return self._followers.committed() if self._followers is not None else 0

    def confirmable(self) -> int:
        """See commit.ReplicationBarrier."""
        if not self._holds_lease():
            return -1
        return self._followers.confirmable() if self._followers is not None else 0


class ClusterPort:
    """See the module."""

    def __init__(
        self,
        holds_lease: Callable[[], bool],
        roles: QueueRoles,
        sources: MirrorSources,
        forwarding: Forwarding,
        placement_controller: PlacementController,
        due: DueQueues,
        publication: DefinitionsPublication,
        *,
        waits_for_mirrors: bool,
    ) -> None:
        """Start without waiting callbacks; if `waits_for_mirrors`, publishers wait for slow mirrors."""
        self._holds_lease = holds_lease
        self._roles = roles
        self._sources = sources
        self._forwarding = forwarding
        self._placement_controller = placement_controller
        self._due = due
        self._publication = publication
        self._waits_for_mirrors = waits_for_mirrors
        self._slowed: list[Callable[[], None]] = []
        self._is_cut_due = False

    def concerns(self, queue: object) -> bool:
        """See ports.ReplicationPort."""
        if isinstance(queue, RemoteQueue | RemotePorts):
            return True
        return isinstance(queue, Queue) and self._roles.led_name(queue) is not None

    def when_kept(self, batch: ConfirmBatch, part: Part) -> None:
        """See ports.ReplicationPort."""
        if any(isinstance(each, RemoteQueue | RemotePorts) for each in batch.queues):
            self._forwarding.leaders.when_batch_confirmed(batch, part())
        self.when_taken(batch.queues, part)

    def when_decided(
        self,
        queue: Queue,
        since: int,
        place: int,
        then: Callable[[list[tuple[int, int]]], None],
        *,
        until_taken: bool,
    ) -> None:
        """See ports.ReplicationPort."""
        assert isinstance(queue, RemoteQueue)
        self._forwarding.leaders.when_decided(queue, since, place, then, until_taken=until_taken)

    def when_taken(self, queues: Iterable[object], part: Part) -> None:
        """See ports.ReplicationPort."""
        names = [name for each in queues if isinstance(each, Queue) and (name := self._roles.led_name(each))]
        if names:
            has_all = part()

            def notify(ok: bool) -> None:
                # The disk's part checked the lease when the disk was done; mirrors may be done long after that.
                if self._holds_lease():
                    has_all(ok)

            self._sources.when_acked(names, notify)

    def is_overloaded(self) -> bool:
        """See ports.ReplicationPort."""
        return self._forwarding.is_overloaded() or self._mirrors_are_slow()

    def _mirrors_are_slow(self) -> bool:
        return self._waits_for_mirrors and self._sources.waiting_bytes > _WAITING_BYTES_MAX

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """See ports.ReplicationPort."""
        if self._mirrors_are_slow():
            self._slowed.append(callback)
        else:
            self._forwarding.when_relieved(callback)

    def tick(self) -> None:
        """Call back publishers that wait for slow mirrors, if these have caught up."""
        if self._slowed and not self._mirrors_are_slow():
            slowed, self._slowed = self._slowed, []
            for callback in slowed:
                callback()

    def taken_down(self, queue: Queue) -> None:
        """See ports.ReplicationPort: a complete mirror becomes the leader."""
        self._due.add([queue.key])

    def flushed(self, queue: Queue) -> None:
        """See ports.ReplicationPort: mirrors learn the cursor and the floor."""
        name = self._roles.led_name(queue)
        if name is not None:
            self._sources.delivered(name, queue.delivered_before)
            self._sources.floor(name, queue.log_floor)

    def committed(self, stream: Stream) -> None:
        """Report a stream's new committed end to the mirrors, for readers there, even if no further publish comes."""
        name = self._roles.led_name(stream)
        if name is not None:
            self._sources.delivered(name, stream.delivered_before)
            if not self._is_cut_due:
                self._is_cut_due = True
                asyncio.get_running_loop().call_soon(self._cut)

    def _cut(self) -> None:
        self._is_cut_due = False
        self._sources.cut()

    def share(self, changes: list[d.Change], known: Callable[[], None]) -> None:
        """See ports.ReplicationPort."""
        for change in changes:
            self._placement_controller.definition_changed(change)
        self._publication.share(changes, known)
