"""A lease of etcd that is kept alive, and checked against this node's own clock.

    lease = await KeptLease.granted(etcd, 2.0, on_error=note)
    lease.keep(on_lost=stop_serving)
    if lease.is_held_now(): ...                              # before a promise is kept, each time
    lease.end(); await lease.revoke()

core.replication.election.LeaseClock decides; this module sends requests to etcd and reads the clock. The clock
continues while the machine sleeps, and it is read at the moment of a promise. So a node that was stopped, or whose
event loop stood still, for longer than its lease notices before it keeps the promise, and not only when a timer fires.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Self

from leveret.config.sections.etcd import EtcdOptions
from leveret.core.replication import election as core
from leveret.runtime.coordination.companion import LeaseCompanion
from leveret.runtime.coordination.etcd import Etcd, EtcdError

logger = logging.getLogger(__name__)

ATTEMPTS_PER_LEASE: Final = 3
"""One endpoint has this part of a lease's time for an answer, so that time is left for others."""
ATTEMPT_TIMEOUT_S_MAX: Final = 2.0
"""The limit of an endpoint's time for an answer when leases are long."""
RETRY_S: Final = 0.1
TIMER_S_MIN: Final = 0.001


def boot_clock_s() -> float:
    """Return seconds since the machine started, including those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def attempt_timeout_s(ttl_s: float) -> float:
    """Return the time that one endpoint of etcd has for an answer if leases last for `ttl_s`."""
    return min(ttl_s / ATTEMPTS_PER_LEASE, ATTEMPT_TIMEOUT_S_MAX)


class KeptLease:
    """See the module. All calls come from one event loop.

    Attributes:
        id: the lease's id in etcd.
        last_error: the last error of a request about the lease; empty before there was one.
    """

    def __init__(
        self,
        etcd: Etcd,
        lease_id: int,
        lease: core.LeaseClock,
        *,
        on_error: Callable[[str], None],
        on_renewed: Callable[[], None],
        clock_s: Callable[[], float],
        companion: LeaseCompanion | None,
    ) -> None:
        """Use a lease that etcd granted; see `granted`."""
        self._companion = companion
        self.id = lease_id
        self.last_error = ""
        self._etcd = etcd
        self._lease = lease
        self._on_error = on_error
        self._on_renewed = on_renewed
        self._clock_s = clock_s
        self._on_lost: Callable[[str], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def granted(
        cls,
        etcd: Etcd,
        ttl_s: float,
        *,
        on_error: Callable[[str], None],
        on_renewed: Callable[[], None] = lambda: None,
        clock_s: Callable[[], float] = boot_clock_s,
        options: EtcdOptions | None = None,
    ) -> Self:
        """Get a lease; `keep` begins to keep it alive.

        Args:
            etcd: the client for all requests.
            ttl_s: the time of the lease without a keepalive, rounded to whole seconds.
            on_error: receives the text of each failed request about the lease.
            on_renewed: called after each renewal of the lease.
            clock_s: a clock in seconds that goes on while the machine sleeps.
            options: etcd's addresses for a companion, which ends the lease if this process is killed; None for no
                companion.

        Raises:
            EtcdError: etcd granted no lease.
        """
        sent_s = clock_s()
        lease_id, granted_s = await etcd.grant(round(ttl_s))
        clock = core.LeaseClock(granted_s, sent_s)
        companion = LeaseCompanion(options, lease_id, granted_s) if options is not None else None
        return cls(
            etcd,
            lease_id,
            clock,
            on_error=on_error,
            on_renewed=on_renewed,
            clock_s=clock_s,
            companion=companion,
        )

    @property
    def left_s(self) -> float:
        """The time for which the lease may be relied on without a keepalive, in seconds; 0 or less when it is over."""
        return self._lease.ends_s - self._clock_s()

    @property
    def is_fresh(self) -> bool:
        """Whether enough time is left for new work to begin."""
        return self._clock_s() < self._lease.fresh_until_s

    def is_held_now(self) -> bool:
        """Whether no other node can have the keys bound to the lease yet, by the clock. Cheap."""
        if self._lease.is_held(self._clock_s()):
            return True
        self.lose(f"no keepalive of the lease in time; last error: {self.last_error or 'none'}")
        return False

    def keep(self, on_lost: Callable[[str], None]) -> None:
        """Keep the lease alive until `end`; `on_lost` receives the reason, once, if it is over before that.

        `on_lost` is called from within `is_held_now`, or from the event loop in its next turn.
        """
        self._on_lost = on_lost
        self._renewing = asyncio.get_running_loop().create_task(self._renew())
        self._set_timer()

    def lose(self, reason: str) -> None:
        """Give the lease up against this node's will: a late answer does not revive it."""
        self._lease.give_up()
        on_lost, self._on_lost = self._on_lost, None
        self._stop()
        if on_lost is not None:
            on_lost(reason)

    def end(self) -> None:
        """Give the lease up without a call of `on_lost`."""
        self._on_lost = None
        self._lease.give_up()
        self._stop()

    async def revoke(self) -> bool:
        """Revoke the lease, so that others need not wait for its end; return False if it may last on.

        Without an answer the lease ends by itself, but a restart of etcd renews it: try again when etcd answers.
        """
        try:
            await self._etcd.revoke(self.id)
        except EtcdError as error:
            self._failed(error)
            return False
        return True

    def _stop(self) -> None:
        if self._companion is not None:
            self._companion.release()
        if self._timer is not None:
            self._timer.cancel()
        if self._renewing is not None and self._renewing is not asyncio.current_task():
            self._renewing.cancel()

    def _set_timer(self) -> None:
        wait_s = max(TIMER_S_MIN, self.left_s)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look_at_clock)

    def _look_at_clock(self) -> None:
        if self._on_lost is not None and self.is_held_now():
            self._set_timer()

    async def _renew(self) -> None:
        while self._on_lost is not None:
            if self._companion is not None:
                self._companion.ensure_started()
            await asyncio.sleep(max(0.0, self._lease.keepalive_s - self._clock_s()))
            sent_s = self._clock_s()
            try:
                ttl_s = await self._etcd.keep_alive(self.id)
            except EtcdError as error:
                self._failed(error)
                await asyncio.sleep(RETRY_S)
                continue
            if ttl_s > 0:
                self._lease.renewed(ttl_s, sent_s, self._clock_s())
                self._on_renewed()
            else:
                self.lose("etcd has ended the lease")

    def _failed(self, error: EtcdError) -> None:
        self.last_error = str(error)
        self._on_error(self.last_error)
