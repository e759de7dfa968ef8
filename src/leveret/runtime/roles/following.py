"""A node that follows a leader: its link, and its own logs at a join.

A join truncates the node's logs to a prefix of its leader's (core.replication.join). Records that only this node has
are quarantined before. Until the join has ended the logs are no copy of anything promised, which is recorded on disk
before the first log is touched. After the join a node is built anew to show the data, because the earlier view may
show chunks that are gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from leveret.config import Config
from leveret.config.uris import NodeUri
from leveret.model.errors import Corrupt, LeveretError, StorageError
from leveret.runtime.logs.log_store import is_gone, log_name_of
from leveret.runtime.node.node import Node, settle_process
from leveret.runtime.process.clock import clock_ms, elapsed_ms
from leveret.runtime.process.needed_tasks import ends_process
from leveret.runtime.replication.applier import Applier, CopyOwner
from leveret.runtime.replication.delaying import ALL_MS, Delaying, follower_data
from leveret.runtime.replication.identity import LinkEnd
from leveret.runtime.replication.inbound import Inbound
from leveret.runtime.roles import passive_node
from leveret.runtime.roles.leaderships import Leaderships
from leveret.session.link_handshake import ProvenLeader
from leveret.storage.log import Log
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import DivergentReport
from leveret.wire.chunk import Chunk

logger = logging.getLogger(__name__)

_WATCH_EVERY_S: Final = 1.0
_MANY_LOGS: Final = ("queues/", "streams/")


class FollowerRole(CopyOwner):
    """See the module; inbound.FollowingNode.

    Attributes:
        uri: the leader's URI.
        node: shows the data followed so far.
        inbound: the link; set by `start`.
        delaying: keeps for a time what the leader removes; None without a delay.
    """

    inbound: Inbound

    def __init__(
        self,
        uri: NodeUri,
        node: Node,
        config: Config,
        own: LinkEnd,
        *,
        leaderships: Leaderships,
        took: Callable[[Node], None],
        send_away: Callable[[str], None],
    ) -> None:
        """Begin without a link.

        Args:
            uri: the leader's URI.
            node: the following node; it is shown.
            config: the process's settings.
            own: the node's end of links.
            leaderships: records the leader.
            took: called with the node that replaces `node`, before it shows its data.
            send_away: disconnects this node's own followers, with a reason; they may return.
        """
        self.uri = uri
        self.node = node
        self.delaying: Delaying | None = None
        self._watching: asyncio.Task[None] | None = None
        self._loop_watch = node.loop_watch
        self._measuring: asyncio.Task[None] | None = None
        self._config = config
        self._own = own
        self._identity = own.identity
        self._leaderships = leaderships
        self._took = took
        self._send_away = send_away
        self._applier = Applier(node.tree, node.commits, self)

    async def start(
        self,
        answer: Callable[[str, dict[str, Any]], dict[str, Any]],
        repaired: Callable[[], Awaitable[None]],
        on_hopeless: Callable[[LeveretError], None],
        *,
        is_fetching_again: bool = False,
    ) -> None:
        """Make the link, whose `run` is to be called; `answer` and `repaired` are the link's.

        `on_hopeless` is called with an error that no further attempt of the link can cure. `is_fetching_again`: it had
        joined before, and has lost a log since then; a delayed follower goes on with its delay.

        Raises:
            StorageError: the index of a delayed follower cannot be read, or the disk refuses it.
        """
        self._on_hopeless = on_hopeless
        identity, settings = self._identity.identity, self._config.followers
        data = await follower_data(
            self.node.data_dir,
            self._applier,
            self.node.commits,
            apply_delay_ms=settings.apply_delay_ms,
            has_joined=identity.followed_epoch > 0
            and identity.is_clean
            and (is_fetching_again or not identity.rewriting),
            clock_ms=clock_ms,
            elapsed_ms=elapsed_ms,
            on_damage=self.damaged,
        )
        self.delaying = data if isinstance(data, Delaying) else None
        self.inbound = Inbound(
            self.uri,
            self._own,
            data=data,
            commits=self.node.commits,
            followed=self,
            clock_ms=clock_ms,
            answer=answer,
            repaired=repaired,
        )
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="removed logs")
        # Clients are passed on here, and a leader's confirms wait for this loop.
        self._measuring = asyncio.get_running_loop().create_task(self._loop_watch.run(), name="loop watch")
        for task in (self._watching, self._measuring):
            task.add_done_callback(ends_process(self.node.failed))
        settle_process()
        logger.info("following leader=%s node_id=%s epoch=%d", self.uri, identity.node_id, identity.epoch)

    def damaged(self, error: Corrupt) -> None:
        """Stop acking for good, because a log here is unusable; see roles."""
        self.node.commits.fail(error)

    def hopeless(self, error: LeveretError) -> None:
        """See inbound.FollowingNode."""
        self._on_hopeless(error)

    async def stop(self) -> None:
        """End the link, and remove nothing more."""
        for task in (self._watching, self._measuring):
            if task is not None:
                task.cancel()
        await self.inbound.stop()
        if self.delaying is not None:
            await self.delaying.stop()

    async def _watch(self) -> None:
        """Check for removed directories of logs, also while no record is written to them."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            node = self.node
            try:
                there = await asyncio.to_thread(node.log_store.names_there)
            except StorageError as error:
                logger.error("logs_not_watched error=%s action=retry", error)
                continue
            gone = [*(node.log_store.gone(there) if there else ()), *filter(is_gone, self._few_logs(node))]
            if gone and node is self.node:
                node.commits.fail(gone[0].missing())
                return

    def _few_logs(self, node: Node) -> list[Log]:
        """All logs except those of queues and streams, which may be thousands."""
        found = [log for name, log in node.tree.logs.items() if not name.startswith(_MANY_LOGS)]
        index = self.delaying.log if self.delaying is not None else None
        return found if index is None else [*found, index]

    @property
    def newest_at_ms(self) -> int | None:
        """The time of the newest record, by its leader's clock; None without records, or if earlier ones are missing.

        Of two followers of one leader, the one with the later time has all records of the other, whatever was
        restarted meanwhile: the time is read from the logs.
        """
        return None if self._identity.identity.rewriting else self._applier.last_timestamp_ms or None

    # -- what the link asks: inbound.FollowingNode -------------------------------------------------

    def files(self) -> list[str]:
        """See FollowingNode."""
        return [name for name, _ in self.node.tree.files()]

    def leader_epoch(self, leader: ProvenLeader) -> None:
        """See FollowingNode: record the leader; its chunks may come from now on."""
        self._leaderships.followed(leader, self.uri)

    # -- what is applied: applier.CopyOwner ---------------------------------------------------

    def replayed(self, name: str, log: Log, chunk: Chunk) -> None:
        """See CopyOwner."""
        self.node.read_only_view.replayed(name, log, chunk)

    def rewriting(self) -> None:
        """Record durably, before a log is touched, that this node is no copy of promised data until the join ends."""
        self._identity.identity.rewriting = True
        self._identity.save()
        self._send_away("it is being brought in line with its leader")

    def joining(self, leader: ProvenLeader) -> None:
        """Begin a quarantine for the records that this leader lacks."""
        self._applier.quarantine = self._quarantine(leader)

    def rewritten(self, name: str) -> None:
        """See CopyOwner."""
        self.node.read_only_view.show_again(name)

    def quarantine_now(self, leader: ProvenLeader, name: str, at: int) -> None:
        """Quarantine what a cluster's node quarantined of its copy of a log, whose leader is another one now."""
        quarantine = self._quarantine(leader)
        quarantine.add(name, at)
        quarantine.finish()

    def _quarantine(
        self, leader: ProvenLeader, queue_of: Callable[[str], tuple[str, str] | None] | None = None
    ) -> Quarantine:
        """The quarantine of records that this node has and the leader lacks.

        `queue_of` returns the queue of a log, by default from the present definitions.
        """
        identity = self._identity.identity
        join = DivergentReport.begun(
            clock_ms(),
            from_epoch=identity.epoch,
            to_epoch=leader.epoch,
            node_id=identity.node_id,
            leader_id=leader.node_id,
            leader_uri=leader.uri or str(self.uri),
        )
        return Quarantine(self.node.data_dir, join, queue_of or self.node.queue_of)

    def joined(self, leader: ProvenLeader) -> None:
        """Record that this node has the leader's data alone."""
        identity, applier = self._identity.identity, self._applier
        if isinstance(applier.quarantine, Quarantine):
            report = applier.quarantine.finish()
            if report is not None and not report.has_only_settlements:
                logger.warning(
                    "divergent_messages_quarantined report=%s see=list_divergent_messages", report.id
                )
            applier.quarantine = None
        is_same_leadership = identity.leadership == leader.leadership
        if applier.has_rewritten or self.node.read_only_view.shows_old_damage():
            applier.has_rewritten = False
            self._show_anew()
        identity.note_whole(passive_node.stored_logs(self.node))
        identity.epoch = identity.followed_epoch = leader.epoch
        identity.leader_id = identity.followed_leader_id = leader.leader_id
        identity.led, identity.rewriting = False, False
        self._identity.save()
        if not is_same_leadership:
            self._send_away("its leader is another one now")

    def _show_anew(self) -> None:
        """Build the node anew, because the earlier view may show chunks that are gone, or lack what came since."""
        self.node.read_only_view.close()
        self.node = passive_node.build_anew(self.node)
        self.node.loop_watch = self._loop_watch
        self._took(self.node)
        is_in_cluster = bool(self._identity.identity.cluster)
        expected_logs = partial(passive_node.expected_logs, self.node.tree, is_in_cluster=is_in_cluster)
        self.node.show(expected_logs, in_turns=True)

    # -- to be promoted -----------------------------------------------------------------------

    async def end_delay(self, until_ms: int, epoch: int) -> str | None:
        """End the link, and have the logs as of a time, before this node leads in `epoch`; the rest is quarantined.

        Returns:
            The id of the quarantine's report; None without a delay, or if nothing was quarantined.

        Raises:
            StorageError: the disk refuses it.
        """
        if self.delaying is None:
            return None
        own = ProvenLeader(
            node_id=self._identity.identity.node_id,
            name=self._config.node_name,
            epoch=epoch,
            uri=self._own.own_uri(),
        )
        await self.inbound.stop()
        # The records that are left out may be those of a queue that is deleted by now: to undo that is a reason to go
        # back. Otherwise none is left out, and the definitions' log need not be read.
        former_queues = self.node.former_queues() if until_ms < ALL_MS else ()
        former = {log_name_of(queue): queue.key for queue in former_queues}
        quarantine = self._quarantine(own, former.get)
        await self.delaying.finish(until_ms, quarantine)
        report = quarantine.finish()
        return report.id if report is not None else None
