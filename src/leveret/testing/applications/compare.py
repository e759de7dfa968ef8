"""Compares two data directories octet by octet: is a follower's directory a prefix of its leader's, or the same?

    found = compare(leader.data_dir, follower.data_dir)
    assert found.is_identical, found

Segments are identified by their first offset; the rest of their names is each node's own. Files of one node alone are
not compared: summaries, the begin of a copy of a log, logs of queues that end with the node, quarantined and waiting
changes, secret, lock, socket, its place in the replication, its own log. Both nodes must be down, or at least idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leveret.wire.chunk import HEADER_BYTES, ChunkError, decode_header

_SEGMENT: Final = re.compile(r"(\d{20})(\.sealed)?\.segment(\.new)?")
_OWN_DIRECTORIES: Final = frozenset({"transient", "divergent", "delayed", "log", "removed"})
_OWN_FILES: Final = frozenset(
    {
        "replication.json",
        "scrub.json",
        "cluster.json",
        "cluster_runs.json",
        "node.lock",
        "handed_out.json",
        "disk.reserve",
    }
)
_OWN_SUFFIXES: Final = (".summary", ".summary.new", ".pid", ".json.new", ".begin")
_PIECE_BYTES: Final = 1 << 20

Segments = dict[int, Path]


@dataclass(slots=True)
class Comparison:
    """A follower's directory compared with its leader's.

    Attributes:
        logs: the number of logs that both have.
        octets: the number of equal octets of logs.
        behind: differences that the follower has yet to receive or to drop.
        wrong: differences that no prefix of the leader's directory has.
    """

    logs: int = 0
    octets: int = 0
    behind: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_prefix(self) -> bool:
        """Return whether the follower has the leader's data of some moment."""
        return not self.wrong

    @property
    def is_identical(self) -> bool:
        """Return whether the follower has exactly the leader's data."""
        return not self.wrong and not self.behind

    def __str__(self) -> str:
        lines = [f"{self.logs} logs and {self.octets} octets are the same"]
        return "\n".join([*lines, *(f"wrong: {one}" for one in self.wrong), *self.behind])


def compare(leader: Path, follower: Path) -> Comparison:
    """Compare two data directories."""
    found = Comparison()
    theirs, ours = logs_of(leader), logs_of(follower)
    for name in sorted(theirs | ours):
        if name not in ours:
            found.behind.append(f"{name}: the follower has no such log")
        elif name not in theirs:
            found.behind.append(f"{name}: the leader has no such log (any more)")
        else:
            found.logs += 1
            _compare_log(name, theirs[name], ours[name], found)
    _compare_files(leader, follower, found)
    return found


def logs_of(root: Path) -> dict[str, Segments]:
    """Return, for each log with records, the segments by their first offset."""
    logs: dict[str, Segments] = {}
    for path in _own_paths(root):
        match = _SEGMENT.fullmatch(path.name)
        if match and path.stat().st_size:
            segments = logs.setdefault(path.parent.relative_to(root).as_posix(), {})
            assert int(match[1]) not in segments, f"{path} is there under another name too"
            segments[int(match[1])] = path
    return logs


def _compare_log(name: str, theirs: Segments, ours: Segments, found: Comparison) -> None:
    first, last = min(ours), max(ours)
    for start in sorted(theirs | ours):
        place = f"{name} segment {start}"
        if start in theirs and start in ours:
            _compare_segment(place, theirs[start], ours[start], start == last, found)
        elif start in ours and start < min(theirs):
            found.behind.append(f"{place}: the leader has dropped it, the follower has not")
        elif start in ours:
            found.wrong.append(f"{place}: the leader has no such segment, it has {sorted(theirs)}")
        elif start > last:
            found.behind.append(f"{place}: the follower does not have it yet")
        else:
            how = "has dropped it, the leader has not" if start < first else "lacks it between others"
            found.wrong.append(f"{place}: the follower {how}")


def _compare_segment(place: str, theirs: Path, ours: Path, is_last: bool, found: Comparison) -> None:
    size, copied = theirs.stat().st_size, ours.stat().st_size
    at = _first_difference(theirs, ours, min(size, copied))
    if at is not None:
        found.wrong.append(f"{place}: octet {at} differs, {_chunk_at(theirs, at)}; {_chunk_at(ours, at)}")
    elif copied > size:
        found.wrong.append(f"{place}: the follower has {copied - size} octets more, {_chunk_at(ours, size)}")
    elif copied < size and not is_last:
        found.wrong.append(f"{place}: the follower lacks {size - copied} octets and has later ones")
    else:
        found.octets += copied
        if copied < size:
            found.behind.append(f"{place}: the follower has {copied} of {size} octets")


def _first_difference(one: Path, other: Path, size: int) -> int | None:
    with one.open("rb") as a, other.open("rb") as b:
        for begin in range(0, size, _PIECE_BYTES):
            count = min(_PIECE_BYTES, size - begin)
            left, right = a.read(count), b.read(count)
            if left != right:
                return begin + next(at for at in range(count) if left[at] != right[at])
    return None


def _chunk_at(path: Path, at: int) -> str:
    """Return the chunk that contains the octet at `at`, for an error."""
    position = 0
    with path.open("rb") as file:
        while True:
            file.seek(position)
            try:
                header = decode_header(file.read(HEADER_BYTES))
            except ChunkError as error:
                return f"{path.name}: no chunk at octet {position}: {error}"
            if position + header.chunk_bytes > at:
                return (
                    f"{path.name}: in the chunk at octet {position}, type {header.type}, epoch {header.epoch}, offset "
                    f"{header.chunk_id}, {header.records} records, {header.chunk_bytes} octets"
                )
            position += header.chunk_bytes


def _compare_files(leader: Path, follower: Path, found: Comparison) -> None:
    theirs, ours = _files_of(leader), _files_of(follower)
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            found.behind.append(
                f"{name}: the leader has {theirs.get(name)!r}, the follower {ours.get(name)!r}"
            )


def _files_of(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in _own_paths(root)
        if not _SEGMENT.fullmatch(path.name)
    }


def _own_paths(root: Path) -> Iterator[Path]:
    """Return every file that a follower must have too."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if (
            path.is_file()
            and parts[0] not in _OWN_DIRECTORIES
            and not any(part.startswith(".") for part in parts)
            and path.name not in _OWN_FILES
            and not path.name.endswith(_OWN_SUFFIXES)
        ):
            yield path
