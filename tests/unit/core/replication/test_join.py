"""core.replication.join: what is to be done for each log when a follower joins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.replication import join as join_module
from leveret.core.replication.join import (
    Begin,
    Bounds,
    Continue,
    DeleteLog,
    DropBefore,
    Join,
    Probe,
    QuarantineLog,
    Step,
    Truncate,
)
from leveret.model.errors import PeerError
from leveret.wire.chunk import Header, decode_header, encode_header

_crcs = count(1)


class Held(NamedTuple):
    path: str
    first_offset: int
    next_offset: int
    last: bytes


def chunk(at: int, records: int, epoch: int = 1, crc: int | None = None) -> bytes:
    return encode_header(
        0, records, records, 1000, epoch, at, next(_crcs) if crc is None else crc, 10 * records
    )


def chunks(sizes: Iterable[int], at: int = 0, epoch: int = 1) -> list[bytes]:
    made = []
    for records in sizes:
        made.append(chunk(at, records, epoch))
        at += records
    return made


@dataclass
class Log:
    """Chunks by their headers, without what is in them; `first` is where it begins."""

    chunks: list[bytes]
    first: int = 0
    ended: dict[int, int] = field(default_factory=dict)
    """The ends of its epochs, of dropped chunks."""
    tells: bool = True
    """Whether it knows these ends."""

    @property
    def headers(self) -> list[Header]:
        return [decode_header(octets) for octets in self.chunks]

    @property
    def next(self) -> int:
        return decode_header(self.chunks[-1]).next_offset if self.chunks else self.first

    def drop(self, chunk_count: int) -> None:
        """Drop the oldest chunks."""
        for _ in range(min(chunk_count, len(self.chunks))):
            gone = decode_header(self.chunks.pop(0))
            self.first = gone.next_offset
            if self.tells:
                self.ended[gone.epoch] = gone.next_offset


@dataclass
class Leader:
    logs: dict[str, Log]
    reads: int = 0

    def ended(self, path: str) -> Mapping[int, int]:
        return self.logs[path].ended

    def paths(self) -> Iterable[str]:
        return list(self.logs)

    def bounds(self, path: str) -> Bounds | None:
        log = self.logs.get(path)
        return None if log is None else Bounds(log.first, log.next)

    def header_at(self, path: str, chunk_id: int) -> bytes | None:
        bounds = self.bounds(path)
        assert bounds is not None
        assert bounds.first_offset <= chunk_id < bounds.next_offset
        self.reads += 1
        held = self.logs[path].chunks
        octets = held[bisect_right(held, chunk_id, key=lambda each: decode_header(each).chunk_id) - 1]
        return octets if decode_header(octets).chunk_id == chunk_id else None


@dataclass
class Follower:
    """Takes steps as the follower does, the leader's chunks at once."""

    logs: dict[str, Log]
    quarantine: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    probes: int = 0
    answered: int = 0

    def held(self, path: str) -> Held:
        log = self.logs[path]
        return Held(path, log.first, log.next, log.chunks[-1] if log.chunks else b"")

    def headers(self, probe: Probe) -> list[bytes]:
        log = self.logs[probe.path]
        before = [c for c, h in zip(log.chunks, log.headers, strict=True) if h.chunk_id < probe.before]
        return before[::-1][: probe.chunks_max]

    def take(self, step: Step, leader: Leader) -> None:
        log = self.logs.setdefault(step.path, Log([]))
        match step:
            case Continue(path, from_offset):
                assert log.next == from_offset
                source = leader.logs[path]
                log.chunks += [
                    c for c, h in zip(source.chunks, source.headers, strict=True) if h.chunk_id >= from_offset
                ]
            case Begin(path, from_offset):
                assert from_offset == leader.logs[path].first
                self.deleted += log.chunks
                self.logs[path] = Log(list(leader.logs[path].chunks), from_offset)
            case Truncate(_, at):
                assert at in {log.first, *(header.next_offset for header in log.headers)}
                kept = sum(header.chunk_id < at for header in log.headers)
                self.quarantine += log.chunks[kept:]
                del log.chunks[kept:]
            case DropBefore(_, offset):
                assert offset <= log.next
                gone = sum(header.next_offset <= offset for header in log.headers)
                self.deleted += log.chunks[:gone]
                log.drop(gone)
            case DeleteLog(path):
                self.deleted += self.logs.pop(path).chunks
            case QuarantineLog(path):
                self.quarantine += self.logs.pop(path).chunks
            case Probe():
                raise AssertionError("a probe is no change")


