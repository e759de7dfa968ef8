"""Where a log begins, written beside its segments: so a first one that is missing is told from one that was dropped.

    00000000000000004711.begin     nothing before offset 4711 is to be there

The name says it all, the file is empty: so one `rename` changes it, whole. It is there as soon as the log's first
segment is, and is moved on *before* segments are dropped: a crash between the two leaves segments that the log may
do without, which does no harm; the other way round it would look like a loss. Neither is synced by itself. Both
are changes of one directory, which file systems with a journal keep in order; and what is dropped a second time, or
begins earlier than is written, is nothing that a start complains of.

A log from before there was such a file gets it at its next start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from leveret.model.errors import StorageError

SUFFIX: Final = ".begin"
_NAME: Final = re.compile(rf"(\d{{20}}){re.escape(SUFFIX)}")


def begin_of(directory: Path) -> int | None:
    """Where the log in a directory is to begin; None if that is not written.

    Raises:
        StorageError: the directory may not be read.
    """
    try:
        return BeginFile(directory, os.listdir(directory)).offset
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"log {directory}: cannot be read: {error}") from error


class BeginFile:
    """See the module.

    Attributes:
        offset: what it says; None if there is none.
    """

    def __init__(self, directory: Path, names: Iterable[str] = ()) -> None:
        """Of a log with files of these names."""
        self._directory = directory
        found = [int(match[1]) for match in map(_NAME.fullmatch, names) if match]
        self.offset = min(found, default=None)

    def write(self, offset: int) -> None:
        """Have it say this; on disk when the directory is. Raises OSError."""
        if offset == self.offset:
            return
        path = self._path(offset)
        if self.offset is None:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        else:
            try:
                os.rename(self._path(self.offset), path)
            except FileNotFoundError:
                # Somebody removed it: whether the directory is there still is not for this file to find out.
                self.offset = None
                self.write(offset)
        self.offset = offset

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}{SUFFIX}"
