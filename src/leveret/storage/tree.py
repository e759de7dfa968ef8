"""Makes every log and state file that a node keeps and its followers copy.

Replication to followers and mirrors (runtime.replication, runtime.mirroring) adds `receivers`, which get each change as
it is made, in order. So a new kind of log or state file is followed without being registered.

Not in the tree, and not followed: logs of queues that end with the node (made with `durable=False`), summaries of
segments (each node makes its own), and the files of one node alone: its secret, lock and sockets, and the state files
of its own place in a replication and of its scrubs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from leveret.model.errors import StorageError
from leveret.storage.log import SEGMENT_BYTES_MAX, Log
from leveret.storage.open_segments import OpenSegments, OutOfDescriptors
from leveret.storage.removed import RemovedFiles
from leveret.storage.segment import has_segments
from leveret.storage.state_file import SUFFIX, StateFile
from leveret.wire.chunk import Header
from leveret.wire.link import NAME_BYTES_MAX

STARTS_BITS: Final = 20
"""The lower bits of the epoch of a leader's chunks: the number of its starts in its own epoch."""
_OWN: Final = frozenset({"transient", "divergent", "delayed", "standby", "log", "staged", "removed"})
"""Directories of one node alone: transient logs, quarantine, changes that it received and has not applied, segments
that a recovery writes, and files to be freed."""
_OWN_FILES: Final = frozenset(
    {"replication.json", "scrub.json", "cluster.json", "cluster_runs.json", "handed_out.json"}
)
"""State files of one node alone: its identity, last scrubs, cluster, and offsets delivered to consumers."""

_WITHOUT_FILES: Final = frozenset({"queues", "streams"})
"""Directories of logs that have no state files beside them."""


class ChangeReceiver:
    """The receiver of changes, which overrides the methods for those that concern it.

    Names are paths below the data directory, with `/` between their parts.
    """

    def appended(self, name: str, segment: int, header: Header, octets: list[bytes | memoryview]) -> None:
        """A chunk, `octets` in pieces, is at the end of the log, in the segment that begins at offset `segment`."""

    def dropped(self, name: str, first_offset: int) -> None:
        """The log begins at this offset from now on."""

    def deleted(self, name: str) -> None:
        """The log is gone."""

    def begun(self, name: str, offset: int) -> None:
        """The log is empty, and begins at this offset: it never had a record, or is a copy that began anew."""

    def truncated(self, name: str, offset: int) -> None:
        """The log ends at this offset from now on: what came behind it in a copy is quarantined."""

    def prepended(self, name: str, until: int) -> None:
        """A segment stands in front of the log, which began at the offset `until` before."""

    def replaced(self, name: str, octets: bytes | None) -> None:
        """The state file has this content from now on; None: it is gone."""