def run(join: Join, leader: Leader, follower: Follower, meanwhile: Sequence[str] = ()) -> list[Step]:
    """A whole join; something happens at the leader before each answer to a probe."""
    taken: list[Step] = []
    happenings = list(meanwhile)
    todo = [step for path in list(follower.logs) for step in compare(join, leader, follower, path, taken)]
    while todo:
        probe = todo.pop(0)
        if happenings:
            happen(leader, probe.path, happenings.pop(0))
        answer = follower.headers(probe)
        follower.probes += 1
        follower.answered += len(answer)
        todo += take(join.probed(probe.path, answer), leader, follower, taken)
    assert not join.is_probing
    take(join.rest(), leader, follower, taken)
    return taken


def compare(join: Join, leader: Leader, follower: Follower, path: str, taken: list[Step]) -> list[Probe]:
    return take(join.compare(follower.held(path)), leader, follower, taken)


def take(steps: list[Step], leader: Leader, follower: Follower, taken: list[Step]) -> list[Probe]:
    for step in steps:
        if not isinstance(step, Probe):
            follower.take(step, leader)
    taken += steps
    return [step for step in steps if isinstance(step, Probe)]


def happen(leader: Leader, path: str, what: str) -> None:
    log = leader.logs.get(path)
    if log is not None:
        match what:
            case "append":
                log.chunks += chunks([1, 2], log.next, 9)
            case "drop":
                log.drop(2)
            case "delete":
                del leader.logs[path]


SIZES = st.lists(st.integers(1, 3), max_size=8)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Log, Log, set[bytes]]:
    """Two logs that share a past, each with what it has dropped of it, and all that the leader ever had.

    The ends of epochs are known only if each epoch had one writer.
    """
    shared = chunks(draw(st.lists(st.integers(1, 3), max_size=60)))
    end = Log(shared).next
    epoch = draw(st.sampled_from([1, 3]))
    leader = Log(shared + chunks(draw(SIZES), end, epoch), tells=epoch != 1 and draw(st.booleans()))
    follower = Log(shared + chunks(draw(SIZES), end, draw(st.sampled_from([1, 2]))))
    past = set(leader.chunks)
    for log in leader, follower:
        log.drop(draw(st.integers(0, 70)))
    return leader, follower, past


def offsets(octets: Iterable[bytes]) -> set[int]:
    headers = map(decode_header, octets)
    return {offset for header in headers for offset in range(header.chunk_id, header.next_offset)}


