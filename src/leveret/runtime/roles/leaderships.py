"""The leaderships of a data set: epochs, leaders that this node replaced, and the leader that replaced this node.

A promotion raises the epoch, on disk before anything is appended in it. A node that led and receives a higher
epoch writes it down before anything else: it is fenced from that instant on, also after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from leveret.config.uris import NodeUri, parse_node_uri
from leveret.model.errors import LeveretError, StorageError
from leveret.runtime.replication.identity import IdentityFile
from leveret.runtime.roles.fencer import Fencer
from leveret.session.link_handshake import FORMER_LEADERS_MAX, Leadership, ProvenFollower, ProvenLeader

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_S: Final = 1.0


class Leaderships:
    """The recorded leaderships of a node; see the module."""

    def __init__(
        self,
        identity: IdentityFile,
        fencer: Callable[[NodeUri], Fencer],
        replaced: Callable[[ProvenLeader], None],
    ) -> None:
        """`fencer` makes the Fencer for the node at a URI, which may know a later leadership itself.

        Such a leadership is passed to `replaced`, once it is on disk.
        """
        self._identity = identity
        self._fencer = fencer
        self._replaced = replaced
        self._telling: list[asyncio.Task[None]] = []

    # -- to lead ------------------------------------------------------------------------------

    def take_lead(self, *, raises_epoch: bool, epoch: int) -> None:
        """Record that this node leads from now on, in the epoch that it won if there is one.

        Raises:
            StorageError: the disk refuses it.
        """
        identity = self._identity.identity
        epoch_before = identity.epoch
        if raises_epoch or not identity.epoch:
            identity.epoch = max(identity.epoch, identity.seen_epoch) + 1
        identity.epoch = max(identity.epoch, epoch)
        identity.leader_id = identity.node_id
        identity.see(identity.leadership)
        if epoch_before == identity.epoch:
            identity.starts += 1
        else:
            identity.starts, identity.had_followers, identity.followers = 0, False, []
        identity.role, identity.led, identity.replaced_by = "leader", True, ""
        identity.rewriting = False
        # On disk before any record is appended in this epoch.
        self._identity.save()
        logger.info("leading epoch=%d node_id=%s", identity.epoch, identity.node_id)

    def notify_former_leaders(self, own_uri: str) -> None:
        """Report to all previous leaders for as long as this node leads, because one may return at any time."""
        for uri in self._identity.identity.former_leaders:
            if uri == own_uri:
                continue
            try:
                fencer = self._fencer(parse_node_uri(uri))
            except ValueError as error:
                logger.error("previous_leader_not_told uri=%s error=%s", uri, error)
                continue
            self._telling.append(asyncio.get_running_loop().create_task(fencer.run(self._heard)))

    def stop(self) -> None:
        """End all reports."""
        for task in self._telling:
            task.cancel()
        self._telling.clear()

    async def leads_on(self, uri: NodeUri) -> bool:
        """Whether a promoted node leads although it is started to follow its previous leader again.

        Its service manager does not know of the promotion, and still has `--follow` on the command line. But a node
        that another one has replaced meanwhile is started in the same way. So all nodes that may know are asked: if
        one knows a later leadership, this node does not lead. A previous leader that does not answer may lead again
        only if a follower of this node could take over, so only if there ever was one; then the operator has to
        decide.
        """
        identity = self._identity.identity
        if identity.role == "leader" and identity.cluster:
            logger.warning(
                "leads_on epoch=%d copied_cluster=%s hint=this node was promoted: take --follow from its command line",
                identity.epoch,
                identity.cluster,
            )
            return True
        is_successor = identity.role == "leader" and str(uri) in identity.former_leaders
        if not is_successor or identity.is_fenced or identity.rewriting:
            return False
        answered = await self._ask_all()
        if self._identity.identity.is_fenced:
            return False
        if identity.had_followers and str(uri) not in answered:
            logger.error(
                "previous_leader_not_reached uri=%s action=serve_nobody hint=%s",
                uri,
                "this node was promoted, and another one may have been since: if none was, run leveretctl "
                "promote_follower",
            )
            return False
        logger.warning(
            "leads_on epoch=%d previous_leader=%s hint=this node was promoted: take --follow from its command line",
            identity.epoch,
            uri,
        )
        return True

    async def is_replaced(self) -> bool:
        """Whether a node that led, and is started to lead again, was replaced meanwhile; records that on disk.

        A promoted follower reports to this node only once this node's listener is open: until then it would confirm
        divergent messages. So all nodes that may know are asked first. If none answers in time, it leads as before:
        of two nodes without a third, neither can know whether the other one runs.
        """
        identity = self._identity.identity
        if not identity.is_fenced and not identity.rewriting:
            await self._ask_all()
        return identity.is_fenced

    async def _ask_all(self) -> set[str]:
        """Ask every follower and every previous leader for the leader, and record the latest leadership on disk.

        A promoted follower answers itself, or a previous leader answers that got its report. This node's own previous
        leader alone is not enough, because it may have been away then.

        Returns:
            The URIs of the nodes that answered.
        """
        identity = self._identity.identity
        uris = list(dict.fromkeys([*identity.followers, *identity.former_leaders]))
        async with asyncio.TaskGroup() as group:
            requests = {uri: group.create_task(self._ask(uri)) for uri in uris}
        answers = {uri: known for uri, request in requests.items() if (known := request.result()) is not None}
        for known in answers.values():
            if known.leadership > identity.leadership:
                self._see(known.leadership, known.uri if known.leader_id == known.node_id else "")
        return set(answers)

    async def _ask(self, uri: str) -> ProvenLeader | None:
        """The leadership that the node at a URI knows; None if it does not answer."""
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                return await self._fencer(parse_node_uri(uri)).notify()
        except (OSError, TimeoutError, LeveretError, ValueError) as error:
            logger.info("node_not_asked uri=%s error=%s", uri, str(error) or "no answer in time")
            return None

    # -- to be replaced -----------------------------------------------------------------------

    def followed(self, leader: ProvenLeader, at: NodeUri) -> None:
        """Record the leader that this node follows; if this node ever leads, it reports to it and to those before it.

        Raises:
            StorageError: the disk refuses it.
        """
        identity = self._identity.identity
        identity.see(leader.leadership)
        # A cluster goes on whoever is promoted beside it: it chooses its leaders itself.
        self._note_former([] if leader.cluster else [str(at), *leader.former])
        identity.cluster = leader.cluster
        self._identity.save()

    def took_over_from(self, uri: str) -> None:
        """Record the previous leader that will get reports; `take_lead` makes it durable."""
        self._note_former([uri, *self._identity.identity.former_leaders])

    def _note_former(self, uris: list[str]) -> None:
        others = [uri for uri in dict.fromkeys(uris) if uri]
        self._identity.identity.former_leaders = others[:FORMER_LEADERS_MAX]

    def _heard(self, other: ProvenLeader) -> None:
        """Take the answer of a previous leader, which may know a leader after this one."""
        identity = self._identity.identity
        if other.leadership > identity.leadership:
            self._see(other.leadership, other.uri if other.leader_id == other.node_id else "")
            self._replaced(other)

    def _see(self, leadership: Leadership, uri: str) -> None:
        identity = self._identity.identity
        if leadership > identity.seen:
            identity.see(leadership)
            identity.replaced_by = uri
            # First of all: no promise is kept from here on, nor after a restart.
            try:
                self._identity.save()
            except StorageError as error:
                # What it would confirm now is lost either way; roles.Roles saves it once the disk has room.
                logger.error("fence_not_recorded error=%s action=stop_serving", error)

    def met(self, other: ProvenFollower) -> bool:
        """Record a connecting node; return whether it, or the leader that it follows, replaces this node."""
        own = self._identity.identity.leadership
        # A node that comes to follow in the same epoch does not lead, whatever it was or followed.
        is_later = other.leadership > own if other.kind == "fence" else other.epoch > own.epoch
        if is_later:
            self._see(other.leadership, other.uri)
        return is_later
