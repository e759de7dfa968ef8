"""The leader's part of mirroring: sends appends to logs that this node leads to their mirrors.

    appended -> the frame of each link that has the log live       (once a flush: one frame a link, by `cut`)
    acked    -> core.replication.promises: promises that are due are kept

**A promise** is bound to the last cuts of its logs, and is kept once the nodes that `wait_for` names have acked those.
The caller keeps the order in which a mirror is recorded as synchronised (core.replication.replica_set):

    on_state(name, node, live)
    wait_for(name, recorded, recorded | {node}, then=record)    promises wait first,
    record: write it;    written: wait_for(name, recorded)      and only a node with every promised record is recorded
        on_state(name, node, gone)
        write the record without it;    written: wait_for(name, recorded)     taken out first, then waited for no longer

    A promise does not depend on states: it waits for a recorded node that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from leveret.core.replication.promises import Promises
from leveret.core.replication.replica_set import ReplicaSet
from leveret.core.rules.mirror_policy import SYNC_BATCH_MESSAGES
from leveret.model.errors import StorageError
from leveret.runtime.link.peer import LinkPeer, Receiver
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.mirroring.log_table import LogTable
from leveret.runtime.mirroring.source_link import MirroredLog, SourceLink
from leveret.runtime.mirroring.source_link_base import SourceLinkBase
from leveret.storage.segment import has_segments
from leveret.storage.tree import ChangeReceiver, Tree
from leveret.wire.chunk import Header
from leveret.wire.link import Octets

logger = logging.getLogger(__name__)

OnAcked = Callable[[bool], None]
"""Called once, with whether the awaited mirrors have it. They never will if another node leads one of the logs first.
"""
OnState = Callable[[str, str, MirrorState], None]
"""(log, node, state): a mirror's state for this log changed.