@given(
    history=histories(),
    is_clean=st.booleans(),
    meanwhile=st.lists(st.sampled_from(["append", "drop", "delete", "nothing"]), max_size=4),
)
def test_a_join_makes_the_copy_equal_and_sets_aside_what_diverged(
    history: tuple[Log, Log, set[bytes]], is_clean: bool, meanwhile: list[str]
) -> None:
    ours, theirs, past = history
    before = list(theirs.chunks)
    missing = [octets for octets in before if octets not in past]
    gap_before = theirs.first > ours.first
    # Of a clean follower the leader had dropped all that ends before its begin.
    is_dropped = is_clean and theirs.next <= ours.first
    leader, follower = Leader({"q": ours}), Follower({"q": theirs})
    steps = run(Join(leader, is_clean=is_clean), leader, follower, meanwhile)

    if "q" in leader.logs:
        copy = follower.logs["q"]
        assert copy.next == ours.next
        # Only one that dropped more than its leader, and has nothing else than it, goes on with less.
        from_offset = max(ours.first, copy.first) if gap_before and not missing else ours.first
        assert copy.first <= from_offset
        there = [c for c in copy.chunks if decode_header(c).chunk_id >= from_offset]
        assert there == [c for c in ours.chunks if decode_header(c).chunk_id >= from_offset]
        assert offsets(there) == set(range(from_offset, ours.next))
    else:
        assert "q" not in follower.logs

    # Nothing is set aside twice, or deleted that the leader never had.
    assert len(set(follower.quarantine)) == len(follower.quarantine)
    assert not set(follower.quarantine) & set(follower.deleted)
    if not is_clean:
        assert set(missing) <= set(follower.quarantine)
    elif "q" in leader.logs:
        assert all(c in follower.quarantine for c in missing if decode_header(c).next_offset > ours.first)
    # Nothing is set aside without need: where the leader can still tell, only what it lacks is.
    if any(isinstance(step, Continue) for step in steps):
        assert follower.quarantine == missing
    if is_clean and not missing:
        assert follower.quarantine == []
    if ours.tells and not gap_before and not is_dropped and not meanwhile:
        assert follower.quarantine == missing
    # And the price is what diverged.
    assert follower.answered <= 2 * len(missing) + join_module.PROBE_CHUNKS_MIN or meanwhile


@given(history=histories(), is_clean=st.booleans())
def test_a_second_join_has_nothing_to_do(history: tuple[Log, Log, set[bytes]], is_clean: bool) -> None:
    ours, theirs, _ = history
    leader, follower = Leader({"q": ours}), Follower({"q": theirs})
    run(Join(leader, is_clean=is_clean), leader, follower)
    again = Join(leader, is_clean=is_clean).compare(follower.held("q"))
    assert [step for step in again if not isinstance(step, DropBefore)] == [Continue("q", ours.next)]


@given(history=histories(), taken=st.integers(0, 3))
def test_a_join_that_breaks_off_after_any_step_is_made_good_by_the_next(
    history: tuple[Log, Log, set[bytes]], taken: int
) -> None:
    ours, theirs, past = history
    missing = {octets for octets in theirs.chunks if octets not in past}
    had_gap = theirs.first > ours.first and bool(missing)
    leader, follower = Leader({"q": ours}), Follower({"q": theirs})
    join = Join(leader, is_clean=False)
    steps = join.compare(follower.held("q"))
    while isinstance(steps[0], Probe):
        steps = join.probed("q", follower.headers(steps[0]))
    for step in steps[:taken]:
        follower.take(step, leader)
    run(Join(leader, is_clean=False), leader, follower)
    assert missing <= set(follower.quarantine)
    assert len(set(follower.quarantine)) == len(follower.quarantine)
    copy = follower.logs["q"]
    assert copy.chunks[-len(ours.chunks) :] == ours.chunks or (theirs.first > ours.first and not had_gap)


def join_of(ours: Log | None, theirs: Log, *, is_clean: bool = False) -> list[Step]:
    join = Join(Leader({} if ours is None else {"q": ours}), is_clean=is_clean)
    return join.compare(Follower({"q": theirs}).held("q"))


def test_identical_logs_cost_one_header_and_nothing_is_asked() -> None:
    shared = chunks([2] * 1000)
    assert join_of(Log(shared), Log(shared)) == [Continue("q", 2000)]


def test_a_copy_that_is_behind_goes_on_where_it_ends() -> None:
    shared = chunks([2] * 10)
    assert join_of(Log(shared), Log(shared[:4])) == [Continue("q", 8)]


def test_the_copy_drops_what_the_leader_dropped_while_it_was_away() -> None:
    shared = chunks([2] * 10)
    assert join_of(Log(shared[3:], 6), Log(shared[:8])) == [DropBefore("q", 6), Continue("q", 16)]