class Tree:
    """The logs and state files below a data directory; see the module.

    Attributes:
        root: the data directory.
        epoch: written into every appended chunk; see runtime.roles.roles.
        epochs: the epochs of logs with one of their own, by name: queues' in a cluster.
        receivers: the receivers of changes, in the order in which they get each change.
        logs: every durable log that is open, by name.
        unreadable: the logs on disk that the node could not open, until they are opened after all, or deleted.
        open_segments: the open segments of all these logs.
        removed: what was removed below the data directory.
    """

    def __init__(self, root: Path, *, epoch: int = 1, segments_open_max: int = sys.maxsize) -> None:
        """Begin without open logs and without receivers of changes.

        At most `segments_open_max` segments stay open at once.
        """
        self.open_segments = OpenSegments(segments_open_max)
        self.removed = RemovedFiles(root)
        self.root = root
        self.epoch = epoch
        self.epochs: dict[str, int] = {}
        self.receivers: list[ChangeReceiver] = []
        self.logs: dict[str, Log] = {}
        self.unreadable: set[str] = set()

    # -- logs ---------------------------------------------------------------------------------

    def log(
        self, directory: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX, durable: bool = True
    ) -> Log:
        """The log in that directory, which is below `root`: the open one, else a new object to be opened."""
        name = self.name_of(directory)
        found = self.logs.get(name) if durable else None
        if found is not None:
            return found
        return Log(
            directory,
            segment_bytes_max=segment_bytes_max,
            durable=durable,
            epoch=self.epochs.get(name, self.epoch),
            owner=self if durable else None,
            open_segments=self.open_segments,
            remove=self.removed.remove,
            name=name if durable else "",
        )

    def opened(self, log: Log) -> None:
        """See LogOwner."""
        name = self.name_of(log.directory)
        self.logs[name] = log
        self.unreadable.discard(name)

    def appended(self, log: Log, segment: int, header: Header, octets: list[bytes | memoryview]) -> None:
        """See LogOwner."""
        for receiver in self.receivers:
            receiver.appended(self.name_of(log.directory), segment, header, octets)

    def dropped(self, log: Log) -> None:
        """See LogOwner."""
        for receiver in self.receivers:
            receiver.dropped(self.name_of(log.directory), log.first_offset)

    def deleted(self, log: Log) -> None:
        """See LogOwner."""
        name = self.name_of(log.directory)
        self.logs.pop(name, None)
        self.epochs.pop(name, None)
        self.unreadable.discard(name)
        for receiver in self.receivers:
            receiver.deleted(name)

    def begun(self, log: Log) -> None:
        """To be called after an empty log, or a copy of another node's, was begun elsewhere, before any append."""
        for receiver in self.receivers:
            receiver.begun(self.name_of(log.directory), log.next_offset)

    def truncated(self, log: Log) -> None:
        """To be called after a copy of another node's log was cut at its present end."""
        for receiver in self.receivers:
            receiver.truncated(self.name_of(log.directory), log.next_offset)

    def prepended(self, log: Log, until: int) -> None:
        """To be called after a segment was moved in front of a copy that began at the offset `until`."""
        for receiver in self.receivers:
            receiver.prepended(self.name_of(log.directory), until)

    def holds(self, log: Log) -> bool:
        """See LogOwner."""
        return self.logs.get(log.name) is log

    def has_replaced(self, log: Log) -> bool:
        """See LogOwner."""
        return self.logs.get(log.name, log) is not log

    def is_closed(self, name: str) -> bool:
        """Whether a log is on disk and not open: nobody may conclude that there is none."""
        if name in self.logs:
            return False
        with suppress(FileNotFoundError):
            return has_segments(self.path_of(name))
        return False

    def open_all(self) -> dict[str, StorageError]:
        """Open every closed log on disk; return the errors of those that cannot be opened, by name.

        Raises:
            OutOfDescriptors: the system has no descriptor for one of them now.
        """
        damaged: dict[str, StorageError] = {}
        for _ in self.opening_all(damaged):
            pass
        return damaged

    def opening_all(self, damaged: dict[str, StorageError]) -> Generator[None, None, None]:
        """As `open_all`, with a pause behind each log; `damaged` gets the errors."""
        for directory in self._directories():
            name = self.name_of(directory)
            if name not in self.logs and has_segments(directory):
                try:
                    self.log(directory).open(with_messages=False, sync=False)
                except OutOfDescriptors:
                    raise
                except StorageError as error:
                    damaged[name] = error
                yield

    def epoch_above(self) -> int:
        """An epoch of leaders whose chunks have a higher epoch than any chunk that is here.

        Raises:
            StorageError: a log cannot be read.
        """
        highest = self.epoch
        for log in self.logs.values():
            for header, _ in log.headers_before(log.next_offset, 1):
                highest = max(highest, header.epoch)
        return (highest >> STARTS_BITS) + 1

    def unopened(self) -> list[str]:
        """The names of logs on disk that are not open; may be called in any thread.

        Raises:
            StorageError: directories cannot be read.
        """
        found = []
        try:
            for directory in self._directories():
                name = self.name_of(directory)
                # It may be gone by now.
                with suppress(FileNotFoundError):
                    if name not in self.logs and has_segments(directory):
                        found.append(name)
        except OSError as error:
            raise StorageError(f"{self.root}: logs cannot be listed: {error}") from error
        return found

    def put_away(self, name: str, to: Path) -> None:
        """Move a log that cannot be opened out of the tree, so that its files can be examined.

        Raises:
            StorageError: the disk refuses it.
        """
        put_log_away(self.path_of(name), to / name)

    def close(self) -> None:
        """Close every log; no change is reported from now on."""
        self.receivers.clear()
        for log in self.logs.values():
            log.close()

    def _directories(self) -> Iterator[Path]:
        """The directories that may hold logs: two levels below the root."""
        for top in sorted(self.root.iterdir()):
            if top.is_dir() and top.name not in _OWN and not top.name.startswith("."):
                yield top
                # Its entries tell their kind without a look at each of perhaps thousands.
                yield from (
                    top / each for each in sorted(each.name for each in os.scandir(top) if each.is_dir())
                )

    # -- state files --------------------------------------------------------------------------

    def file(self, path: Path) -> StateFile:
        """The state file at that path, which is below `root`."""
        return StateFile(path, self._replaced)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The name and content of every state file."""
        for path in sorted(self._file_paths()):
            name = self.name_of(path)
            if path.name not in _OWN_FILES:
                octets = self.file(path).octets()
                if octets is not None:
                    yield name, octets

    def _file_paths(self) -> Iterator[Path]:
        """The paths of possible state files: in the root, and two levels below it.

        Not beside the thousands of queues' logs.
        """
        yield from self.root.glob(f"*{SUFFIX}")
        for top in self.root.iterdir():
            if top.is_dir() and top.name not in _OWN and not top.name.startswith("."):
                for name in os.listdir(top):
                    if top.name not in _WITHOUT_FILES or f"{top.name}/{name}" not in self.logs:
                        yield from (top / name).glob(f"*{SUFFIX}")

    def _replaced(self, path: Path, octets: bytes | None) -> None:
        for receiver in self.receivers:
            receiver.replaced(self.name_of(path), octets)

    # -- names --------------------------------------------------------------------------------

    def name_of(self, path: Path) -> str:
        """The name of a log or file on every node: its path below the data directory."""
        return path.as_posix()[len(self.root.as_posix()) + 1 :]

    def path_of(self, name: str) -> Path:
        """The path of the log or file of a name.

        Raises:
            StorageError: no log can have that name; names come from peers, and must not lead out of `root`.
        """
        parts = PurePosixPath(name).parts
        if (
            not parts
            or len(os.fsencode(name)) > NAME_BYTES_MAX
            or name != "/".join(parts)
            or parts[0] in _OWN
            or name in _OWN_FILES
            or any(part in ("..", "/") or part.startswith(".") or "\0" in part for part in parts)
        ):
            raise StorageError(f"{name[:300]!r} is not the name of a log or state file")
        return self.root.joinpath(*parts)


def put_log_away(directory: Path, to: Path) -> None:
    """Move the directory of a log that is not open.

    Raises:
        StorageError: the disk refuses it.
    """
    try:
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.rename(to)
    except OSError as error:
        raise StorageError(f"log {directory}: cannot be moved to {to}: {error}") from error
