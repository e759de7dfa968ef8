"""The begin of a log, written beside its segments: it tells a missing first segment from a dropped one.

    00000000000000004711.begin     the log begins at offset 4711

The offset is in the name and the file is empty, so one `rename` changes it as a whole. The file appears with the
log's first segment, and is renamed *before* segments are dropped. A crash between the two leaves superfluous
segments, which do no harm; in the other order it would look like a loss. Neither step is synced by itself. Both are
changes of one directory, which file systems with a journal keep in order. A start accepts a log that begins earlier
than the file says, and drops the segments again.

A log of an older version gets the file at its next start.
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
    """The offset at which the log in a directory begins; None if it is not written.

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
    """The file that holds a log's begin; see the module.

    Attributes:
        offset: the written offset; None if there is no file.
    """

    def __init__(self, directory: Path, names: Iterable[str] = ()) -> None:
        """Find the file among the names in a log's directory."""
        self._directory = directory
        found = [int(match[1]) for match in map(_NAME.fullmatch, names) if match]
        self.offset = min(found, default=None)

    def write(self, offset: int) -> None:
        """Write another offset; durable once the directory is synced. Raises OSError."""
        if offset == self.offset:
            return
        path = self._path(offset)
        if self.offset is None:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        else:
            try:
                os.rename(self._path(self.offset), path)
            except FileNotFoundError:
                # The file was removed from outside; whether its directory is still there is checked elsewhere.
                self.offset = None
                self.write(offset)
        self.offset = offset

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}{SUFFIX}"
