"""The operators' view of replication, and their commands (management.node.ReplicationOperations)."""

from __future__ import annotations

import logging
import time
from typing import Any

from leveret.core.replication.election import TORN
from leveret.runtime.integrity.inspection import Inspection
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.replication.delaying import ALL_MS
from leveret.runtime.roles.promotion_conditions import undecided, why_not
from leveret.runtime.roles.roles import Roles
from leveret.runtime.roles.status import delayed_changes, follower_status, leader_status, would_lose

logger = logging.getLogger(__name__)


class ReplicationCommands:
    """See the module."""

    def __init__(self, roles: Roles) -> None:
        """Use the roles of this process."""
        self._roles = roles

    # -- the status ---------------------------------------------------------------------------

    @property
    def role(self) -> str:
        """See ReplicationOperations."""
        return self._roles.role

    @property
    def epoch(self) -> int:
        """See ReplicationOperations."""
        return self._roles.identity.epoch

    @property
    def state(self) -> str:
        """See ReplicationOperations."""
        return self._roles.state

    @property
    def has_follower_in_sync(self) -> bool:
        """See ReplicationOperations."""
        server = self._roles.follower_server
        return self.role != "leader" or (server is not None and bool(server.feed.in_sync.members))

    @property
    def inspection(self) -> Inspection:
        """See ReplicationOperations."""
        return self._roles.inspection

    def status(self) -> dict[str, Any]:
        """See ReplicationOperations."""
        roles = self._roles
        identity, config, inbound, listener = roles.identity, roles.config, roles.inbound, roles.listener
        settings, following = config.followers, roles.following
        newest_at_ms = following.newest_at_ms if following is not None else None
        address = listener.address if listener is not None else None
        return {
            "role": roles.role,
            "epoch": identity.epoch,
            "node_id": identity.node_id,
            "node": config.node_name,
            "state": roles.state,
            "error": inbound.error if inbound is not None else "",
            "incomplete": TORN if identity.rewriting else "",
            "listener": str(address) if address else None,
            "confirm": settings.confirm,
            "min_in_sync": settings.min_in_sync,
            "below_min_in_sync": settings.below_min_in_sync,
            **leader_status(roles.follower_server),
            "leader": follower_status(inbound, identity, settings.apply_delay_ms, clock_ms(), newest_at_ms),
            "etcd": roles.elected.status() if roles.elected is not None else None,
            "proxy": roles.proxy.status() if roles.proxy is not None else None,
            "proxied_here": roles.passed_on_clients.passed_on,
            "scrub": roles.inspection.scrub_status(),
            "verify": roles.inspection.verify_status(),
        }

    # -- promotion ----------------------------------------------------------------------------

    async def promote(
        self, *, dry_run: bool, force: bool, apply_until_ms: int | None = None
    ) -> dict[str, Any]:
        """See ReplicationOperations."""
        roles, following, inbound = self._roles, self._roles.following, self._roles.inbound
        roles.refuse_if_leading()
        outcome: dict[str, Any] = {
            "would_lose": would_lose(inbound, clock_ms()),
            "state": roles.state,
            "epoch": self.epoch,
            "promoted": False,
            "took_ms": None,
            "held_back": None,
            "set_aside": None,
        }
        # No force opens an address that another process has.
        obstacle = undecided(following, apply_until_ms) or roles.occupied_address()
        reason = obstacle or ("" if force else why_not(roles.role, roles.identity, following, apply_until_ms))
        if following is not None and following.delaying is not None:
            outcome["held_back"] = delayed_changes(await following.delaying.left_after(apply_until_ms))
        if dry_run or reason:
            return outcome | {"reason": reason or None}
        began_s = time.perf_counter()
        if roles.elected is not None:
            declined = await roles.elected.campaign(force=force)
            if declined:
                return outcome | {"reason": declined}
        else:
            until_ms = ALL_MS if apply_until_ms is None else apply_until_ms
            outcome["set_aside"] = await roles.take_over(until_ms)
            # The leader may have gone silent just before, and not have answered.
            outcome["would_lose"] = would_lose(inbound, clock_ms())
        return outcome | self._promoted(began_s)

    def _promoted(self, began_s: float) -> dict[str, Any]:
        took_ms = round((time.perf_counter() - began_s) * 1000)
        logger.warning("promoted epoch=%d took_ms=%d", self.epoch, took_ms)
        return {
            "promoted": True,
            "epoch": self.epoch,
            "state": self.state,
            "took_ms": took_ms,
            "reason": None,
        }
