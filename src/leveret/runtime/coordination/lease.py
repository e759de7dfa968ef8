"""A lease of etcd that is kept alive, and checked against this node's own clock.

    lease = await KeptLease.granted(etcd, 2.0, on_error=told)
    lease.keep(on_lost=stop_serving)
    if lease.is_held_now(): ...                              # before a promise is kept, each time
    lease.end(); await lease.revoke()

core.replication.election.Lease decides; this module asks etcd and reads the clock. The clock continues while the
machine sleeps, and it is read at the moment of a promise. So a node that was stopped, or whose event loop stood
still, for longer than its lease notices before it keeps the promise, and not only when a timer gets its turn.
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
"""One endpoint has this part of a lease for an answer, so that there is time for others."""
ATTEMPT_TIMEOUT_S_MAX: Final = 2.0
"""Nor has an endpoint longer when leases are long."""
RETRY_S: Final = 0.1
TIMER_S_MIN: Final = 0.001


def boot_clock_s() -> float:
    """Seconds since the machine started, those included in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def attempt_timeout_s(ttl_s: float) -> float:
    """How long one endpoint of etcd has for an answer, where leases last for `ttl_s`."""
    return min(ttl_s / ATTEMPTS_PER_LEASE, ATTEMPT_TIMEOUT_S_MAX)


class KeptLease:
    """See the module. All of it in one event loop.

    Attributes:
        id: etcd's.
        last_error: of a request about it; empty before there was one.
    """

    def __init__(
        self,
        etcd: Etcd,
        lease_id: int,
        lease: core.LeaseClock,
        *,
        on_error: Callable[[str], None],
        clock_s: Callable[[], float],
        companion: LeaseCompanion | None,
    ) -> None:
        """Of a lease that etcd gave; see `granted`."""
        self._companion = companion
        self.id = lease_id
        self.last_error = ""
        self._etcd = etcd
        self._lease = lease
        self._on_error = on_error
        self._clock_s = clock_s
        self._on_lost: Callable[[str], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def granted(
        cls,
        etcd: Etcd,
        ttl_s: float,
        *,
        on_error: Callable[[str], None],
        clock_s: Callable[[], float] = boot_clock_s,
        options: EtcdOptions | None = None,
    ) -> Self:
        """Get a lease; it is kept alive from `keep` on.

        Args:
            etcd: to be asked, now and later.
            ttl_s: how long it lasts without being kept alive; whole seconds are asked for.
            on_error: told in words of each request about it that failed.
            clock_s: seconds that go on while the machine sleeps.
            options: where a companion finds etcd, which ends the lease if this process is killed; None for no
                companion.

        Raises:
            EtcdError: there is none to be had.
        """
        sent_s = clock_s()
        lease_id, granted_s = await etcd.grant(round(ttl_s))
        clock = core.LeaseClock(granted_s, sent_s)
        companion = LeaseCompanion(options, lease_id, granted_s) if options is not None else None
        return cls(etcd, lease_id, clock, on_error=on_error, clock_s=clock_s, companion=companion)

    @property
    def left_s(self) -> float:
        """How long it may be relied on, if no keepalive comes; 0 or less when it is over."""
        return self._lease.ends_s - self._clock_s()

    @property
    def is_fresh(self) -> bool:
        """Whether enough is left of it for something new to begin."""
        return self._clock_s() < self._lease.fresh_until_s

    def is_held_now(self) -> bool:
        """Whether nobody else can have what is tied to it yet, by the clock: cheap."""
        if self._lease.is_held(self._clock_s()):
            return True
        self.lose(f"no keepalive of the lease in time; last error: {self.last_error or 'none'}")
        return False

    def keep(self, on_lost: Callable[[str], None]) -> None:
        """Keep it alive until `end`; `on_lost` is told why, once, when it is over before that.

        It is told from within `is_held_now`, or from the event loop as soon as that has its turn.
        """
        self._on_lost = on_lost
        self._keeper = asyncio.get_running_loop().create_task(self._keep())
        self._set_timer()

    def lose(self, reason: str) -> None:
        """It is over against this node's will: it is not held any more, whatever answer comes late."""
        self._lease.give_up()
        on_lost, self._on_lost = self._on_lost, None
        self._stop()
        if on_lost is not None:
            on_lost(reason)

    def end(self) -> None:
        """Give it up: nobody is told."""
        self._on_lost = None
        self._lease.give_up()
        self._stop()

    async def revoke(self) -> bool:
        """Have etcd end it now, so that others need not wait for its end; return False if it may last on.

        Without an answer it ends by itself, but begins anew with a restart of etcd: try again when etcd answers.
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
        if self._keeper is not None and self._keeper is not asyncio.current_task():
            self._keeper.cancel()

    def _set_timer(self) -> None:
        wait_s = max(TIMER_S_MIN, self.left_s)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look_at_clock)

    def _look_at_clock(self) -> None:
        if self._on_lost is not None and self.is_held_now():
            self._set_timer()

    async def _keep(self) -> None:
        while self._on_lost is not None:
            if self._companion is not None:
                self._companion.look()
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
            else:
                self.lose("etcd has ended the lease")

    def _failed(self, error: EtcdError) -> None:
        self.last_error = str(error)
        self._on_error(self.last_error)
