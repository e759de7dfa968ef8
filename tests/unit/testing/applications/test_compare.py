from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.testing.applications.compare import compare, logs_of
from leveret.wire.chunk import ChunkType, encode_entry, encode_header

Change = Callable[[Path], None]

QUEUE = "queues/0000000000000001"


def chunk(offset: int, body: bytes = b"m" * 100, epoch: int = 1) -> bytes:
    data = encode_entry(body)
    return encode_header(ChunkType.USER, 1, 1, 1000, epoch, offset, 0, len(data)) + data


CHUNK_BYTES = len(chunk(0))


def segment(root: Path, start: int, count: int, *, log: str = QUEUE, suffix: str = ".segment") -> Path:
    path = root / log / f"{start:020d}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(chunk(start + index) for index in range(count)))
    return path


@pytest.fixture
def leader(tmp_path: Path) -> Path:
    root = tmp_path / "leader"
    segment(root, 0, 10, suffix=".sealed.segment")
    segment(root, 10, 10, suffix=".sealed.segment")
    segment(root, 20, 5)
    segment(root, 0, 3, log="definitions")
    (root / "modes.json").write_text('{"mode": "upstream"}')
    return root


@pytest.fixture
def follower(leader: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(leader, tmp_path / "follower"))


def cut(path: Path, octets: int) -> None:
    path.write_bytes(path.read_bytes()[:-octets])


def test_a_copy_is_identical(leader: Path, follower: Path) -> None:
    found = compare(leader, follower)
    assert found.is_identical
    assert found.is_prefix
    assert (found.logs, found.octets) == (2, 28 * CHUNK_BYTES)


def test_names_tell_of_each_node_only(leader: Path, follower: Path) -> None:
    for name in ("10.sealed.segment", "20.segment"):
        path = follower / QUEUE / f"{name.split('.')[0]:0>20}.{name.split('.', 1)[1]}"
        path.rename(path.with_name(f"{path.name[:20]}.segment.new"))
    assert compare(leader, follower).is_identical


@pytest.mark.parametrize(
    "name",
    [
        f"{QUEUE}/{0:020d}.summary",
        f"{QUEUE}/{0:020d}.summary.new",
        f"transient/0000000000000007/{0:020d}.segment",
        f"divergent/1/queues/0000000000000007/{0:020d}.segment",
        ".replication_secret",
        "replication.json",
        "replication.json.new",
        "node.lock",
        "leveret.pid",
        "log/leveret.log",
    ],
)
def test_what_is_one_nodes_alone_is_not_compared(leader: Path, follower: Path, name: str) -> None:
    for root in (leader, follower):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"of {root.name}")
    assert compare(leader, follower).is_identical


def test_a_log_without_anything_in_it_is_none(leader: Path, follower: Path) -> None:
    (follower / "queues" / "0000000000000009").mkdir()
    (follower / "queues" / "0000000000000009" / f"{0:020d}.segment").touch()
    assert compare(leader, follower).is_identical
    assert list(logs_of(follower)) == ["definitions", QUEUE]


def lacks_a_tail(root: Path) -> None:
    cut(root / QUEUE / f"{20:020d}.segment", 2 * CHUNK_BYTES)


def has_half_a_chunk(root: Path) -> None:
    cut(root / QUEUE / f"{20:020d}.segment", 7)


def lacks_the_newest_segment(root: Path) -> None:
    (root / QUEUE / f"{20:020d}.segment").unlink()


def lacks_a_log(root: Path) -> None:
    shutil.rmtree(root / QUEUE)


def has_a_log_that_was_deleted(root: Path) -> None:
    segment(root, 0, 1, log="streams/0000000000000002")


def has_another_state(root: Path) -> None:
    (root / "modes.json").write_text("{}")


def has_no_state(root: Path) -> None:
    (root / "modes.json").unlink()


@pytest.mark.parametrize(
    "change",
    [
        lacks_a_tail,
        has_half_a_chunk,
        lacks_the_newest_segment,
        lacks_a_log,
        has_a_log_that_was_deleted,
        has_another_state,
        has_no_state,
    ],
)
def test_what_is_behind_is_a_prefix_and_not_the_same(leader: Path, follower: Path, change: Change) -> None:
    change(follower)
    found = compare(leader, follower)
    assert found.is_prefix, found
    assert not found.is_identical
    assert len(found.behind) == 1


def test_a_segment_that_the_leader_has_dropped_is_behind(leader: Path, follower: Path) -> None:
    (leader / QUEUE / f"{0:020d}.sealed.segment").unlink()
    found = compare(leader, follower)
    assert found.is_prefix
    assert not found.is_identical


def flipped(root: Path) -> None:
    path = root / QUEUE / f"{10:020d}.sealed.segment"
    octets = bytearray(path.read_bytes())
    octets[3 * CHUNK_BYTES + 60] ^= 1
    path.write_bytes(octets)


def has_more(root: Path) -> None:
    with (root / QUEUE / f"{20:020d}.segment").open("ab") as file:
        file.write(chunk(25))


def has_a_gap(root: Path) -> None:
    (root / QUEUE / f"{10:020d}.sealed.segment").unlink()


def has_a_short_segment_before_others(root: Path) -> None:
    cut(root / QUEUE / f"{10:020d}.sealed.segment", CHUNK_BYTES)


def has_dropped_too_much(root: Path) -> None:
    (root / QUEUE / f"{0:020d}.sealed.segment").unlink()


def rolled_elsewhere(root: Path) -> None:
    segment(root, 23, 2)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (flipped, f"segment 10: octet {3 * CHUNK_BYTES + 60} differs"),
        (has_more, f"segment 20: the follower has {CHUNK_BYTES} octets more"),
        (has_a_gap, "segment 10: the follower lacks it between others"),
        (
            has_a_short_segment_before_others,
            f"segment 10: the follower lacks {CHUNK_BYTES} octets and has later ones",
        ),
        (has_dropped_too_much, "segment 0: the follower has dropped it"),
        (rolled_elsewhere, "segment 23: the leader has no such segment"),
    ],
)
def test_what_no_prefix_can_be_is_told_with_its_place(
    leader: Path, follower: Path, change: Change, text: str
) -> None:
    change(follower)
    found = compare(leader, follower)
    assert not found.is_prefix
    [wrong] = found.wrong
    assert f"{QUEUE} {text}" in wrong
    assert str(found).count("\nwrong: ") == 1


def test_a_difference_names_the_chunk_on_both_sides(leader: Path, follower: Path) -> None:
    path = follower / QUEUE / f"{20:020d}.segment"
    path.write_bytes(b"".join(chunk(20 + index, epoch=1 if index < 3 else 2) for index in range(5)))
    [wrong] = compare(leader, follower).wrong
    assert "type 0, epoch 1, offset 23, 1 records" in wrong
    assert "type 0, epoch 2, offset 23, 1 records" in wrong
