"""Answers the questions of one side of a link about the other side's data; a node asks itself the same questions.

    what      about                              found
    bounds    path                               logs: the log, if it is open; on_disk: whether there is one at all
    bounds    after                              logs: some of the logs whose names come after that one; is_last
    files                                        files: every state file
    digest    path, from, to, deep               chunks, octets, crc; or gone, damage: why there is none
    chunk     path, offset, to, octets_max       octets, next_offset: whole chunks from `offset` on; or gone, damage

`logs` is MessagePack, `[[name, first offset, next offset]]`, and so is `files`, `[[name, octets, CRC-32]]`. `bounds`
and `files` have a `state` as well: the state of the node, see management.node.ReplicationOperations.

All of this runs in threads, beside the event loop that changes the logs: bounds are read from objects of that loop,
each with a single read, and all other data from the files.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from isal.isal_zlib import crc32

from leveret.model.errors import Corrupt, LeveretError
from leveret.storage.inspection.digest import RangeGone, digest
from leveret.storage.inspection.walk import Damage, walk
from leveret.storage.segment_file import STEP_BYTES, starts
from leveret.storage.tree import Tree

Found: TypeAlias = dict[str, Any]
T = TypeVar("T")

PAGE_LOGS: Final = 4096
CHUNKS_BYTES_MAX: Final = 4 * 1024 * 1024
"""The limit of one answer. A larger chunk comes alone."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """A log with its offsets: from the first up to the next, which is not included."""

    name: str
    first_offset: int
    next_offset: int


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """A state file."""

    name: str
    octets: int
    crc: int


class _Bounds(msgspec.Struct):
    path: str | None = None
    after: str = ""


class _Files(msgspec.Struct):
    pass


class _Digest(msgspec.Struct):
    path: str
    from_offset: int = msgspec.field(name="from")
    to_offset: int = msgspec.field(name="to")
    deep: bool = False


class _Chunk(msgspec.Struct):
    path: str
    offset: int
    to_offset: int = msgspec.field(name="to")
    octets_max: int = CHUNKS_BYTES_MAX


def need(found: Found, key: str, kind: type[T]) -> T:
    """Return a field of an answer.

    Raises:
        LeveretError: the field is missing, or has another type.
    """
    value = found.get(key)
    if not isinstance(value, kind):
        raise LeveretError(
            f"an answer over the replication link has no {key}; its fields are {sorted(found)}"
        )
    return value


def need_list(found: Found, key: str, kind: type[T]) -> list[T]:
    """Return the field `logs` or `files` of an answer.

    Raises:
        LeveretError: the field is missing, or has another type.
    """
    try:
        return msgspec.msgpack.decode(need(found, key, bytes), type=list[kind])  # type: ignore[valid-type]
    except msgspec.DecodeError as error:
        raise LeveretError(f"an answer over the replication link is malformed: {error}") from error


class Answers:
    """See the module."""

    def __init__(self, tree: Callable[[], Tree], state: Callable[[], str]) -> None:
        """Answer for the data in `tree`, on a node in the state `state`."""
        self._tree = tree
        self._state = state

    def answer(self, what: str, about: dict[str, Any]) -> Found:
        """Return the answer to one question. This blocks for the disk, so a thread calls it.

        Raises:
            LeveretError: the question makes no sense, or the disk prevents an answer.
        """
        match what:
            case "bounds":
                return self._bounds(_parameters(what, about, _Bounds))
            case "files":
                _parameters(what, about, _Files)
                return self._files()
            case "digest":
                return self._digest(_parameters(what, about, _Digest))
            case "chunk":
                return self._chunk(_parameters(what, about, _Chunk))
        raise LeveretError(f"this node does not know the request {what!r}; its version may be older")

    # -- which logs and files -------------------------------------------------------------------

    def _bounds(self, about: _Bounds) -> Found:
        tree = self._tree()
        state = self._state()
        if about.path is not None:
            log = tree.logs.get(about.path)
            extent = [LogEntry(about.path, log.first_offset, log.next_offset)] if log is not None else []
            on_disk = log is not None or bool(starts(tree.path_of(about.path)))
            return {"logs": msgspec.msgpack.encode(extent), "on_disk": on_disk, "state": state}
        logs = tree.logs.copy()
        names = nsmallest(PAGE_LOGS, (name for name in logs if name > about.after))
        extent = [LogEntry(name, logs[name].first_offset, logs[name].next_offset) for name in names]
        return {"logs": msgspec.msgpack.encode(extent), "is_last": len(extent) < PAGE_LOGS, "state": state}

    def _files(self) -> Found:
        state = self._state()
        extent = [FileEntry(name, len(octets), crc32(octets)) for name, octets in self._tree().files()]
        return {"files": msgspec.msgpack.encode(extent), "state": state}

    # -- contents -------------------------------------------------------------------------------

    def _digest(self, about: _Digest) -> Found:
        directory = self._tree().path_of(about.path)
        try:
            found = digest(directory, about.from_offset, about.to_offset, deep=about.deep)
        except RangeGone:
            return {"gone": "it does not have all of them"}
        except Corrupt as damage:
            return {"damage": f"it is damaged at offset {damage.offset}, byte {damage.byte} of its segment"}
        return found._asdict()

    def _chunk(self, about: _Chunk) -> Found:
        directory = self._tree().path_of(about.path)
        offset = about.offset
        octets = bytearray()
        for found in walk(directory, offset, about.to_offset, window_bytes=STEP_BYTES):
            what = found.what if isinstance(found, Damage) else found.fault()
            if isinstance(found, Damage) or what is not None:
                if not octets:
                    return {"damage": f"offset {offset} is damaged there as well: {what}"}
                break
            header = found.header
            if header.chunk_id != offset:
                break
            if octets and len(octets) + header.chunk_bytes > min(about.octets_max, CHUNKS_BYTES_MAX):
                break
            octets += found.file.read(found.position, header.chunk_bytes)
            offset = header.next_offset
        if not octets:
            return {"gone": f"no chunk begins at offset {offset} there"}
        return {"octets": bytes(octets), "next_offset": offset}

    # -- for this side only ---------------------------------------------------------------------

    def steps(self, path: str, from_offset: int, to_offset: int) -> list[int]:
        """Yield the ranges of offsets in which a log is compared: the ranges of its segments.

        Raises:
            StorageError: the directory may not be read.
        """
        between = starts(self._tree().path_of(path))
        return sorted({from_offset, *(at for at in between if from_offset < at < to_offset), to_offset})


def _parameters(what: str, about: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(about, kind)
    except msgspec.ValidationError as error:
        raise LeveretError(f"the question {what!r} is malformed: {error}") from error
