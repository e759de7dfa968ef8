"""A node's look at the archive that the nodes of a cluster share: whether it reaches the same one as the others."""

from __future__ import annotations

import logging
import time
from typing import Final

from leveret.runtime.standby.archive import StandbyArchive
from leveret.runtime.standby.decisions import StandbyDecided
from leveret.runtime.standby.pipeline_process import PipelineFailed
from leveret.runtime.standby.site import StandbySite

logger = logging.getLogger(__name__)

AGAIN_S: Final = 10.0


class FoundArchive:
    """Looks once, and after a failure again; an archive of the node's own is found without a look.

    Attributes:
        error: the reason why the archive was not found; empty if it was, or before the first look.
    """

    def __init__(self, site: StandbySite, decided: StandbyDecided, archive: StandbyArchive) -> None:
        """Begin without a look."""
        self._site = site
        self._decided = decided
        self._archive = archive
        self._found_id = ""
        self._looked_s = -AGAIN_S
        self.error = ""

    @property
    def is_found(self) -> bool:
        """Whether this node may use the archive; not while its settings differ from the cluster's."""
        if self._archive.is_shared != self._site.is_shared:
            return False
        return not self._site.is_shared or bool(
            self._found_id and self._found_id == self._decided.site.archive_id
        )

    async def find(self) -> None:
        """Look unless the archive is found; the first node of the cluster to look gives the archive its id.

        Raises:
            PipelineFailed: the archive is another one, or cannot be reached. The next look may be `AGAIN_S` later.
            LeveretError: the cluster's decisions cannot be stored.
        """
        if self.is_found or not (self._archive.is_shared and self._site.is_shared):
            return
        if self.error and time.monotonic() - self._looked_s < AGAIN_S:
            raise PipelineFailed(self.error)
        me = self._site.name
        try:
            found = await self._archive.identify(self._site.cluster_id, self._decided.site.archive_id)
            await self._decided.decide(lambda site: site.with_archive(me, found))
            if self._decided.site.archive_id != found:
                # Another node was faster, at another place: the next look says so.
                await self._archive.identify(self._site.cluster_id, self._decided.site.archive_id)
        except PipelineFailed as error:
            self.error, self._looked_s = str(error), time.monotonic()
            await self._decided.decide(lambda site: site.without_archive(me))
            raise
        self._found_id, self.error = found, ""
        logger.info("standby_archive_found id=%s", found)
