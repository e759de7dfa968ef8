"""Counts the process's connections by kind of listener, and refuses those beyond the budget.

The limit of open files is the process's, so there is one `ConnectionBudget` a process, which `process_sockets` gives.
Every listener accepts through `runtime.sockets.acceptor`, which asks here.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Final

from leveret.core.rules.descriptors import (
    DESCRIPTORS,
    LEAST,
    Budget,
    ConnectionTally,
    ListenerKind,
    ListenerLimits,
    ListenerRefusal,
    divide,
)
from leveret.model.errors import LeveretError

logger = logging.getLogger(__name__)

ALARM_S: Final = 5.0
"""The alarm ends this long after the last refusal for want of descriptors."""
_REPORT_EVERY_S: Final = 10.0
"""The shortest time between two log lines about a flood."""


class ConnectionSlot:
    """The place of one connection in a tally: taken when it is admitted, and released once."""

    def __init__(self, sockets: ConnectionBudget, tally: ConnectionTally, address: str) -> None:
        """Stand for a connection that the tally has counted."""
        self._sockets = sockets
        self._tally: ConnectionTally | None = tally
        self._address = address

    def release(self) -> None:
        """End the count; may be called again."""
        tally, self._tally = self._tally, None
        if tally is not None:
            tally.release(self._address)

    def move(self, kind: ListenerKind, address: str, listener_limits: ListenerLimits) -> bool:
        """Count the connection as one of another kind of listener; False, and no change, if that has no place."""
        if self._tally is None or not self._sockets.admit(kind, address, listener_limits):
            return False
        self._tally.release(self._address)
        self._tally, self._address = self._sockets.tallies[kind], address
        return True


class ConnectionBudget:
    """The counts and refusals of the process's connections.

    Attributes:
        budget: the shares of descriptors.
        tallies: the connections of each kind of listener.
        is_short: whether connections are refused for want of descriptors, or were a moment ago.
    """

    def __init__(self, budget: Budget, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without connections."""
        self.budget = budget
        self.tallies = {
            kind: ConnectionTally(share, budget.from_one_address(kind))
            for kind, share in budget.shares.items()
        }
        self.is_short = False
        self._clock_s = clock_s
        self._refused_at_s = 0.0
        self._reported_at_s: dict[tuple[ListenerKind, ListenerRefusal], float] = {}

    def admit(self, kind: ListenerKind, address: str, listener_limits: ListenerLimits) -> bool:
        """Count a connection from that address, and return whether it may stay; `ConnectionTally.release` ends it."""
        why = self.tallies[kind].admit(address, listener_limits)
        if why is None:
            return True
        self._refused(kind, why, address)
        return False

    def take(
        self, kind: ListenerKind, address: str, listener_limits: ListenerLimits
    ) -> ConnectionSlot | None:
        """As `admit`; the place of the connection, or None if there is none for it."""
        return (
            ConnectionSlot(self, self.tallies[kind], address)
            if self.admit(kind, address, listener_limits)
            else None
        )

    def system_refused(self, kind: ListenerKind) -> None:
        """Note that the system has no descriptor left: other code uses more than the budget assumes."""
        self.tallies[kind].refused[ListenerRefusal.SYSTEM] += 1
        self._refused(kind, ListenerRefusal.SYSTEM, "")

    def _refused(self, kind: ListenerKind, why: ListenerRefusal, address: str) -> None:
        now_s = self._clock_s()
        reported_at_s = self._reported_at_s.get((kind, why))
        if reported_at_s is None or now_s - reported_at_s >= _REPORT_EVERY_S:
            self._reported_at_s[kind, why] = now_s
            tally = self.tallies[kind]
            logger.warning(
                "connections_refused listener=%s reason=%s peer=%s open=%d limit=%d refused_so_far=%d "
                "open_files_limit=%d",
                kind,
                why,
                address or "unknown",
                tally.count,
                tally.share,
                tally.refused.total(),
                self.budget.limit,
            )
        if why is not ListenerRefusal.SETTING:
            self._refused_at_s = now_s
            if not self.is_short:
                self.is_short = True
                logger.warning(
                    "alarm_in_effect resources=%s listener=%s action=refuse_new_connections "
                    "hint=raise the limit of open files (ulimit -n, LimitNOFILE), or look for clients that connect "
                    "too often",
                    DESCRIPTORS,
                    kind,
                )

    def judge(self) -> None:
        """End the alarm if no connection was refused for a while."""
        if self.is_short and self._clock_s() - self._refused_at_s >= ALARM_S:
            self.is_short = False
            logger.info("alarms_cleared resources=%s", DESCRIPTORS)


@cache
def process_sockets() -> ConnectionBudget:
    """The counts of this process, whose limit of open files is raised to the most that the system allows.

    Raises:
        LeveretError: that is not enough for a node.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < LEAST:
        raise LeveretError(
            f"this process may have {limit} files open (ulimit -Hn), and a node needs at least {LEAST}: "
            "raise the limit with ulimit -n, or LimitNOFILE= of the systemd unit"
        )
    return ConnectionBudget(divide(limit))