@pytest.mark.parametrize("end", [3, 5])
def test_a_copy_that_ends_before_its_leader_begins_is_replaced(end: int) -> None:
    shared = chunks([2] * 10)
    ours, theirs = Log(shared[5:], 10), Log(shared[:end])
    assert join_of(ours, theirs, is_clean=True) == [Begin("q", 10)]
    assert join_of(ours, theirs) == [Truncate("q", 0), Begin("q", 10)]
    ours.ended = {1: 10}
    assert join_of(ours, theirs) == [Begin("q", 10)], "all of it was the leader's"


def drained(end: int, begin: int, epoch: int = 2) -> Log:
    """A log that began anew: its last chunk of epoch 1 ended at `end`."""
    return Log(chunks([1, 2], begin, epoch), begin, {1: end})


@pytest.mark.parametrize(("end", "begin"), [(2000, 2003), (2000, 2500), (1000, 1001)])
def test_of_a_former_leader_only_the_tail_is_divergent_although_the_log_began_anew(
    end: int, begin: int
) -> None:
    """It stood still while its successor delivered all that both had, and the successor's log has none of that."""
    theirs = Log(chunks([2] * 1000) + chunks([1] * 7, 2000))
    tail = [octets for octets in theirs.chunks if decode_header(octets).chunk_id >= end]
    leader, follower = Leader({"q": drained(end, begin)}), Follower({"q": theirs})
    steps = run(Join(leader, is_clean=False), leader, follower)
    assert [step for step in steps if not isinstance(step, Probe)] == [Truncate("q", end), Begin("q", begin)]
    assert follower.quarantine == tail
    assert follower.probes <= 2, "the search goes on at the end of the epoch"
    assert follower.logs["q"].chunks == leader.logs["q"].chunks


def test_chunks_of_epochs_that_the_leader_does_not_know_are_divergent() -> None:
    theirs = Log([*chunks([2] * 3), *chunks([2] * 4, 6, 2), *chunks([1], 14, 4)])
    leader, follower = Leader({"q": Log([], 40, {1: 6, 3: 30})}), Follower({"q": theirs})
    divergent = theirs.chunks[3:]
    run(Join(leader, is_clean=False), leader, follower)
    assert (follower.quarantine, len(follower.deleted)) == (divergent, 3)


def test_a_former_leaders_tail_is_cut_off_after_one_probe() -> None:
    shared = chunks([2] * 5000)
    ours, theirs = Log(shared + chunks([1] * 50, 10_000, 2)), Log(shared + chunks([3] * 3, 10_000))
    leader, follower = Leader({"q": ours}), Follower({"q": theirs})
    tail = theirs.chunks[-3:]
    steps = run(Join(leader, is_clean=False), leader, follower)
    assert steps == [Probe("q", 10_006, 16), Truncate("q", 10_000), Continue("q", 10_000)]
    assert (follower.quarantine, follower.answered) == (tail, 16)


def test_what_goes_beyond_the_leaders_end_is_not_asked_for() -> None:
    shared = chunks([2] * 100)
    ours, theirs = Log(shared), Log(shared + chunks([1] * 5000, 200))
    leader, follower = Leader({"q": ours}), Follower({"q": theirs})
    steps = run(Join(leader, is_clean=False), leader, follower)
    assert steps == [Probe("q", 200, 16), Truncate("q", 200), Continue("q", 200)]


def test_a_chunk_across_the_leaders_end_is_divergent() -> None:
    shared = chunks([2] * 20)
    ours, theirs = Log([*shared, chunk(40, 1)]), Log([*shared, chunk(40, 3), chunk(43, 1)])
    leader, follower = Leader({"q": ours}), Follower({"q": theirs})
    steps = run(Join(leader, is_clean=False), leader, follower)
    assert steps == [Probe("q", 41, 16), Truncate("q", 40), Continue("q", 40)]


def test_a_long_divergent_tail_takes_probes_that_double() -> None:
    shared = chunks([1] * 10)
    ours, theirs = Log(shared + chunks([1] * 9000, 10, 2)), Log(shared + chunks([1] * 8000, 10))
    leader = Leader({"q": ours})
    follower = Follower({"q": theirs})
    steps = run(Join(leader, is_clean=False), leader, follower)
    assert steps == [
        *(Probe("q", 8009 - 16 * (2**doubled - 1), 16 * 2**doubled) for doubled in range(9)),
        Truncate("q", 10),
        Continue("q", 10),
    ]
    assert leader.reads < 80


