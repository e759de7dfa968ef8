"""runtime.process.huge_pages: memory that is mostly filled goes into huge pages, and keeps its content."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.runtime.process.huge_pages import HUGE_PAGE_BYTES, filled_ranges
from leveret.storage.sync import kernel_version

_FILLED = "Size:  9216 kB\nKernelPageSize: 4 kB\nRss:  {rss} kB\nPss:  1 kB\nVmFlags: rd wr mr mw me ac\n"


@pytest.mark.parametrize(
    ("mapping", "rss", "ranges"),
    [
        ("7f0000100000-7f0000a00000 rw-p 00000000 00:00 0", 9000, [(0x7F0000200000, 0x7F0000A00000)]),
        (
            "7f0000100000-7f0000b00000 rw-p 00000000 00:00 0   [heap]",
            9000,
            [(0x7F0000200000, 0x7F0000A00000)],
        ),
        ("7f0000100000-7f0000900000 rw-p 00000000 00:00 0", 64, []),
        ("7f0000100000-7f0000300000 rw-p 00000000 00:00 0", 2048, []),
        ("7f0000100000-7f0000900000 rw-p 00000000 fe:00 77   /usr/lib/libc.so.6", 9000, []),
        ("7f0000100000-7f0000900000 r-xp 00000000 fe:00 77   /usr/lib/libc.so.6", 9000, []),
        ("7f0000100000-7f0000900000 rw-s 00000000 00:01 0   /dev/zero", 9000, []),
    ],
    ids=["filled", "heap", "a stack", "less than a huge page", "of a file", "text", "shared"],
)
def test_only_filled_memory_of_no_file_is_moved(
    mapping: str, rss: int, ranges: list[tuple[int, int]]
) -> None:
    beside = "7e0000000000-7e0000001000 ---p 00000000 00:00 0\n" + _FILLED.format(rss=0)
    assert list(filled_ranges(beside + f"{mapping}\n" + _FILLED.format(rss=rss) + beside)) == ranges


_WORK = """
import re
from pathlib import Path
from leveret.runtime.process.huge_pages import collapse_pages

kept = [bytes([n % 251]) * 300 for n in range(40_000)]
collapse_pages()
huge_kb = sum(map(int, re.findall("AnonHugePages: +([0-9]+)", Path("/proc/self/smaps").read_text())))
print(huge_kb, all(one == bytes([n % 251]) * 300 for n, one in enumerate(kept)))
"""
_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.process
def test_memory_that_was_moved_keeps_its_content() -> None:
    ended = subprocess.run([sys.executable, "-c", _WORK], capture_output=True, text=True, check=True)
    huge_kb, is_kept = ended.stdout.split()
    assert is_kept == "True"
    can_collapse = _ENABLED.exists() and "[never]" not in _ENABLED.read_text()
    if can_collapse and kernel_version(os.uname().release) >= (6, 1):
        assert int(huge_kb) * 1024 >= HUGE_PAGE_BYTES
