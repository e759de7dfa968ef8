"""Names in an object store or an HDFS, with the part of `pathlib.Path` that the archive needs.

Objects appear whole or not at all, and are durable when a call that wrote them returns. There are no directories: a
directory "exists" while there is an object below it. The manifest relies on `create`, which all stores have: of all
processes that create an object under a new name, one succeeds.

Credentials come from the environment and the machine's identity, as the stores' own tools take them
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_KEY`,
`HADOOP_USER_NAME`, ...); they are neither in a URI nor in a job.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from leveret.model.store_uri import is_hdfs
from leveret.pipeline.files.hdfs import HdfsStore
from leveret.pipeline.files.object_store import RemoteStore, StoredObjects

WHOLE_BYTES_MAX: Final = 8_000_000
"""An object up to this size is read at once; a larger one only as far as it is read."""


class StoreFailed(OSError):
    """The object store cannot be reached, or refuses; the first line of its own text."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """A name in an object store; it can be sent to other processes.

    Attributes:
        root: the URI of the archive, without a slash at its end.
        key: the name below it, empty for the archive itself.
    """

    root: str
    key: str = ""

    def __truediv__(self, name: str | PurePosixPath) -> ObjectPath:
        return ObjectPath(self.root, f"{self.key}/{name}" if self.key else str(name))

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The name without its last part; the archive's parent is itself."""
        return ObjectPath(self.root, self.key.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> ObjectPath:
        """The name with another suffix."""
        return self.parent / str(PurePosixPath(self.name).with_suffix(suffix))

    def relative_to(self, above: ObjectPath) -> PurePosixPath:
        """The name relative to `above`."""
        return PurePosixPath(self.key).relative_to(above.key)

    # -- reading -------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is an object of this name, or any below it."""
        with _failing(self):
            # The archive itself is never an object, but a store may take its name for the bucket's.
            if self.key and _store(self.root).has(self.key):
                return True
            return any(True for _ in self._below())

    def read_bytes(self) -> bytes:
        """The whole content.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with _failing(self):
            octets = _store(self.root).read(self.key, None)
        assert isinstance(octets, bytes)
        return octets

    def open(self) -> io.RawIOBase | io.BytesIO:
        """Open it for random access."""
        with _failing(self):
            found = _store(self.root).read(self.key, WHOLE_BYTES_MAX)
        return io.BytesIO(found) if isinstance(found, bytes) else _RangeReader(self, found)

    def read_range(self, first: int, end: int) -> bytes:
        """The octets from `first` up to `end`."""
        with _failing(self):
            return _store(self.root).read_range(self.key, first, end)

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Matching names below, in order, of objects and of directories. `*` is all of a part."""
        parts = pattern.split("/")
        depth = len(parts)
        seen = set()
        for name, _ in self._below():
            found = PurePosixPath(*name.parts[:depth])
            if len(found.parts) == depth and found not in seen and found.match(pattern):
                seen.add(found)
                yield self / found

    def rglob(self, name: str) -> Iterator[ObjectPath]:
        """All objects below with this last part."""
        return (self / found for found, _ in self._below() if found.name == name)

    def iterdir(self) -> Iterator[ObjectPath]:
        """The names directly below."""
        return self.glob("*")

    def listed_after(self, name: str) -> list[ObjectPath]:
        """Objects directly below whose names sort after `name`, in order; others are not listed."""
        return [self / found for found, _ in self._below(name)]

    def older_than(self, age_s: float) -> list[ObjectPath]:
        """All objects below of at least that age, in order."""
        until_s = time.time() - age_s
        return [self / found for found, written_s in self._below() if written_s <= until_s]

    def _below(self, after: str = "") -> Iterator[tuple[PurePosixPath, float]]:
        """Every object below, relative to this, in order, with its time of writing (s since 1970)."""
        prefix = f"{self.key}/" if self.key else ""
        with _failing(self):
            found = _store(self.root).below(self.key, prefix + after if after else "")
        for path, written_s in sorted(found):
            yield PurePosixPath(path.removeprefix(prefix)), written_s

    # -- writing -------------------------------------------------------------------------------------

    def write_bytes(self, octets: bytes) -> None:
        """Write `octets`, replacing an old object."""
        with _failing(self):
            _store(self.root).put(self.key, octets)

    def create(self, octets: bytes) -> bool:
        """Write `octets` if there is no object; return whether it was written.

        A write that succeeded may also return False, if its answer was lost and it was tried again.
        """
        with _failing(self):
            return _store(self.root).create(self.key, octets)

    def upload(self, file: Path) -> None:
        """Write the content of `file`, replacing an old object."""
        with _failing(self):
            _store(self.root).put(self.key, file)

    def move(self, other: ObjectPath) -> None:
        """Move it, or everything below, to a free name of the same archive; it may be missing."""
        with _failing(self):
            _store(self.root).move(self.key, other.key)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete it; a store does not report whether it existed."""
        with _failing(self):
            try:
                _store(self.root).delete(self.key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def delete_tree(self) -> None:
        """Delete everything below, in reverse order, so that numbered objects stay contiguous from the first on."""
        for found in reversed(list(self._below())):
            (self / found[0]).unlink(missing_ok=True)
        with _failing(self):
            _store(self.root).tidy(self.key)

    def sweep(self, age_s: float) -> None:
        """Remove unfinished writes of at least that age anywhere in this archive."""
        with _failing(self):
            _store(self.root).sweep(age_s)


class _RangeReader(io.RawIOBase):
    """A large object, fetched only as far as it is read."""

    def __init__(self, path: ObjectPath, size: int) -> None:
        super().__init__()
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        octets = self._path.read_range(self._at, end)
        self._at = end
        return octets


@contextmanager
def _failing(path: ObjectPath) -> Iterator[None]:
    """Convert all errors of a store to one kind, except for a missing object."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such object") from None
    except OSError as error:
        # A blank line separates the reply's headers and the library's own state.
        raise StoreFailed(f"{path}: {str(error).partition(chr(10))[0]}") from error


@cache
def _store(root: str) -> StoredObjects:
    return HdfsStore(root) if is_hdfs(root) else RemoteStore(root)
