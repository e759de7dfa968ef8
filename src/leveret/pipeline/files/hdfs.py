"""An archive in an HDFS, reached by its own protocols (hdfs-native): no jar, no installed Hadoop.

A file of HDFS is there, empty, while it is being written, and stays so if its writer dies. So each is written under a
name of its own in `.writing`, and renamed when it is whole and on the datanodes' disks. Renaming is one change of the
namenode: it replaces what was there, or, for `create`, is refused if anything was. Directories are made as files need
them.

`hdfs://HOST:PORT/PATH` names the namenode's RPC port, as Spark's URIs do; the port is 8020 if none is given, and HOST
may be a name service of the Hadoop configuration in `HADOOP_CONF_DIR`, `hdfs:///PATH` its `fs.defaultFS`. PATH is
taken as it stands: Hadoop decodes no `%20`. The user is `HADOOP_USER_NAME`'s, the one in Kerberos' ticket, or that of
a token in `HADOOP_TOKEN_FILE_LOCATION`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from hdfs_native import Client, FileStatus, FileWriter, WriteOptions

DEFAULT_PORT: Final = 8020
ANSWER_TIMEOUT_S: Final = 60.0
WRITING: Final = ".writing"
_PIECE_BYTES: Final = 8_000_000
# For this user alone, like an archive on a disk.
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
# Two namenodes get two tries each; Spark retries a task, and the transfer its query.
_SETTINGS: Final = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "250",
    "dfs.client.failover.sleep.max.millis": "2000",
}
# The client's text for an answer without an exception of its own: Kind("java.class.Name", "text\n\tat ...
_REFUSAL: Final = re.compile(r'\w+\("(?:[\w$]+\.)*([\w$]+)", "(.*)')

T = TypeVar("T")


class HdfsStore:
    """A directory of an HDFS, and the files below it."""

    def __init__(self, root: str) -> None:
        parts = urlsplit(root)
        self._host = parts.netloc
        self._base = parts.path.rstrip("/")
        self._client_now: Client | None = None

    def has(self, key: str) -> bool:
        """One call; a directory is no object."""
        path = self._path(key)
        with suppress(FileNotFoundError):
            return not self._ask(lambda client: client.get_file_info(path)).isdir
        return False

    def read(self, key: str, bytes_max: int | None) -> bytes | int:
        """One call for its blocks at the namenode, then reads."""
        path = self._path(key)

        def read(client: Client) -> bytes | int:
            reader = client.read(path)
            size = len(reader)
            return size if bytes_max is not None and size > bytes_max else reader.read()

        try:
            return self._ask(read)
        except IsADirectoryError:
            raise FileNotFoundError(path) from None

    def read_range(self, key: str, first: int, end: int) -> bytes:
        """Reads only the asked part."""
        path = self._path(key)
        return self._ask(lambda client: client.read(path).read_range(first, end - first))

    def below(self, key: str, after: str) -> list[tuple[str, float]]:
        """One call for a thousand names, and one for each directory."""
        path = self._path(key)
        # For a file, HDFS lists the file itself.
        found = (each for each in self._listed(path) if not each.isdir and each.path != path)
        unfinished = f"{WRITING}/"
        return [
            (name, each.modification_time / 1000)
            for each in found
            if not (name := each.path[len(self._base) + 1 :]).startswith(unfinished) and name > after
        ]

    def put(self, key: str, content: bytes | Path) -> None:
        """Writes beside and renames."""
        beside = self._written(content)
        try:
            with self._gone_if_it_fails(beside):
                self._rename(beside, self._path(key), overwrite=True)
        except FileNotFoundError:
            # The file beside is missing: it was renamed, and the answer was lost.
            if not self.has(key):
                raise

    def create(self, key: str, octets: bytes) -> bool:
        """Writes beside and renames, if there is no file of the name."""
        beside, path = self._written(octets), self._path(key)
        try:
            with self._gone_if_it_fails(beside):
                self._rename(beside, path, overwrite=False)
        except FileExistsError:
            return False
        except FileNotFoundError:
            # As above; the caller reads the file for its writer.
            if not self.has(key):
                raise
            return False
        return True

    def move(self, key: str, to: str) -> None:
        """One change, for any content."""
        path = self._path(key)
        try:
            self._ask(lambda client: client.get_file_info(path))
        except FileNotFoundError:
            return
        self.tidy(to)
        self._rename(path, self._path(to), overwrite=False)

    def delete(self, key: str) -> None:
        """One call; `FileNotFoundError` if it is missing."""
        self._delete(self._path(key))

    def tidy(self, key: str) -> None:
        """Remove directories without files."""
        path = self._path(key)
        found = list(self._listed(path))
        files = [each.path for each in found if not each.isdir]
        for directory in sorted([path, *(each.path for each in found if each.isdir)], reverse=True):
            if not any(file == path or file.startswith(directory + "/") for file in files):
                # Another process may have put a file there by now, which keeps the directory.
                with suppress(OSError):
                    self._delete(directory)

    def sweep(self, age_s: float) -> None:
        """Deletes old files in `.writing`."""
        until_ms = (time.time() - age_s) * 1000
        for each in self._listed(self._path(WRITING)):
            if each.modification_time <= until_ms and not each.isdir:
                with suppress(FileNotFoundError):
                    self._delete(each.path)

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}" if key else self._base or "/"

    def _listed(self, path: str) -> list[FileStatus]:
        """The files below a directory, which may be missing."""
        try:
            return self._ask(lambda client: list(client.list_status(path, recursive=True)))
        except FileNotFoundError:
            return []

    def _delete(self, path: str) -> None:
        if not self._ask(lambda client: client.delete(path)):
            raise FileNotFoundError(path)

    def _rename(self, path: str, to: str, *, overwrite: bool) -> None:
        """Raises FileExistsError, or FileNotFoundError if `path` is missing."""
        try:
            self._ask(lambda client: client.rename(path, to, overwrite))
        except FileNotFoundError:
            parent = to.rpartition("/")[0]
            self._ask(lambda client: client.mkdirs(parent, _DIRECTORY_MODE, create_parent=True))
            self._ask(lambda client: client.rename(path, to, overwrite))

    def _written(self, content: bytes | Path) -> str:
        """Write a file under a temporary name, and return that; on the disks of all its datanodes."""
        path = self._path(f"{WRITING}/{uuid4().hex}")
        options = WriteOptions(permission=_FILE_MODE, overwrite=False, create_parent=False)
        try:
            writer = self._ask(lambda client: client.create(path, options))
        except FileNotFoundError:
            directory = self._path(WRITING)
            self._ask(lambda client: client.mkdirs(directory, _DIRECTORY_MODE, create_parent=True))
            writer = self._ask(lambda client: client.create(path, options))
        with self._gone_if_it_fails(path):
            for piece in _pieces(content):
                self._ask(partial(_write, writer, piece))
            self._ask(partial(_finish, writer))
        return path

    @contextmanager
    def _gone_if_it_fails(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError:
            with suppress(OSError):
                self._delete(path)
            raise

    def _ask(self, call: Callable[[Client], T]) -> T:
        """Call the client, in bounded time, because it waits for ever for a silent namenode.

        Raises:
            OSError: in the words of HDFS, of a fitting subclass if there is one.
        """
        client = self._client_now = self._client_now or _client(self._host)
        answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def ask() -> None:
            try:
                answers.put((call(client), None))
            # A panic of the client is no `Exception`.
            except BaseException as error:
                answers.put((None, error))

        Thread(target=ask, name="hdfs", daemon=True).start()
        try:
            answer, error = answers.get(timeout=ANSWER_TIMEOUT_S)
        except Empty:
            # Its connection may be dead.
            self._client_now = None
            raise TimeoutError(f"no answer from HDFS for {ANSWER_TIMEOUT_S:.0f} s") from None
        if error is not None:
            raise _in_words(error) from error
        return answer  # type: ignore[return-value]


def _client(host: str) -> Client:
    """A client of a namenode, a name service or, without a host, the configured default file system."""
    try:
        return Client(f"hdfs://{host}" if host else None, _SETTINGS)
    except RuntimeError as error:
        if not host or urlsplit(f"//{host}").port is not None:
            raise _in_words(error) from error
    # No name service has this name, so it is a machine's.
    return Client(f"hdfs://{host}:{DEFAULT_PORT}", _SETTINGS)


def _write(writer: FileWriter, piece: bytes, _client: Client) -> None:
    writer.write(piece)


def _finish(writer: FileWriter, _client: Client) -> None:
    # A closed file is in the datanodes' memory. An erasure-coded one has no other way.
    with suppress(NotImplementedError):
        writer.hsync()
    writer.close()


def _pieces(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _in_words(error: BaseException) -> OSError:
    """An error's first sentence; a Java stack trace follows it."""
    text = re.split(r"\n|\\n", str(error), maxsplit=1)[0]
    if isinstance(error, OSError):
        return type(error)(text)
    refusal = _REFUSAL.match(text)
    return OSError(f"{refusal[1]}: {refusal[2]}" if refusal else text)
