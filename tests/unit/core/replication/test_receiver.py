"""core.replication.receiver: phases of a link as a table over all pairs, and leaders that lie in every one of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest
from isal.isal_zlib import crc32

from leveret.core.replication.join import Bounds
from leveret.core.replication.receiver import Copied, ReceivePhase, ReplicationReceiver
from leveret.model.errors import PeerError
from leveret.wire.chunk import Chunk, ChunkType, decode_chunk, encode_entry, encode_header
from leveret.wire.link import (
    ChangeKind,
    Frame,
    FrameHead,
    LogChange,
    Octets,
    decode_frame,
    file_change,
    log_change,
    name_change,
    whole_change,
)
from tests.seeds import seeds

J, C, S, P = ReceivePhase
NAME, OTHER, UNKNOWN = "queues/0000000000000001", "queues/0000000000000002", "queues/000000000000000f"
EPOCH = 3


class Logs:
    """receiver.CopiedLogs: a log of offsets 10 to 20 is here, another one is not; a third one is not taken."""

    def __init__(self) -> None:
        self.bounds: dict[str, Bounds | None] = {NAME: Bounds(10, 20), OTHER: None}

    def copied(self, name: str) -> Copied | None:
        if name.startswith(("/", "..")):
            raise PeerError(f"{name!r} is not the name of a log or state file")
        if name == UNKNOWN:
            return None
        return Copied(self.bounds.get(name), EPOCH)

    def make(self, change: LogChange) -> None:
        """As a tree does; a misfit is a failure of the check before it."""
        bounds = self.bounds.get(change.name)
        match change.kind:
            case ChangeKind.APPEND:
                assert change.chunk is not None
                header = change.chunk.header
                assert header.chunk_id == (bounds.next_offset if bounds is not None else change.offset)
                first = bounds.first_offset if bounds is not None else change.offset
                self.bounds[change.name] = Bounds(first, header.next_offset)
            case ChangeKind.BEGIN:
                self.bounds[change.name] = Bounds(change.offset, change.offset)
            case ChangeKind.TRUNCATE:
                assert bounds is not None
                assert change.offset <= bounds.next_offset
                self.bounds[change.name] = Bounds(min(bounds.first_offset, change.offset), change.offset)
            case ChangeKind.DROP if bounds is not None:
                assert change.offset <= bounds.next_offset
            case ChangeKind.DELETE | ChangeKind.QUARANTINE:
                self.bounds[change.name] = None


def receiver(phase: ReceivePhase, logs: Logs | None = None) -> ReplicationReceiver:
    made = ReplicationReceiver(logs or Logs(), P if phase is P else J)
    if phase in (C, S):
        made.frame(head(0), [])
    if phase is S:
        made.joined(5)
    if phase is P:
        made.frame(head(5), [])
    assert made.phase is phase
    return made


def head(number: int) -> FrameHead:
    return FrameHead(number, 0, 0, 0, 0)


def chunk(at: int, count: int = 2, epoch: int = EPOCH) -> tuple[Chunk, bytes]:
    data = encode_entry(b"m") * count
    octets = encode_header(ChunkType.USER, count, count, 1, epoch, at, crc32(data), len(data)) + data
    return decode_chunk(memoryview(octets)), octets


def appends(at: int, name: str = NAME, segment: int = 10, epoch: int = EPOCH) -> LogChange:
    decoded, octets = chunk(at, epoch=epoch)
    return LogChange(ChangeKind.APPEND, name, segment, decoded, octets)


def change(kind: ChangeKind, offset: int = 15, name: str = NAME) -> LogChange:
    return LogChange(kind, name, offset)


# -- the table --------------------------------------------------------------------------------

TABLE: Final[dict[ReceivePhase, tuple[ReceivePhase | None, ...]]] = {
    #   read  cut   joined
    J: (C, None, None),
    C: (C, None, S),
    S: (C, S, None),
    P: (P, P, None),
}


@pytest.mark.parametrize("phase", ReceivePhase)
@pytest.mark.parametrize(
    ("event", "comes"),
    [
        (0, lambda each: each.frame(head(0), [])),
        (1, lambda each: each.frame(head(9), [])),
        (2, lambda each: each.joined(9)),
    ],
    ids=["read", "cut", "joined"],
)
def test_phases_follow_the_table(
    phase: ReceivePhase, event: int, comes: Callable[[ReplicationReceiver], object]
) -> None:
    made, expected = receiver(phase), TABLE[phase][event]
    if expected is None:
        with pytest.raises(PeerError, match="not due while this node is"):
            comes(made)
        expected = phase
    else:
        comes(made)
    assert made.phase is expected


DUE: Final = {
    #   append, drop, delete, begin, truncate, file, remove, quarantine, cursor, head
    (C, 0): "append drop delete begin truncate file remove quarantine head",
    (S, 9): "append drop delete begin truncate file remove head",
    (P, 9): "append drop delete begin truncate quarantine cursor head",
    (P, 0): "",
}


@pytest.mark.parametrize(("phase", "number"), list(DUE))
@pytest.mark.parametrize("kind", [kind for kind in ChangeKind if kind is not ChangeKind.NAME])
def test_only_the_changes_of_a_phase_are_due(phase: ReceivePhase, number: int, kind: ChangeKind) -> None:
    made = receiver(phase)
    comes = appends(20) if kind is ChangeKind.APPEND else change(kind)
    if kind.name.lower() in DUE[phase, number].split():
        assert made.frame(head(number), [comes])
    else:
        with pytest.raises(PeerError, match="is not due while"):
            made.frame(head(number), [comes])


# -- what fits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([appends(22)], "begins at offset 22; the log ends at 20 here"),
        ([appends(18)], "begins at offset 18; the log ends at 20 here"),
        ([appends(20), appends(20)], "begins at offset 20; the log ends at 22 here"),
        ([appends(4, OTHER, segment=0)], "begins at offset 4; the log ends at 0 here"),
        ([appends(20, epoch=EPOCH + 1)], "has epoch 4, above the leader's 3"),
        ([change(ChangeKind.DROP, 21)], "behind the log's end"),
        ([change(ChangeKind.TRUNCATE, 21)], "behind the log's end"),
        ([change(ChangeKind.TRUNCATE, 0, OTHER)], "not here"),
        ([change(ChangeKind.DELETE), change(ChangeKind.TRUNCATE, 12)], "not here"),
        ([change(ChangeKind.TRUNCATE, 12), appends(20)], "ends at 12 here"),
        ([appends(20), change(ChangeKind.DELETE, name="../x")], "is not the name of a log"),
        ([LogChange(ChangeKind.DELETE, "/etc/passwd")], "is not the name of a log"),
    ],
)
@pytest.mark.parametrize("phase", [C, P])
def test_a_frame_that_does_not_fit_ends_the_link_before_anything_of_it_is_made(
    phase: ReceivePhase, changes: list[LogChange], said: str
) -> None:
    made = receiver(phase)
    taken = made.taken
    with pytest.raises(PeerError, match=said):
        made.frame(head(9 if phase is P else 0), changes)
    assert (made.phase, made.taken, made.acked) == (phase, taken, 0)


@pytest.mark.parametrize(
    "changes",
    [
        [appends(20), appends(22), change(ChangeKind.DROP, 24)],
        [appends(0, OTHER, segment=0), appends(2, OTHER, segment=0)],
        [change(ChangeKind.BEGIN, 40), appends(40, segment=40)],
        [change(ChangeKind.TRUNCATE, 12), appends(12, segment=12)],
        [change(ChangeKind.QUARANTINE), appends(7, segment=7)],
        [change(ChangeKind.DELETE, name=OTHER), change(ChangeKind.DROP, 9, OTHER)],
        [change(ChangeKind.TRUNCATE, 99, UNKNOWN), appends(7, UNKNOWN)],
    ],
)
def test_what_fits_is_taken(changes: list[LogChange]) -> None:
    assert receiver(P).frame(head(9), changes)


def test_a_number_does_not_go_back_and_a_join_ends_behind_all_cuts() -> None:
    made = receiver(S)
    made.frame(head(9), [])
    with pytest.raises(PeerError, match="sends cut 8 after cut 9"):
        made.frame(head(8), [])
    made.frame(head(0), [])
    with pytest.raises(PeerError, match="ends a join at cut 9, and sent cut 9 before"):
        made.joined(9)
    assert made.number == 0
    made.joined(10)
    assert made.number == 10


def test_a_sign_of_life_needs_no_ack() -> None:
    made = receiver(S)
    assert not made.frame(head(5), [])
    assert made.frame(head(6), [])
    assert not made.frame(head(6), [])
    assert made.frame(head(6), [appends(20)])


# -- lies -------------------------------------------------------------------------------------


def frame_octets(dice: random.Random, names: list[str]) -> memoryview:
    """A frame of a leader that says anything, with checks that hold."""
    frame = Frame()
    for number, name in enumerate(names, 1):
        frame.add(name_change(number, name))
    for _ in range(dice.randint(0, 4)):
        number, offset = (
            dice.randint(1, len(names)),
            dice.choice([0, 9, 10, 12, 20, 21, 22, 1 << 40, (1 << 64) - 1]),
        )
        kind = dice.choice(list(ChangeKind)[1:])
        match kind:
            case ChangeKind.APPEND | ChangeKind.HEAD:
                _, octets = chunk(dice.choice([0, 10, 20, 22]), epoch=dice.choice([1, EPOCH, EPOCH + 9]))
                pieces: list[Octets] = [octets]
                frame.add(log_change(kind, number, dice.choice([0, 10, 20])), pieces, 2)
            case ChangeKind.DELETE | ChangeKind.QUARANTINE:
                frame.add(whole_change(kind, number))
                frame.add(name_change(number, names[number - 1]))
            case ChangeKind.FILE | ChangeKind.REMOVE:
                content = b"x" if kind is ChangeKind.FILE else None
                frame.add(file_change(dice.choice(["a.json", "../a.json"]), content))
            case _:
                frame.add(log_change(kind, number, offset))
    number = dice.choice([0, 0, 4, 5, 6, 7, 1 << 50])
    return memoryview(b"".join(bytes(each) for each in frame.message(number, 0, 0)))[5:]


@pytest.mark.parametrize("phase", ReceivePhase)
@pytest.mark.parametrize("seed", seeds(150, each_time=40))
def test_whatever_a_leader_says_only_what_fits_is_made_and_only_that_is_acked(
    phase: ReceivePhase, seed: int
) -> None:
    """Frames are made up, garbled, cut short and repeated, in every phase; the first wrong one ends the link."""
    dice, logs = random.Random(f"{phase} {seed}"), Logs()
    made = receiver(phase, logs)
    made.acked = made.number
    before: memoryview | None = None
    for _ in range(12):
        octets = frame_octets(dice, [NAME, OTHER, UNKNOWN, *(["/etc/x"] if dice.random() < 0.1 else [])])
        match dice.choice(["as_it_is"] * 6 + ["garbled", "short", "again"]):
            case "garbled":
                wrong = bytearray(octets)
                wrong[dice.randrange(len(wrong))] ^= 1 << dice.randrange(8)
                octets = memoryview(bytes(wrong))
            case "short":
                octets = octets[: dice.randrange(len(octets))]
            case "again" if before is not None:
                octets = before
        before = octets
        held, taken, acked = dict(logs.bounds), made.taken, made.acked
        try:
            said, decoded = decode_frame(octets, made.names)
            changes = list(decoded())
            is_new = made.frame(said, changes)
        except PeerError:
            assert (logs.bounds, made.taken, made.acked) == (held, taken, acked)
            return
        for each in changes:
            if each.name != UNKNOWN:
                logs.make(each)
        assert said.position in (0, made.taken)
        if is_new:
            made.acked = made.number
        assert made.acked <= made.taken
