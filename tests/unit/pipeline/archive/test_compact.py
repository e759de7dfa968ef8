"""Compaction: what comes back is the same before and after it, and what is kept is what was not settled."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.errors import PreconditionFailed, StorageError
from leveret.pipeline.archive import compact as module
from leveret.pipeline.archive.compact import compact, due, known_since_ms
from leveret.pipeline.archive.contents import contents
from leveret.pipeline.archive.manifest import Manifest, ManifestEntry, StoredFile
from leveret.pipeline.archive.recovery_plan import pinned
from leveret.pipeline.files.files import Place
from leveret.pipeline.jobs.job import Selection
from leveret.pipeline.transfer.compaction import Compaction
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.memory import scratch
from tests.unit.pipeline.recovery.test_unsettled import QUEUES, VHOST, Standby, expected, play, steps


def compact_oldest(standby: Standby, count: int) -> StoredFile | None:
    """Put one file in the place of the oldest ones, unless it is there already."""
    files = standby.manifest.files()[:count]
    if all(file.history_from_ms for file in files):
        return None
    file = compact(standby.data_dir, files)
    standby.manifest.append([file], removed=[each.path for each in files])
    for each in files:
        for name in (each.path, each.settlements):
            if name:
                (standby.data_dir / name).unlink()
    return file


@given(
    before=steps,
    after=steps,
    chunks_per_file=st.integers(1, 3),
    counts=st.lists(st.integers(1, 8), max_size=3),
)
@settings(max_examples=12)
def test_what_comes_back_is_what_would_without_it(
    before: list[Any], after: list[Any], chunks_per_file: int, counts: list[int]
) -> None:
    with scratch() as directory:
        upstream = StandbyUpstream()
        play(upstream, before)
        standby = Standby(directory, chunks_per_file)
        standby.transfer(upstream)
        for count in counts:
            compact_oldest(standby, count)
        play(upstream, after, base=1000)
        standby.transfer(upstream)
        for count in counts:
            compact_oldest(standby, count)
        assert standby.promote() == sum(map(len, expected(upstream).values()))
        assert standby.broker.queues == expected(upstream)
        for count in counts:
            compact_oldest(standby, count)
        assert standby.promote() == 0, "what was recovered stays so"


def test_a_full_disk_fails_one_compaction_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, standby = StandbyUpstream(), Standby(tmp_path, 2)
    upstream.publish(VHOST, "q", [stored_message(b"1")])
    standby.transfer(upstream)
    files = standby.manifest.files()
    made = compact(tmp_path, files)

    def refuse(*given: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(standby.manifest, "append", refuse)
    compaction = Compaction(cast(Any, None))
    row = compaction._replace(standby.manifest, files, made, None)
    assert row == {"vhost": files[0].vhost, "error": "[Errno 28] no space left"}
    compaction._delete_garbage(standby.manifest, tmp_path, None)
    assert all((tmp_path / name).exists() for each in files for name in each.names)


@given(played=steps)
@settings(max_examples=10)
def test_only_what_was_not_settled_is_kept(played: list[Any]) -> None:
    with scratch() as directory:
        upstream = StandbyUpstream()
        play(upstream, played)
        standby = Standby(directory, 2)
        standby.transfer(upstream)
        file = compact_oldest(standby, 1000)
        if file is None:
            return
        wanted = {message for queue in QUEUES for message in upstream.unsettled(VHOST, queue)}
        assert pq.read_table(directory / file.path, partitioning=None).num_rows == file.records
        assert file.records >= len(wanted)
        assert {part.queue for part in file.queues} == set(expected(upstream))
        [row] = contents(directory)["vhosts"]
        assert (row["files"], row["transferred"]) == (1, upstream.logs[VHOST].committed_offset)
        assert len(list((directory / "data").glob("*/*"))) == 1 + bool(file.settlements)


def test_moments_before_it_are_not_known_any_more(data_dir: Place) -> None:
    upstream = StandbyUpstream()
    standby = Standby(data_dir, 1)
    moments = []
    for number in range(6):
        upstream.publish(VHOST, "a", [stored_message(b"%d" % number)])
        upstream.settle(VHOST, "a", [(2 * number, 1)])
        moments.append(upstream.now_ms - 2)
    standby.transfer(upstream)
    file = compact_oldest(standby, 4)
    assert file is not None
    assert standby.manifest.history_from_ms(VHOST) == file.history_from_ms == file.max_ms
    with pytest.raises(PreconditionFailed, match="messages that were settled before are removed"):
        standby.promote(as_of_ms=moments[0])
    assert standby.promote(as_of_ms=moments[5]) == 1, "a moment since"
    assert Manifest(data_dir).history_from_ms("other") == 0


def manifest_of(data_dir: Path, files: list[StoredFile]) -> Manifest:
    """A manifest that names these files, which need not exist."""
    manifest = Manifest(data_dir)
    manifest._take(ManifestEntry(number=1, at_ms=1, added=files))
    return manifest


def files_of(*sizes: int, history: int = 0, settled: int = 0) -> list[StoredFile]:
    """Files of so many octets, one a millisecond."""
    return [
        StoredFile(
            vhost=VHOST,
            path=f"data/{number}",
            first=number,
            next=number + 1,
            records=1,
            bytes=size,
            min_ms=number,
            max_ms=number,
            queues=[],
            history_from_ms=number + 1 if number < history else 0,
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "history", "limits", "count"),
    [
        ((10,) * 10, 0, {}, 0),
        ((10,) * 10, 0, {"retain_ms": 5}, 5),
        ((10,) * 10, 0, {"retain_ms": 8}, 0),
        ((10,) * 10, 0, {"bytes_max": 100}, 0),
        ((10,) * 10, 0, {"bytes_max": 55}, 5),
        ((10,) * 10, 0, {"bytes_max": 55, "retain_ms": 2}, 8),
        ((1000, *(10,) * 9), 1, {"retain_ms": 2}, 0),
        ((100, *(10,) * 9), 1, {"retain_ms": 2}, 8),
    ],
)
def test_what_is_beyond_a_limit_is_due_when_it_is_worth_it(
    sizes: tuple[int, ...],
    history: int,
    limits: dict[str, int],
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FILES_MIN", 3)
    files = files_of(*sizes, history=history)
    manifest = manifest_of(tmp_path, files)
    both = {"bytes_max": None, "retain_ms": None} | limits
    assert due(manifest, VHOST, 10, **both) == files[:count]
    assert due(manifest, "other", 10, **both) == []


AHEAD_MS = 4_070_908_800_000


@pytest.mark.parametrize(
    ("number", "max_ms", "count", "since_ms"),
    [(3, AHEAD_MS, 5, 4), (4, AHEAD_MS, 4, 3), (9, AHEAD_MS, 5, 4), (7, 0, 5, 4), (2, 0, 5, 4)],
)
def test_a_clock_that_was_wrong_for_a_moment_neither_keeps_all_history_nor_gives_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, max_ms: int, count: int, since_ms: int
) -> None:
    monkeypatch.setattr(module, "FILES_MIN", 3)
    files = files_of(*(10,) * 10)
    files[number].max_ms = max_ms
    manifest = manifest_of(tmp_path, files)
    found = due(manifest, VHOST, 10, bytes_max=None, retain_ms=5)
    assert found == files[:count]
    assert known_since_ms(manifest, found, 10) == since_ms


def test_moments_since_it_are_known_though_the_clock_was_ahead_once(data_dir: Place) -> None:
    upstream = StandbyUpstream()
    standby = Standby(data_dir, 1)
    moments = []
    for number in range(6):
        now_ms = upstream.now_ms
        upstream.now_ms = AHEAD_MS if number == 2 else now_ms
        upstream.publish(VHOST, "a", [stored_message(b"%d" % number)] * 2)
        upstream.settle(VHOST, "a", [(3 * number, 1)])
        upstream.now_ms = now_ms + 2
        moments.append(now_ms + 1)
    standby.transfer(upstream)
    # Two files a turn: those of the one with the wrong clock are the last.
    files = standby.manifest.files()[:6]
    since_ms = known_since_ms(standby.manifest, files, moments[-1])
    assert since_ms == moments[3] - 1
    file = compact(standby.data_dir, files, since_ms)
    standby.manifest.append([file], removed=[each.path for each in files])
    for each in files:
        for name in each.names:
            (standby.data_dir / name).unlink()
    assert standby.manifest.history_from_ms(VHOST) == since_ms
    with pytest.raises(PreconditionFailed, match="the history of its queues begins"):
        standby.promote(as_of_ms=since_ms - 1)
    # An upstream that starts again may collect a chunk once more, and not what settled it.
    [incarnation] = upstream.incarnations[VHOST, "a"]
    offset, bodies, kind, _ = incarnation.copies[0]
    upstream.logs[VHOST].append_copy("a", incarnation.epoch, offset, bodies, kind, upstream.now_ms)
    standby.transfer(upstream)
    assert standby.promote(as_of_ms=upstream.now_ms) == 5, (
        "what was settled stays so; what is of 2099 comes later"
    )
    assert standby.promote() == 1


def test_what_a_plan_needs_is_pinned_until_it_is_done(data_dir: Place) -> None:
    upstream = StandbyUpstream()
    play(upstream, [("publish", "a", 3)])
    standby = Standby(data_dir)
    standby.transfer(upstream)
    assert not pinned(data_dir)
    directory = standby.plan(Selection())
    assert directory is not None
    assert pinned(data_dir) == {file.path for file in standby.manifest.files()}
    standby.publish(directory)
    assert not pinned(data_dir)


def test_a_damaged_file_is_left_alone(tmp_path: Path) -> None:
    upstream = StandbyUpstream()
    play(upstream, [("publish", "a", 3), ("settle", "a", [(0, 1)])])
    standby = Standby(tmp_path, 1)
    standby.transfer(upstream)
    (tmp_path / standby.manifest.files()[0].path).write_bytes(b"")
    with pytest.raises(StorageError, match=r"is not compacted: .*parquet: .* restore the file from a copy"):
        compact(tmp_path, standby.manifest.files())
    assert not list(tmp_path.rglob("*.tmp"))
