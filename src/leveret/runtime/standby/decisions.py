"""Run-time decisions of the standby - mode, link off, promotions - in a state file, or, of a cluster, in etcd.

The decisions override the configuration, also after a restart. A node of a cluster keeps a copy of the cluster's
decisions in its state file, so that a later start of the node alone does not fall back to the configuration. Fields
about this node alone are in the file only.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from leveret.core.queues.queue import Queue
from leveret.core.replication.standby_site import PromotionAttempt, SiteDecisions
from leveret.core.schema.operating_mode import OperatingMode, without_decisions
from leveret.model.definitions import REHEARSAL_VHOSTS
from leveret.model.errors import InvalidCommand, StorageError
from leveret.runtime.standby.recovery import reported_rows
from leveret.storage.state_file import StateFile
from leveret.wire.record import is_recovery

logger = logging.getLogger(__name__)

_DOWNSTREAM_ID_BYTES: Final = 6
Change = Callable[[SiteDecisions], SiteDecisions]


class SharedDecisions(Protocol):
    """The decisions of a cluster: runtime.cluster.sites.standby_site."""

    @property
    def decided(self) -> SiteDecisions:
        """The decisions in force."""

    async def decide(self, change: Change) -> None:
        """Store decisions, derived from those in force at the time of the write.

        Raises:
            LeveretError: the decisions cannot be stored, and are not in force.
        """


class _Content(msgspec.Struct, kw_only=True):
    """The content of the state file; without a mode the configured one applies."""

    operating_mode: OperatingMode | None = None
    connected: bool = True
    promoting: PromotionAttempt | None = None
    promotions: list[PromotionAttempt] = []
    is_partial: bool = False
    deleted: dict[str, dict[str, dict[str, int]]] = {}
    downstream_id: str = ""


class StandbyDecided:
    """The decisions in force.

    Attributes:
        configured: the mode in the settings.
        deleted: by vhost, queue and reference, the last number of a plan's messages in a queue when the queue was
            deleted; stored while a plan may go on.
        downstream_id: distinguishes this downstream from others of the same name; "" before `identify` has drawn it. It
            stays when the transferred data are deleted, because the upstream would keep records for the previous id.
    """

    def __init__(self, state_file: StateFile, configured: OperatingMode) -> None:
        """Read the earlier decisions.

        Raises:
            StorageError: the state file is damaged.
            InvalidCommand: the state file has an impossible value.
        """
        self._state_file = state_file
        self.configured = configured
        kept = state_file.load(without_decisions("standby.replication.operating_mode"))
        if kept.get("operating_mode") == "":
            # Earlier versions wrote this instead of None.
            del kept["operating_mode"]
        try:
            content = msgspec.convert(kept, _Content)
            self.own = msgspec.convert(
                {name: kept[name] for name in _OF_THE_SITE if name in kept}, SiteDecisions
            )
        except msgspec.ValidationError as error:
            raise InvalidCommand(f"{state_file.path}: {error}") from None
        self.deleted = content.deleted
        self.downstream_id = content.downstream_id
        self._shared: SharedDecisions | None = None

    def share(self, shared: SharedDecisions) -> None:
        """Put the decisions of a cluster in force instead of this node's own."""
        self._shared = shared

    @property
    def site(self) -> SiteDecisions:
        """The decisions in force."""
        return self.own if self._shared is None else self._shared.decided

    @property
    def mode(self) -> OperatingMode:
        """The operating mode."""
        return self.site.operating_mode or self.site.configured or self.configured

    @property
    def mode_at_run_time(self) -> OperatingMode | None:
        """The mode set at run time; None if the configured one applies."""
        return self.site.operating_mode

    @property
    def connected(self) -> bool:
        """Whether the link is wanted."""
        return self.site.connected

    @property
    def promoting(self) -> PromotionAttempt | None:
        """The unfinished promotion."""
        return self.site.promoting

    @property
    def promotions(self) -> list[PromotionAttempt]:
        """The finished promotions, oldest first."""
        return self.site.promotions

    @property
    def is_partial(self) -> bool:
        """Whether a promotion may have left a plan that its request excluded."""
        return self.site.is_partial

    async def decide(self, change: Change) -> None:
        """Put decisions in force, derived from the present ones.

        Raises:
            StorageError: the disk refused the write.
            LeveretError: the cluster's decisions cannot be stored.
        """
        if self._shared is None:
            self.keep(change(self.own))
        else:
            await self._shared.decide(change)
            self.copy()

    def copy(self) -> None:
        """Store a copy of the cluster's decisions if they changed; a full disk is no failure, because etcd has them."""
        site = self.site
        if site == self.own:
            return
        try:
            self.keep(site)
        except StorageError as error:
            logger.error("standby_decided_not_copied error=%s", error)

    def keep(self, decisions: SiteDecisions) -> None:
        """Make the decisions durable in the state file.

        Raises:
            StorageError: the disk refused the write.
        """
        before, self.own = self.own, decisions
        deleted = self.deleted
        if decisions.promoting is None and not decisions.is_partial:
            self.deleted = {}
        try:
            self.save()
        except StorageError:
            self.own, self.deleted = before, deleted
            raise

    def save(self) -> None:
        """Make all fields durable in the state file.

        Raises:
            StorageError: the disk refused the write.
        """
        content = _Content(
            **{name: getattr(self.own, name) for name in _OF_THE_SITE},
            deleted=self.deleted,
            downstream_id=self.downstream_id,
        )
        self._state_file.save(msgspec.to_builtins(content))

    def identify(self) -> str:
        """Return the id of this downstream, which is durable before an upstream receives it.

        Raises:
            StorageError: the disk refused the write.
        """
        if not self.downstream_id:
            self.downstream_id = new_downstream_id()
            try:
                self.save()
            except StorageError:
                self.downstream_id = ""
                raise
        return self.downstream_id

    def left_out(self) -> dict[str, Any] | None:
        """See SiteDecisions."""
        return self.site.left_out()

    def transferred(self, vhost: str, log_id: int) -> int | None:
        """See SiteDecisions; None unless this site is an upstream."""
        return self.site.transferred(vhost, log_id) if self.mode is OperatingMode.UPSTREAM else None

    def transferred_fingerprint(self, vhost: str, log_id: int) -> int | None:
        """See SiteDecisions; None unless this site is an upstream."""
        return self.site.transferred_fingerprint(vhost, log_id) if self.transferred(vhost, log_id) else None

    def promotion_summary(self) -> list[dict[str, Any]]:
        """Return the results of promotions, oldest first; rows as `promote` returns them."""
        found = [row for promotion in self.promotions for row in reported_rows(promotion.summary)]
        recovered = [row for row in found if row["message_count"]]
        return recovered or found[-1:]

    def note_deleted(self, queues: list[Queue]) -> None:
        """Store the last recovered numbers of deleted queues while plans may go on, because the queues' logs go.

        Messages that a client consumed from a queue that it then deleted must not come back. They do come back if
        another node of a cluster leads the queue.
        """
        if self.promoting is None and not self.is_partial:
            return
        found = {queue.key: numbers for queue in queues if (numbers := _recovered_numbers(queue))}
        for (vhost, name), numbers in found.items():
            self.deleted.setdefault(vhost, {}).setdefault(name, {}).update(numbers)
            messages = max(numbers.values())
            logger.warning(
                "standby_promotion_queue_deleted vhost=%s queue=%s messages=%d", vhost, name, messages
            )
        try:
            if found:
                self.save()
        except StorageError as error:
            logger.error("standby_promotion_queue_deleted_not_kept error=%s", error)

    def deleted_at(self, key: tuple[str, str], reference: str) -> int:
        """See RecoveryIngest."""
        return self.deleted.get(key[0], {}).get(key[1], {}).get(reference, 0)


_OF_THE_SITE: Final = ("operating_mode", "connected", "promoting", "promotions", "is_partial")
"""The fields of the state file that belong to the site."""


def new_downstream_id() -> str:
    """Draw the id of a downstream."""
    return secrets.token_hex(_DOWNSTREAM_ID_BYTES)


def _recovered_numbers(queue: Queue) -> dict[str, int]:
    """Return the last number of each recovery in a queue; none for a rehearsal's queues, which go with their vhosts."""
    if queue.key[0].startswith(REHEARSAL_VHOSTS):
        return {}
    return {name.decode(): last for name, last in queue.sequences.logged.items() if is_recovery(name)}
