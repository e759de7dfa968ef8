"""Who leads after whom: epochs, leaders that this node replaced, and the one that replaced it.

A promotion raises the epoch, on disk before anything is appended in it. A node that led and hears of a higher
epoch writes that down before anything else: it is fenced from that instant on, also after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from leveret.config.uris import NodeUri, parse_node_uri
from leveret.model.errors import LeveretError
from leveret.runtime.replication.fencer import Fencer
from leveret.runtime.replication.identity import IdentityFile
from leveret.session.link_handshake import Follower

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_S: Final = 1.0


class Succession:
    """See the module."""

    def __init__(self, identity: IdentityFile, fencer: Callable[[NodeUri], Fencer]) -> None:
        """`fencer` makes what tells the node at a URI of this one's epoch."""
        self._identity = identity
        self._fencer = fencer
        self._telling: dict[Fencer, asyncio.Task[None]] = {}

    # -- to lead ------------------------------------------------------------------------------

    def take_lead(self, *, raises_epoch: bool, epoch: int) -> None:
        """This node leads from now on; in that epoch, if one was won.

        Raises:
            StorageError: the disk refuses it.
        """
        identity = self._identity.identity
        epoch_before = identity.epoch
        if raises_epoch or not identity.epoch:
            identity.epoch = max(identity.epoch, identity.seen_epoch) + 1
        identity.epoch = max(identity.epoch, epoch)
        identity.seen_epoch = max(identity.seen_epoch, identity.epoch)
        if epoch_before == identity.epoch:
            identity.starts += 1
        else:
            identity.starts, identity.had_followers = 0, False
        identity.role, identity.led, identity.replaced_by = "leader", True, ""
        identity.rewriting = False
        # On disk before anything is appended in this epoch.
        self._identity.save()
        logger.info("leading epoch=%d node_id=%s", identity.epoch, identity.node_id)

    def tell_former_leaders(self) -> None:
        """Tell those whose place this node took, for as long as it leads: one may come back at any time."""
        for uri in self._identity.identity.former_leaders:
            try:
                fencer = self._fencer(parse_node_uri(uri))
            except ValueError:
                continue
            self._telling[fencer] = asyncio.get_running_loop().create_task(fencer.run())

    def stop(self) -> None:
        """Tell nobody any more."""
        for task in self._telling.values():
            task.cancel()
        self._telling.clear()

    async def leads_on(self, uri: NodeUri) -> bool:
        """Whether a node that was promoted and is started to follow its former leader again leads instead.

        Its service manager knows of no promotion, and has `--follow` on the command line still. But the same is said
        to a node that another one has replaced meanwhile. So the former leader is asked: one that knows of a higher
        epoch is to be followed. One that does not answer may be the leader only if a follower of this node could
        take over, so if there ever was one; then serving is left to the operator's word.
        """
        identity = self._identity.identity
        is_successor = identity.role == "leader" and str(uri) in identity.former_leaders
        if not is_successor or identity.is_fenced or identity.rewriting:
            return False
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                known = await self._fencer(uri).tell()
        except (OSError, TimeoutError, LeveretError) as error:
            if identity.had_followers:
                logger.error(
                    "former_leader_not_reached uri=%s error=%s action=serve_nobody hint=%s",
                    uri,
                    error,
                    "this node was promoted, and another one may have been since: if none was, run leveretctl "
                    "promote_follower",
                )
                return False
        else:
            if known > identity.epoch:
                return False
        logger.warning(
            "leads_on epoch=%d former_leader=%s hint=this node was promoted: take --follow from its command line",
            identity.epoch,
            uri,
        )
        return True

    # -- to be replaced -----------------------------------------------------------------------

    def met(self, other: Follower) -> bool:
        """Another node has come, of which this one knows now; tell whether that, or whom it follows, replaces this.

        Raises:
            StorageError: the disk refuses it.
        """
        identity = self._identity.identity
        if other.epoch <= identity.epoch:
            return False
        if other.epoch > identity.seen_epoch:
            identity.seen_epoch, identity.replaced_by = other.epoch, other.uri
            # Before anything else happens: nothing is promised from here on, nor after a restart.
            self._identity.save()
        return True
