"""Alarms of a node: memory, disk, and followers in sync.

The memory alarm and the disk alarm each have a limit, which is a size or a fraction of the machine's memory. The third
alarm is raised when fewer followers are in sync than `replication.min_in_sync`. While an alarm is in effect,
connections that publish are not read (RabbitMQ's rules). Nothing here looks at the machine: `measure` takes the
measured values as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MEMORY: Final = "memory"
DISK: Final = "disk"
REPLICAS: Final = "in-sync followers"
_LOW: Final = "low on "
_AND: Final = " & "
_BYTES_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Watermark:
    """A limit: `bytes_` if it is not None, else `ratio` of the memory size; both None for no limit."""

    ratio: float | None = None
    bytes_: int | None = None

    def of(self, total_bytes: int) -> int | None:
        """The limit in bytes, None for none."""
        if self.bytes_ is not None:
            return self.bytes_
        # A ratio may be so large that the product is no finite number.
        return None if self.ratio is None else int(min(self.ratio * total_bytes, _BYTES_MAX))


class Alarms:
    """The state of a node's alarms.

    Attributes:
        memory_total_bytes: the memory size.
        memory_used_bytes, disk_free_bytes: as last measured; the disk's is None where it is unknown.
        own: this node's alarms, in RabbitMQ's order.
        active: the alarms in effect: its own, and those of other nodes of the cluster that lead queues for its clients.
    """

    def __init__(self, memory: Watermark, disk: Watermark, memory_total_bytes: int) -> None:
        """No alarm until the first measurement."""
        self.memory = memory
        self.disk = disk
        self.memory_total_bytes = memory_total_bytes
        self.memory_used_bytes = 0
        self.disk_free_bytes: int | None = None
        self.own: tuple[str, ...] = ()
        self.active: tuple[str, ...] = ()
        self._elsewhere: tuple[str, ...] = ()
        self._replicas_short = False

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory use above which the alarm is raised."""
        return self.memory.of(self.memory_total_bytes)

    @property
    def disk_limit_bytes(self) -> int | None:
        """The free disk below which the alarm is raised."""
        return self.disk.of(self.memory_total_bytes)

    @property
    def mem_alarm(self) -> bool:
        """Whether memory is low, by RabbitMQ's name."""
        return MEMORY in self.own

    @property
    def disk_free_alarm(self) -> bool:
        """Whether the disk is full, by RabbitMQ's name."""
        return DISK in self.own

    @property
    def replicas_alarm(self) -> bool:
        """Whether too few followers are in sync; RabbitMQ has no such alarm."""
        return REPLICAS in self.own

    def measure(self, memory_used_bytes: int, disk_free_bytes: int | None) -> bool:
        """Take measured values; return whether the alarms in effect changed."""
        self.memory_used_bytes = memory_used_bytes
        self.disk_free_bytes = disk_free_bytes
        return self._judge()

    def set_memory(self, limit: Watermark) -> bool:
        """Set another memory limit; return whether the alarms in effect changed."""
        self.memory = limit
        return self._judge()

    def set_disk(self, limit: Watermark) -> bool:
        """Set another disk limit; return whether the alarms in effect changed."""
        self.disk = limit
        return self._judge()

    def set_replicas_short(self, is_short: bool) -> bool:
        """Set whether too few followers are in sync; return whether the alarms in effect changed."""
        self._replicas_short = is_short
        return self._judge()

    def set_elsewhere(self, resources: tuple[str, ...]) -> bool:
        """Set the resources that other nodes are short of; return whether the alarms in effect changed."""
        self._elsewhere = resources
        return self._judge()

    def _judge(self) -> bool:
        found: list[str] = []
        memory, disk = self.memory_limit_bytes, self.disk_limit_bytes
        if disk is not None and self.disk_free_bytes is not None and self.disk_free_bytes < disk:
            found.append(DISK)
        if memory is not None and self.memory_used_bytes > memory:
            found.append(MEMORY)
        if self._replicas_short:
            found.append(REPLICAS)
        self.own = tuple(found)
        found += [each for each in self._elsewhere if each not in found]
        before, self.active = self.active, tuple(found)
        has_changed = before != self.active
        if has_changed:
            self.changed()
        return has_changed

    def changed(self) -> None:
        """The alarms in effect have changed; for a subclass that reports it."""


def reason(active: tuple[str, ...]) -> str:
    """The reason in connection.blocked for a client."""
    return f"{_LOW}{_AND.join(active)}"


def resources(text: str) -> tuple[str, ...]:
    """The resources in a `reason` from another node."""
    return tuple(text.removeprefix(_LOW).split(_AND))
