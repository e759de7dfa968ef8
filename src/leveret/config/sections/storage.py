"""Settings of storage: the moment at which data counts as written, and the size of segments."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.config.kinds import Bytes, Choice
from leveret.config.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The moment at which data counts as written, and the size of segments."""

    durability: str = setting(
        "durability",
        Choice(("fsync", "os")),
        "fsync",
        "`fsync` confirms a message once it is on disk, `os` once the operating system has it: "
        "then a loss of power can undo confirmed changes.",
    )
    reserve_bytes: int = setting(
        "disk_reserve",
        Bytes(0, 2**30),
        "16MiB",
        "Disk space that the node reserves in the file disk.reserve of its data directory. "
        "When less than that is free, the node deletes the file, so that it can start on a "
        "full disk and its queues can be drained. The node makes the file again when twice as "
        "much is free. 0 for no reserve.",
    )
    segment_bytes_max: int = setting(
        "segment_bytes_max", Bytes(65_536, 2**31), "64MiB", "A segment file of a log is closed at this size."
    )
