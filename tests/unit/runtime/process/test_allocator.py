"""runtime.process.allocator: freed memory is kept for the next use, and is given back when that is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from leveret.runtime.process.allocator import give_back_memory
from leveret.runtime.process.proc import used_memory_bytes

pytestmark = pytest.mark.process

ROUNDS = 50
FRAMES = 16
FRAME_BYTES = 262_144
PAGE_BYTES = 4096
_WORK = f"""
import resource
from leveret.runtime.process.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({ROUNDS}):
        frames = [b"x" * {FRAME_BYTES} for _ in range({FRAMES})]
        bodies = [frame[at:at + 1000] for frame in frames for at in range(0, {FRAME_BYTES}, 1000)]
        del frames, bodies
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults()
print(faults())
"""


def test_what_is_freed_in_one_turn_is_there_for_the_next() -> None:
    ended = subprocess.run([sys.executable, "-c", _WORK], capture_output=True, text=True, check=True)
    # Each page would be a fault, were it given back each time.
    assert int(ended.stdout) < ROUNDS * FRAMES * FRAME_BYTES / PAGE_BYTES / 20


def test_what_the_allocator_kept_is_free_again_after_giving_it_back() -> None:
    kept = [bytes(1000) for _ in range(200_000)]
    full = used_memory_bytes()
    last = kept[-1]
    del kept
    give_back_memory()
    assert full - used_memory_bytes() > 100_000_000
    assert len(last) == 1000