def test_one_that_dropped_more_goes_on_when_all_it_has_is_the_leaders() -> None:
    shared = chunks([2] * 10)
    assert join_of(Log(shared), Log(shared[4:8], 8)) == [Continue("q", 16)]


def test_one_that_dropped_more_and_has_a_divergent_end_begins_anew() -> None:
    shared = chunks([2] * 10)
    ours, theirs = Log(shared), Log([*shared[4:8], chunk(16, 2)], 8)
    assert join_of(ours, theirs) == [Truncate("q", 8), Begin("q", 0)]


def test_logs_with_nothing_in_common_are_set_aside_and_begin_anew() -> None:
    ours, theirs = Log(chunks([2] * 20, epoch=2)), Log(chunks([2] * 18))
    leader, follower = Leader({"q": ours}), Follower({"q": theirs})
    steps = run(Join(leader, is_clean=True), leader, follower)
    assert steps == [Probe("q", 34, 16), Probe("q", 2, 32), Truncate("q", 0), Begin("q", 0)]


@pytest.mark.parametrize(
    ("ours", "theirs", "steps"),
    [
        (Log([]), Log([]), [Continue("q", 0)]),
        (Log([], 6), Log([], 6), [Continue("q", 6)]),
        (Log([], 6), Log([]), [Begin("q", 6)]),
        (Log(chunks([2])), Log([]), [Continue("q", 0)]),
        (Log(chunks([2])), Log([], 2), [Begin("q", 0)]),
        (Log([]), Log(chunks([2])), [Truncate("q", 0), Begin("q", 0)]),
        (Log([], 6), Log(chunks([2])), [Truncate("q", 0), Begin("q", 6)]),
        (None, Log([]), [DeleteLog("q")]),
        (None, Log(chunks([2])), [QuarantineLog("q")]),
    ],
)
def test_an_empty_log_needs_no_comparing(ours: Log | None, theirs: Log, steps: list[Step]) -> None:
    assert join_of(ours, theirs) == steps


def test_a_log_that_the_leader_deleted_is_deleted_by_a_clean_follower_only() -> None:
    assert join_of(None, Log(chunks([2])), is_clean=True) == [DeleteLog("q")]
    assert join_of(None, Log(chunks([2])), is_clean=False) == [QuarantineLog("q")]


def test_logs_that_the_follower_lacks_begin_where_the_leaders_do() -> None:
    shared = chunks([2] * 3)
    join = Join(Leader({"a": Log(shared[1:], 2), "b": Log(shared)}), is_clean=True)
    join.compare(Follower({"b": Log(shared)}).held("b"))
    assert join.rest() == [Begin("a", 2)]


@pytest.mark.parametrize("is_clean", [False, True])
def test_the_leader_may_delete_the_log_while_the_follower_is_asked(is_clean: bool) -> None:
    steps = run_while_asked("delete", 1, is_clean)
    assert steps[1:] == [DeleteLog("q") if is_clean else QuarantineLog("q")]


@pytest.mark.parametrize("is_clean", [False, True])
def test_the_leader_may_drop_all_that_can_be_compared_while_the_follower_is_asked(is_clean: bool) -> None:
    steps = run_while_asked("drop", 30, is_clean)
    assert steps[1:] == ([Begin("q", 60)] if is_clean else [Truncate("q", 36), Begin("q", 60)])


def test_the_leader_may_drop_some_of_it_while_the_follower_is_asked() -> None:
    # Of the 16 headers, one is divergent, one common, and the others are not there any more.
    steps = run_while_asked("drop", 17, is_clean=False)
    assert steps[1:] == [Truncate("q", 36), DropBefore("q", 34), Continue("q", 36)]