Called from the loop, never during a call of this module.
"""


class MirrorSources(ChangeReceiver):
    """See the module; storage.tree.ChangeReceiver.

    Attributes:
        tree: the node's own tree.
        logs: the queues of the node's logs.
        led: the logs that this node leads, by name.
        sync_bytes_s_max: the most octets that the mirrors of one log are sent in a second to synchronise, 0 for no
            limit; live records come on top. May be set at any time.
        ack_timeout_ms: the link of a mirror that owes an ack for longer is ended, and the mirror reported as gone.
    """

    def __init__(
        self,
        tree: Tree,
        commits: GroupCommit,
        clock_ms: Callable[[], int],
        on_state: OnState,
        logs: LogTable,
        *,
        sync_bytes_s_max: int = 0,
        ack_timeout_ms: int = 10_000,
    ) -> None:
        """Lead nothing yet.

        The replication barrier of `commits` is left alone.
        `clock_ms` must never go back, as the time of day does: it measures the age of unacked cuts, and paces the
        records that are sent to synchronise mirrors.
        """
        self.logs = logs
        self.tree = tree
        self.led: dict[str, MirroredLog] = {}
        self.sync_bytes_s_max = sync_bytes_s_max
        self.ack_timeout_ms = ack_timeout_ms
        self.clock_ms = clock_ms
        self._commits = commits
        self._on_state = on_state
        self._links: dict[str, SourceLink] = {}
        self._number = 0
        self._changed: dict[MirroredLog, None] = {}
        """The logs with changes for the next cut."""
        self._promises: Promises[OnAcked] = Promises()
        self._promised: list[tuple[list[str], OnAcked]] = []
        self._cursors: dict[MirroredLog, None] = {}
        self._states: list[tuple[str, str, MirrorState]] = []
        tree.receivers.append(self)

    # -- led logs -----------------------------------------------------------------------------

    def lead(
        self,
        name: str,
        *,
        automatic: bool = False,
        batch_messages: int = SYNC_BATCH_MESSAGES,
        lost: tuple[int, int] = (0, 0),
    ) -> None:
        """Lead the log of that name from now on; or change the policy of a led log.

        The log is open, or does not exist yet because it never had a record. Its epoch is one in which no process has
        led it before, so that a late mirror can be told from a divergent one.

        Args:
            name: the name in the tree: `queues/EPOCH`.
            automatic: `ha-sync-mode`: whether a new mirror is sent earlier records.
            batch_messages: `ha-sync-batch-size`.
            lost: `lost_before` and `lost_epoch`.

        Raises:
            StorageError: the log is on disk and not open, so that mirrors would take it for empty; or it cannot be
                read.
        """
        directory = self.tree.path_of(name)
        if name not in self.tree.logs and directory.exists() and has_segments(directory):
            raise StorageError(f"log {directory} is there, and not open: recover it before it is led")
        led = self.led.get(name)
        if led is None:
            end = self._end(name)
            # A replica without an ack has nothing, unless the log is empty as well.
            led = self.led[name] = MirroredLog(name, self.number(0) if end else 0, end)
            self._promises.lead(name)
            for link in self._links.values():
                link.lead(name)
        led.lost_before, led.lost_epoch = lost
        changed, led.automatic, led.batch_messages = automatic != led.automatic, automatic, batch_messages
        if changed:
            for stream in list(led.streams.values()):
                stream.synchronise(wanted=automatic)

    def cease(self, name: str) -> None:
        """Lead that log no longer, because another node does: what its mirrors were not known to have, fails.

        The present flush has appended nothing to it.
        """
        self._forget(name)
        failed = self._promises.cease(name)
        if failed:
            logger.warning("promises_failed log=%s count=%d", name, len(failed))
            self._answer(failed, ok=False)

    def let_go(self, name: str) -> None:
        """Send that log to no mirror any more, and wait for none: it is deleted, or its record names no mirror.

        Without a mirror nobody but this node can lead the log, so what is on the disk here is safe.
        """
        self._forget(name)
        self._answer(self._promises.let_go(name))

    def _forget(self, name: str) -> None:
        led = self.led.pop(name, None)
        if led is not None:
            for link in self._links.values():
                link.end(name, reports=False)
            self._cursors.pop(led, None)
            self._changed.pop(led, None)

    def accept(self, peer: LinkPeer, node: str, run_id: str = "") -> Receiver:
        """Serve a mirror node after its handshake; this ends an earlier link of the node."""
        self._hang_up(node)
        link = self._links[node] = SourceLink(self, self.led, peer, node, run_id)
        peer.receiver = link
        logger.info("mirror_connected node=%s address=%s", node, peer.address)
        return link

    def runs(self, node: str, run_id: str) -> None:
        """Note the present run id of a node, or none: reports and acks of another run do not count any more.

        The next run may have put its copy away, or lack it, before the old link is found to be dead.
        """
        link = self._links.get(node)
        if link is not None and link.run_id != run_id:
            self._hang_up(node)

    def _hang_up(self, node: str) -> None:
        link = self._links.get(node)
        if link is not None:
            link.peer.abort()
            link.ended(None)

    def close(self) -> None:
        """End every link."""
        for link in list(self._links.values()):
            link.peer.close()

    # -- promises -----------------------------------------------------------------------------

    def wait_for(
        self,
        name: str,
        *sets: frozenset[str],
        majority: bool | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Let promises of that log wait for exactly these nodes from now on: all of each set, or a majority of each.

        While the record of the synchronised mirrors changes, pass both the old and the new set. With None `majority`
        stays unchanged. `then` is called, once, when these nodes have all records that may have been promised so far:
        from then on they may be recorded. A later call replaces `then`.

        Raises:
            KeyError: the log is not led here.
        """
        led = self.led[name]
        acked = None if then is None else lambda _: then()
        kept = self._promises.wait_for(name, sets, led.cut, majority=majority, then=acked)
        for stream in led.streams.values():
            stream.expected_changed()
        self._answer(kept)

    def when_acked(self, names: Iterable[str], acked: OnAcked) -> None:
        """Call `acked` once the expected nodes have acked the appends of the present flush to each of these logs.

        The flush ends with the next `cut`; there is no call before that. If another node leads one of the logs first,
        and may lack the appends, the call says False; a log that is let go needs no acks. The local disk is not
        included: see GroupCommit.
        """
        self._promised.append((list(names), acked))

    def has_all(self, name: str, node: str) -> bool:
        """Whether the node has everything up to the end of that log on its disk."""
        led = self.led.get(name)
        return led is None or (
            led not in self._changed and self._promises.replicas[name].has(node) >= led.cut
        )

    def cut(self) -> int:
        """Send the appends since the last cut: one frame a link. GroupCommit's replication barrier calls this.

        Returns:
            Always 0: GroupCommit itself does not wait for mirrors.
        """
        if self._cursors:
            cursors, self._cursors = self._cursors, {}
            for led in cursors:
                for stream in led.streams.values():
                    stream.cursor_rose()
        gathered = max((link.gathered for link in self._links.values()), default=0)
        if gathered or self._changed:
            changed, self._changed = self._changed, {}
            number = self.number(gathered)
            for led in changed:
                led.changed(number, self._end(led.name))
            for link in tuple(self._links.values()):
                link.cut(number)
        if self._promised:
            promised, self._promised = self._promised, []
            for names, acked in promised:
                needs = {name: self.led[name].cut for name in names if name in self.led}
                self._answer(self._promises.promise(needs, acked))
        return 0

    def number(self, octets: int) -> int:
        """See source_link_base.MirrorLeader."""
        self._number += max(1, octets)
        return self._number

    def _end(self, name: str) -> int:
        log = self.tree.logs.get(name)
        return log.next_offset if log is not None else 0

    def _answer(self, promises: list[OnAcked], *, ok: bool = True) -> None:
        try:
            for acked in promises:
                acked(ok)
        except Exception as bug:
            # The other callbacks would never be called: their promises would wait for ever.
            logger.critical("promise_failed action=stop", exc_info=True)
            self._commits.fail(bug)

    # -- reports of the queue -----------------------------------------------------------------

    def delivered(self, name: str, offset: int) -> None:
        """Set the cursor: messages before this offset may have been delivered; mirrors get it with the next cut."""
        led = self.led.get(name)
        if led is not None and offset > led.cursor:
            led.cursor = offset
            if led.streams:
                self._cursors[led] = None

    def floor(self, name: str, offset: int) -> None:
        """Set the floor: everything before this offset is settled, and a mirror that begins there lacks nothing."""
        led = self.led.get(name)
        if led is not None and offset > led.floor:
            led.floor = offset
            for stream in led.streams.values():
                stream.floor_rose()

    def synchronise(self, name: str) -> None:
        """Send the prefix of that log to those of its present mirrors that lack it."""
        self._synchronise(name, wanted=True)

    def cancel_synchronise(self, name: str) -> None:
        """Stop sending the prefix for now: mirrors keep the sent records, and a later sync continues there.

        A returning mirror whose copy has a common part with the log is still sent the rest.
        """
        self._synchronise(name, wanted=False)

    def _synchronise(self, name: str, *, wanted: bool) -> None:
        led = self.led.get(name)
        if led is not None:
            for stream in list(led.streams.values()):
                stream.synchronise(wanted=wanted)

    # -- state --------------------------------------------------------------------------------

    def state(self, name: str, node: str) -> MirrorState:
        """Return the state of a node's mirror of a log."""
        led = self.led.get(name)
        stream = led.streams.get(node) if led is not None else None
        return stream.state if stream is not None else MirrorState.GONE

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return a row for each mirror of a log.

        Columns: node, state, first_offset, acked_offset, lag_records, lag_bytes, lag_s, progress. `progress` is None
            unless it synchronises: bytes_done, bytes_total, rate_bytes_s, seconds_left (None: unknown).
        """
        led, now_ms = self.led.get(name), self.clock_ms()
        rows = []
        for node, stream in sorted(led.streams.items()) if led is not None else ():
            since_ms = self._links[node].owed_since_ms(stream)
            rows.append(stream.row(None if since_ms is None else since_ms / 1000, now_ms / 1000))
        return rows

    @property
    def waiting_bytes(self) -> int:
        """The octets that the slowest mirror has not yet received from its link."""
        return max((link.peer.waiting_bytes for link in self._links.values()), default=0)

    # -- events of the links: source_link_base.MirrorLeader ----------------------------------------------

    def replicas(self, name: str) -> ReplicaSet:
        """See source_link_base.MirrorLeader."""
        return self._promises.replicas[name]

    def acked(self, node: str) -> None:
        """See source_link_base.MirrorLeader."""
        self._answer(self._promises.acked(node))

    def reported(self, name: str, node: str, state: MirrorState) -> None:
        """See source_link_base.MirrorLeader."""
        if not self._states:
            asyncio.get_running_loop().call_soon(self._report_states)
        self._states.append((name, node, state))

    def _report_states(self) -> None:
        states, self._states = self._states, []
        for name, node, state in states:
            if name in self.led:
                self._on_state(name, node, state)

    def ended(self, link: SourceLinkBase) -> None:
        """See source_link_base.MirrorLeader."""
        if self._links.get(link.node) is link:
            del self._links[link.node]

    # -- changes of the tree: storage.tree.ChangeReceiver -------------------------------------

    def appended(self, name: str, segment: int, header: Header, octets: list[Octets]) -> None:
        """See ChangeReceiver."""
        led = self.led.get(name)
        if led is None:
            return
        self._changed[led] = None
        if not led.streams:
            return
        # A recovery's chunks may be in the buffer of a link, which reuses it.
        kept: list[Octets] = [each if isinstance(each, bytes) else bytes(each) for each in octets]
        for stream in led.streams.values():
            stream.appended(segment, kept, header.records)

    def dropped(self, name: str, first_offset: int) -> None:
        """See ChangeReceiver."""
        led = self.led.get(name)
        if led is not None:
            for stream in led.streams.values():
                stream.dropped(first_offset)

    def begun(self, name: str, offset: int) -> None:
        """See ChangeReceiver: mirrors report their empty copies anew, because these begin where the log did before."""
        if name in self.led:
            for link in self._links.values():
                link.end(name)
                link.lead(name)

    def deleted(self, name: str) -> None:
        """See ChangeReceiver; mirrors delete their copies once they learn of the queue's deletion from etcd."""
        self.let_go(name)
