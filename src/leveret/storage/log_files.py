"""The files in a log's directory: its segments, their summaries, and the file that records the log's begin."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leveret.storage.begin import SUFFIX as BEGIN_SUFFIX
from leveret.storage.segment import BESIDE as OWN
from leveret.storage.segment import segment_of
from leveret.storage.state_file import BESIDE, SUFFIX
from leveret.storage.summary import is_summary

_BESIDE_SEGMENTS: Final = (BEGIN_SUFFIX, SUFFIX + BESIDE, OWN)


def remove_log_files(directory: Path, remove: Callable[[Path], None]) -> None:
    """Remove a log's directory by `remove`; the directory stays if state files are beside the log's files.

    Raises:
        OSError: the disk refused it, or another file is there.
    """
    names = os.listdir(directory) if directory.exists() else []
    if all(map(_is_own, names)):
        # One renaming: to unlink each file takes milliseconds on a busy disk.
        remove(directory)
        names = []
    # A thread may write a summary meanwhile.
    while own := list(filter(_is_own, names)):
        for name in own:
            remove(directory / name)
        names = os.listdir(directory)
    if not all(name.endswith(SUFFIX) for name in names):
        directory.rmdir()


def _is_own(name: str) -> bool:
    """Whether a file of that name is a log's, and goes with it."""
    return bool(segment_of(name)) or is_summary(Path(name)) or name.endswith(_BESIDE_SEGMENTS)
