"""Reports the new leader to a previous one, until that follows or the process ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from leveret.config.uris import NodeUri
from leveret.model.errors import LeveretError
from leveret.runtime.link.dialling import Dialling
from leveret.runtime.replication.identity import LinkEnd
from leveret.session.link_handshake import ProvenLeader

logger = logging.getLogger(__name__)

EVERY_S: Final = 0.5
"""A returning leader may confirm divergent messages for so long; `replication.min_in_sync` prevents that."""
_TIMEOUT_S: Final = 3.0


class Fencer:
    """Reports to one previous leader; see the module."""

    def __init__(self, uri: NodeUri, own: LinkEnd) -> None:
        """Begin without a report."""
        self._uri = uri
        self._own = own
        self._is_notified = False

    async def run(self, heard: Callable[[ProvenLeader], None]) -> None:
        """Report again and again, because the node may return at any time, from a copy of its disk as well.

        `heard` gets its answers.
        """
        while True:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    known = await self.notify()
            except (OSError, TimeoutError, LeveretError) as error:
                logger.debug("previous_leader_not_reached uri=%s error=%s", self._uri, error)
                self._is_notified = False
            else:
                heard(known)
                if not self._is_notified and known.leadership <= self._own.identity.identity.leadership:
                    logger.info(
                        "previous_leader_fenced uri=%s epoch=%d", self._uri, self._own.identity.identity.epoch
                    )
                self._is_notified = True
            await asyncio.sleep(EVERY_S)

    async def notify(self) -> ProvenLeader:
        """Report once; return its identity and the latest leadership that it knows.

        Raises:
            OSError: the node cannot be reached.
            LeveretError: it has another secret, or is no such node.
        """
        dialling = Dialling(self._own.prove)
        await dialling.connect(self._uri, self._own.tls() if self._uri.is_tls else None)
        try:
            return await dialling.shake(self._own.credentials.dials("fence", dialling.peer.channel))
        finally:
            dialling.peer.close()
