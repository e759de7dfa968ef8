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

# Without TLS only if whoever names the endpoint says http.
_CLIENT: Final[ClientConfig] = {"timeout": "60s", "connect_timeout": "5s", "allow_http": True}
# Spark does a task again, and the transfer its query.
_RETRIES: Final[RetryConfig] = {"max_retries": 2}


class StoredObjects(Protocol):
    """Objects that appear whole, and are durable when the call that wrote them returns."""

    def has(self, key: str) -> bool:
        """Whether there is an object of this name."""

    def read(self, key: str, bytes_max: int | None) -> bytes | int:
        """All of it; of one larger than `bytes_max` its size."""

    def read_range(self, key: str, first: int, end: int) -> bytes:
        """The octets from `first` up to before `end`, which is not beyond its size."""

    def below(self, key: str, after: str) -> list[tuple[str, float]]:
        """Objects below `key`, in any order, with the time each was written (s since 1970).

        Only those whose whole names come after `after`; both may be empty, for all.
        """

    def put(self, key: str, content: bytes | Path) -> None:
        """Put octets, or a file's, there, in place of what was."""

    def create(self, key: str, octets: bytes) -> bool:
        """Put `octets` there if nothing is; False also if they are there by a request whose answer was lost."""

    def move(self, key: str, to: str) -> None:
        """Move an object, or all below `key`, to where nothing is; it need not be there."""

    def delete(self, key: str) -> None:
        """Delete it; a store need not say whether it was there."""

    def tidy(self, key: str) -> None:
        """Remove what is below `key` and is no object, as far as nothing is in it."""

    def sweep(self, age_s: float) -> None:
        """Remove what writers that died left unfinished, if it is older."""


class RemoteStore:
    """S3 and what speaks it, Google Cloud Storage, Azure; a place in one of them."""

    def __init__(self, root: str) -> None:
        self._store = from_url(root, client_options=_CLIENT, retry_config=_RETRIES)

    def has(self, key: str) -> bool:
        """One request."""
        with _failing(), suppress(FileNotFoundError):
            obstore.head(self._store, key)
            return True
        return False

    def read(self, key: str, bytes_max: int | None) -> bytes | int:
        """One request; its answer has the size in front."""
        with _failing():
            found = obstore.get(self._store, key)
            size = found.meta["size"]
            return size if bytes_max is not None and size > bytes_max else bytes(found.bytes())

    def read_range(self, key: str, first: int, end: int) -> bytes:
        """One request."""
        with _failing():
            return bytes(obstore.get_range(self._store, key, start=first, end=end))

    def below(self, key: str, after: str) -> list[tuple[str, float]]:
        """A request a thousand names."""
        prefix = f"{key}/" if key else None
        with _failing():
            return [
                (meta["path"], meta["last_modified"].timestamp())
                for metas in obstore.list(self._store, prefix, offset=after or None)
                for meta in metas
            ]

    def put(self, key: str, content: bytes | Path) -> None:
        """Large ones in parts."""
        with _failing():
            obstore.put(self._store, key, content)

    def create(self, key: str, octets: bytes) -> bool:
        """By the store's own condition."""
        with _failing():
            try:
                obstore.put(self._store, key, octets, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def move(self, key: str, to: str) -> None:
        """Copied in the store, object by object, and deleted when all are there."""
        names = [name for name, _ in self.below(key, "")]
        with _failing():
            for name in names:
                obstore.copy(self._store, name, to + name[len(key) :])
            with suppress(FileNotFoundError):
                obstore.copy(self._store, key, to)
        for name in [*sorted(names, reverse=True), key]:
            with suppress(FileNotFoundError):
                self.delete(name)

    def delete(self, key: str) -> None:
        """One request; S3 does not say whether it was there."""
        with _failing():
            obstore.delete(self._store, key)

    def tidy(self, key: str) -> None:
        """There is nothing but objects."""

    def sweep(self, age_s: float) -> None:
        """What was not finished is seen by nobody, and forgotten by the store."""


@contextmanager
def _failing() -> Iterator[None]:
    """What the library raises beyond `OSError`, as one."""
    try:
        yield
    except OSError:
        raise
    except (BaseError, ValueError) as error:
        raise OSError(str(error)) from error
