"""The operations that the archive needs of an object store, and the stores that obstore reaches.

A name is a key, relative to the archive, without a slash at either end. A failure is an `OSError` in the store's
own words, or `FileNotFoundError` for a missing object. The manifest relies on `create`: of all processes that
create an object under a new name, one succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

COPIED_BYTES_MAX: Final = 2**30
"""S3 copies no object above 5 GB in one request, and one request is to end within the timeout of `_CLIENT`."""
_PIECE_BYTES: Final = 8 * 2**20
_PART_BYTES: Final = 64 * 2**20
"""S3 takes ten thousand parts, so 640 GB."""
# Without TLS only if the endpoint's URI says http.
_CLIENT: Final[ClientConfig] = {"timeout": "60s", "connect_timeout": "5s", "allow_http": True}
# Spark retries a task, and the transfer its query.
_RETRIES: Final[RetryConfig] = {"max_retries": 2}


class StoredObjects(Protocol):
    """Objects that appear whole, and are durable when the call that writes them returns."""

    def has(self, key: str) -> bool:
        """Whether there is an object of this name."""

    def read(self, key: str, bytes_max: int | None) -> bytes | int:
        """The whole object; for one larger than `bytes_max`, its size."""

    def read_range(self, key: str, first: int, end: int) -> bytes:
        """The octets from `first` up to `end`, which is not beyond its size."""

    def below(self, key: str, after: str) -> list[tuple[str, float]]:
        """Objects below `key`, in any order, with the time of writing (s since 1970).

        Only those whose whole names sort after `after`; both may be empty, for all.
        """

    def put(self, key: str, content: bytes | Path) -> None:
        """Write octets, or a file's content, replacing an old object."""

    def create(self, key: str, octets: bytes) -> bool:
        """Write `octets` if there is no object; also False if they are there by a request whose answer was lost."""

    def move(self, key: str, to: str) -> None:
        """Move an object, or everything below `key`, to a free name; it may be missing."""

    def delete(self, key: str) -> None:
        """Delete an object; a store need not report whether it existed."""

    def tidy(self, key: str) -> None:
        """Remove empty directories below `key`."""

    def sweep(self, age_s: float) -> None:
        """Remove unfinished writes of dead writers that are older than that."""


class RemoteStore:
    """A place in S3 or a compatible store, Google Cloud Storage, or Azure."""

    def __init__(self, root: str) -> None:
        self._store = from_url(root, client_options=_CLIENT, retry_config=_RETRIES)

    def has(self, key: str) -> bool:
        """One request."""
        with _failing(), suppress(FileNotFoundError):
            obstore.head(self._store, key)
            return True
        return False

    def read(self, key: str, bytes_max: int | None) -> bytes | int:
        """One request; its answer begins with the size."""
        with _failing():
            found = obstore.get(self._store, key)
            size = found.meta["size"]
            return size if bytes_max is not None and size > bytes_max else bytes(found.bytes())

    def read_range(self, key: str, first: int, end: int) -> bytes:
        """One request."""
        with _failing():
            return bytes(obstore.get_range(self._store, key, start=first, end=end))

    def below(self, key: str, after: str) -> list[tuple[str, float]]:
        """One request for a thousand names."""
        prefix = f"{key}/" if key else None
        with _failing():
            return [
                (meta["path"], meta["last_modified"].timestamp())
                for metas in obstore.list(self._store, prefix, offset=after or None)
                for meta in metas
            ]

    def put(self, key: str, content: bytes | Path) -> None:
        """Large content goes in parts."""
        with _failing():
            obstore.put(self._store, key, content)

    def create(self, key: str, octets: bytes) -> bool:
        """Uses the store's own condition."""
        with _failing():
            try:
                obstore.put(self._store, key, octets, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def move(self, key: str, to: str) -> None:
        """Copies in the store, object by object, and deletes when all copies exist."""
        names = [name for name, _ in self.below(key, "")]
        for name in names:
            self._copy(name, to + name[len(key) :])
        with suppress(FileNotFoundError):
            self._copy(key, to)
        for name in [*sorted(names, reverse=True), key]:
            with suppress(FileNotFoundError):
                self.delete(name)

    def _copy(self, name: str, to: str) -> None:
        """Copy an object in the store; a large one through this process, in parts."""
        with _failing():
            size = obstore.head(self._store, name)["size"]
            if size <= COPIED_BYTES_MAX:
                obstore.copy(self._store, name, to)
                return
            with obstore.open_writer(self._store, to, buffer_size=_PART_BYTES, max_concurrency=2) as target:
                for at in range(0, size, _PIECE_BYTES):
                    end = min(at + _PIECE_BYTES, size)
                    target.write(obstore.get_range(self._store, name, start=at, end=end))

    def delete(self, key: str) -> None:
        """One request; S3 does not report whether it existed."""
        with _failing():
            obstore.delete(self._store, key)

    def tidy(self, key: str) -> None:
        """Does nothing: there are only objects."""

    def sweep(self, age_s: float) -> None:
        """Does nothing: unfinished writes are invisible, and the store forgets them."""


@contextmanager
def _failing() -> Iterator[None]:
    """Convert the library's other errors to `OSError`."""
    try:
        yield
    except OSError:
        raise
    except (BaseError, ValueError) as error:
        raise OSError(str(error)) from error
