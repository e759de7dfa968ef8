"""The resources that a process and its descendants hold, and the trends of these over the hours of a soak."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from leveret.testing.servers.process import descendants

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_SETTLING_SHARE: Final = 1 / 3
"""The first part of a soak: caches fill, heaps take their size, Spark compiles. No trend is taken from it."""


class Sample(NamedTuple):
    """One look at a tree of processes.

    Attributes:
        at_s: seconds since the soak began.
        resident_mb: resident memory of all processes.
        descriptors, threads: their open file descriptors, and their threads.
        disk_mb: the size of the files in the data directory.
    """

    at_s: float
    resident_mb: float
    descriptors: int
    threads: int
    disk_mb: float


class Trend(NamedTuple):
    """The course of one resource after the settling part.

    Attributes:
        first, last: medians of the first and the last quarter.
        hourly: the growth in an hour, by the median slope of all pairs of samples (Theil and Sen), which a few peaks
            do not move.
    """

    first: float
    last: float
    hourly: float


def sample(pid: int, data_dir: Path, at_s: float) -> Sample:
    """Look at the process `pid` and its descendants; a process that ends meanwhile counts for nothing."""
    pids = [pid, *(child for child, _started in descendants(pid))]
    return Sample(
        at_s,
        sum(_resident_bytes(each) for each in pids) / 1e6,
        sum(_entries(each, "fd") for each in pids),
        sum(_entries(each, "task") for each in pids),
        sum(_file_bytes(data_dir)) / 1e6,
    )


def trends(samples: Sequence[Sample]) -> dict[str, Trend]:
    """Return the trend of each resource, by its field of Sample. There have to be a dozen samples."""
    settled = samples[int(len(samples) * _SETTLING_SHARE) :]
    hours = [each.at_s / 3600 for each in settled]
    return {
        field: _trend(hours, [float(getattr(each, field)) for each in settled])
        for field in Sample._fields
        if field != "at_s"
    }


def _trend(hours: Sequence[float], values: Sequence[float]) -> Trend:
    quarter = max(1, len(values) // 4)
    slopes = [
        (values[right] - values[left]) / (hours[right] - hours[left])
        for left in range(len(values))
        for right in range(left + 1, len(values))
    ]
    return Trend(
        statistics.median(values[:quarter]), statistics.median(values[-quarter:]), statistics.median(slopes)
    )


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _entries(pid: int, folder: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{folder}"))
    except OSError:
        return 0


def _file_bytes(folder: Path) -> Iterable[int]:
    for where, _folders, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(where, name)).st_size
            except OSError:  # removed meanwhile
                continue
