"""Mounts of a test's own, which nobody else sees and which end with it, also when it is killed.

A file system that a killed test leaves mounted stays until somebody looks for it, and loop devices with unwritten data
slow down the whole machine.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

_CLONE_FS: Final = 0x00000200
_CLONE_NEWNS: Final = 0x00020000
_HERE: Final = "/proc/thread-self/ns/mnt"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@contextmanager
def private_mounts() -> Iterator[None]:
    """Have this thread, and what it starts, mount in a namespace of its own, which ends with the last of them.

    Skips the test where this user may not.
    """
    home, folder = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC), Path.cwd()
    try:
        if _LIBC.unshare(_CLONE_NEWNS):
            pytest.skip(f"this user may have no mounts of its own: {os.strerror(ctypes.get_errno())}")
        try:
            mount("--make-rprivate", "/")
            yield
        finally:
            # A thread that the test left behind shares the working directory, and that would forbid the return.
            for result in (_LIBC.unshare(_CLONE_FS), _LIBC.setns(home, _CLONE_NEWNS)):
                if result:
                    raise OSError(ctypes.get_errno(), "cannot return to the mounts of all")
            os.chdir(folder)
    finally:
        os.close(home)


def mount(*arguments: str) -> None:
    """Mount something; skips the test where this machine refuses it."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine refuses a mount: {done.stderr.strip()}")