def run_while_asked(what: str, chunk_count: int, is_clean: bool) -> list[Step]:
    """18 chunks are common, 2 more are not; the leader has 32."""
    shared = chunks([2] * 18)
    ours, theirs = Log(shared + chunks([2] * 14, 36, 2)), Log(shared + chunks([2] * 2, 36))
    leader, follower = Leader({"q": ours}), Follower({"q": theirs})
    join = Join(leader, is_clean=is_clean)
    (probe,) = join.compare(follower.held("q"))
    assert isinstance(probe, Probe)
    assert join.is_undecided("q")
    if what == "drop":
        ours.drop(chunk_count)
    else:
        del leader.logs["q"]
    steps = [probe, *join.probed("q", follower.headers(probe))]
    assert not join.is_undecided("q")
    return steps


def test_no_answer_is_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_module, "PROBE_CHUNKS_MAX", 20)
    ours, theirs = Log(chunks([1] * 80, epoch=2)), Log(chunks([1] * 80))
    leader, follower = Leader({"q": ours}), Follower({"q": theirs})
    steps = run(Join(leader, is_clean=False), leader, follower)
    assert [step.chunks_max for step in steps if isinstance(step, Probe)] == [16, 20, 20, 20, 20]


def probing() -> Join:
    """Asks for 16 chunks that begin before 36 of a log of 20 chunks of 2 from offset 0."""
    join = Join(Leader({"q": Log(chunks([2] * 18, epoch=2))}), is_clean=False)
    assert join.compare(Follower({"q": Log(chunks([2] * 20))}).held("q")) == [Probe("q", 36, 16)]
    return join


GOOD = chunks([2] * 20)[17:1:-1]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ([], "0 chunks of log q before offset 36, and 16 were requested"),
        (GOOD[:15], "15 chunks of log q before offset 36, and 16 were requested"),
        ([*GOOD, chunk(2, 2)], "17 chunks of log q"),
        (
            [*GOOD[:3], *GOOD[4:], chunk(2, 2)],
            "chunk 26 to 28 of log q, and one that ends at 30 was requested",
        ),
        (
            [*GOOD[:3], chunk(28, 4), *GOOD[4:]],
            "chunk 28 to 32 of log q, and one that ends at 30 was requested",
        ),
        ([chunk(36, 2), *GOOD[:15]], "chunk 36 to 38"),
        ([chunk(34, 20), *GOOD[:15]], "chunk 34 to 54"),
        ([GOOD[0][:-1], *GOOD[1:]], "with 47 octets"),
        ([bytes(48), *GOOD[1:]], "magic"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_the_peers_error(headers: list[bytes], text: str) -> None:
    with pytest.raises(PeerError, match=text):
        probing().probed("q", headers)


def test_the_right_answer_is_taken_once() -> None:
    join = probing()
    assert join.probed("q", GOOD) == [Probe("q", 4, 32)]
    for wrong in (GOOD, [chunk(3, 3), chunk(2, 1), chunk(0, 2)]):
        with pytest.raises(PeerError, match="that ends at 4 was requested"):
            join.probed("q", wrong)
    assert join.probed("q", chunks([2, 2])[::-1]) == [Truncate("q", 0), Begin("q", 0)]
    with pytest.raises(PeerError, match="not requested"):
        join.probed("q", GOOD)


@pytest.mark.parametrize(
    "held",
    [
        Held("q", 0, 4, b""),
        Held("q", 0, 5, chunk(2, 2)),
        Held("q", 3, 4, chunk(2, 2)),
        Held("q", 4, 4, chunk(4, 0)),
        Held("q", 0, 4, chunk(2, 2)[:20]),
    ],
)
def test_an_inventory_that_contradicts_itself_is_the_peers_error(held: Held) -> None:
    with pytest.raises(PeerError):
        Join(Leader({}), is_clean=False).compare(held)


def test_a_log_is_told_of_once() -> None:
    join = Join(Leader({}), is_clean=False)
    join.compare(Held("q", 0, 0, b""))
    with pytest.raises(PeerError, match="log q twice"):
        join.compare(Held("q", 0, 0, b""))
