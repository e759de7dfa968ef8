"""Shares of the process's file descriptors, so that strangers cannot take the descriptors that the node needs.

The node keeps a reserve for itself. The logs and each group commit have a bound, and each kind of listener has a
share of its own: a flood at one port takes nothing from the other ports, nor from the disk.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

DESCRIPTORS: Final = "file_descriptor_limit"
"""The alarm's name, which is RabbitMQ's. It blocks no publishers: they have their sockets."""


class ListenerKind(StrEnum):
    """A kind of listener; its plain sockets and those with TLS share."""

    AMQP = "amqp"
    STREAM = "stream"
    HTTP = "http"
    METRICS = "metrics"
    CONTROL = "control"
    """The operator's socket in the data directory."""
    REPLICATION = "replication"
    """Followers."""
    CLUSTER = "cluster"
    """Other nodes of the cluster."""


class _Part(NamedTuple):
    """What somebody gets: so many always, such a part of what is left then, and never more than that."""

    least: int
    percent: int
    most: int


_PARTS: Final = {
    ListenerKind.AMQP: _Part(6, 40, 2**20),
    ListenerKind.STREAM: _Part(3, 12, 2**20),
    ListenerKind.HTTP: _Part(3, 8, 2000),
    ListenerKind.METRICS: _Part(2, 1, 200),
    ListenerKind.CONTROL: _Part(2, 2, 200),
    ListenerKind.REPLICATION: _Part(2, 3, 500),
    ListenerKind.CLUSTER: _Part(2, 6, 4000),
}
_LOGS: Final = _Part(4, 20, 2**20)
_SYNCING: Final = _Part(4, 4, 1024)
OWN: Final = 36
"""The event loop, listeners, the log file and locks are about 25; the rest is for files that are open for a moment:
state files, directories, what the scrub and Spark's start need."""
LEAST: Final = OWN + sum(part.least for part in (*_PARTS.values(), _LOGS, _SYNCING))
"""With fewer descriptors no node starts."""
_ALL: Final = 2**20
"""As many count where the system sets no limit."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Who may have how many descriptors open at once.

    Attributes:
        limit: all together.
        shares: connections, by kind of listener.
        logs: segments of logs that stay open.
        syncing: logs that one round of the group commit syncs at a time; each needs a second descriptor.
    """

    limit: int
    shares: dict[ListenerKind, int]
    logs: int
    syncing: int

    def from_one_address(self, kind: ListenerKind) -> int:
        """How many connections one address may have: it leaves others a tenth of a listener's share."""
        share = self.shares[kind]
        return share - max(1, share // 10)

    def unproven(self, kind: ListenerKind) -> int:
        """How many peers of a link may be connected that have not proven the secret: half of the share."""
        return max(1, self.shares[kind] // 2)


def divide(limit: int) -> Budget:
    """The budget of a process that may have `limit` descriptors open, at least LEAST; negative for no limit."""
    limit = limit if 0 <= limit < _ALL else _ALL
    left = limit - LEAST

    def part(of: _Part) -> int:
        return min(of.most, of.least + left * of.percent // 100)

    shares = {kind: part(of) for kind, of in _PARTS.items()}
    return Budget(limit, shares, part(_LOGS), part(_SYNCING))


class ListenerRefusal(StrEnum):
    """Why a connection is closed as it comes."""

    SHARE = "share"
    """Its kind of listener has as many as the descriptors suffice for."""
    ADDRESS = "address"
    """Its address has nearly all of those."""
    SETTING = "setting"
    """A setting allows no more."""
    SYSTEM = "system"
    """The system had no descriptor for it."""


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What settings allow a kind of listener beyond the budget; None for no limit."""

    total: int | None = None
    per_address: int | None = None


NO_LISTENER_LIMITS: Final = ListenerLimits()


@dataclass(slots=True)
class ConnectionTally:
    """The connections of one kind of listener.

    Attributes:
        share: the most there may be.
        per_address: the most that come from one address; empty addresses are not counted.
        count: how many there are.
        refused: how many were refused since the node started, by reason.
    """

    share: int
    per_address: int
    count: int = 0
    refused: Counter[ListenerRefusal] = field(default_factory=Counter)
    _by_address: Counter[str] = field(default_factory=Counter)

    def admit(self, address: str, listener_limits: ListenerLimits) -> ListenerRefusal | None:
        """Count one more connection, which `release` ends; or tell why it is refused."""
        why = self._why_not(address, listener_limits)
        if why is not None:
            self.refused[why] += 1
            return why
        self.count += 1
        if address:
            self._by_address[address] += 1
        return None

    def _why_not(self, address: str, listener_limits: ListenerLimits) -> ListenerRefusal | None:
        existing = self._by_address[address] if address else 0
        if listener_limits.total is not None and self.count >= listener_limits.total:
            return ListenerRefusal.SETTING
        if listener_limits.per_address is not None and existing >= listener_limits.per_address:
            return ListenerRefusal.SETTING
        if self.count >= self.share:
            return ListenerRefusal.SHARE
        return ListenerRefusal.ADDRESS if existing >= self.per_address else None

    def release(self, address: str) -> None:
        """A connection that was admitted is gone."""
        self.count -= 1
        if address:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
