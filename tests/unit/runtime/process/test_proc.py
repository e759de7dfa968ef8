"""What the node sees of itself, also when it has no descriptor left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from leveret.runtime.process.proc import open_files, read_proc, used_memory_bytes


@contextmanager
def without_descriptors() -> Iterator[None]:
    """All that the limit allows are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        last = os.open("/dev/null", os.O_RDONLY)
        stack.callback(os.close, last)
        # Those below it are open or are taken now; the limit is the first number that may not be given.
        taken = []
        while (descriptor := os.dup(last)) < last:
            taken.append(descriptor)
        os.close(descriptor)
        for each in taken:
            stack.callback(os.close, each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, hard))
        yield


def test_open_files_are_counted(tmp_path: Path) -> None:
    before = open_files()
    with (tmp_path / "a").open("w"), (tmp_path / "b").open("w"):
        assert open_files() == before + 2


def test_memory_is_measured_when_no_descriptor_is_left() -> None:
    read_proc("/proc/self/io")
    used = used_memory_bytes()
    with without_descriptors():
        try:
            os.close(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            refused = True
        found = used_memory_bytes(), read_proc("/proc/self/io"), open_files()
    assert refused
    assert found[0] > used / 2
    assert "syscr" in found[1]
    assert found[2] > 0
