"""session.stored: what is taken apart many at a time is what one by one would have given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.head import Head, make_head
from leveret.session.stored import RUN_COSTS, runs_of
from leveret.wire.record import content_header

HEADS = [
    make_head(b"", key, content_header(b"\x10\x00\x02", size)) for key in (b"a", b"b") for size in (0, 1, 9)
]


def test_a_body_may_look_like_an_entry() -> None:
    head = make_head(b"", b"q", content_header(b"\0\0", 200))
    bodies = [(head.entry * 9)[:200]] * 40
    runs = runs_of(head.entry.join([b"", *bodies]), 5, 0)
    assert (runs[0].first, [body for run in runs for body in run.bodies]) == (5, bodies)


@given(st.lists(st.tuples(st.sampled_from(HEADS), st.integers(1, 200)), max_size=8), st.integers(0, 300))
def test_runs_are_what_was_stored_from_the_asked_offset_on(parts: list[tuple[Head, int]], skip: int) -> None:
    stored = [(head, bytes([n % 256]) * head.body_bytes) for head, count in parts for n in range(count)]
    data = b"".join(head.entry + body for head, body in stored)
    runs = runs_of(data, 10, 10 + skip, 77)
    read = [(head.entry, body) for run in runs for head, bodies in run.taken().by_head() for body in bodies]
    assert read == [(head.entry, body) for head, body in stored[skip:]]
    offset = 10 + skip
    for run in runs:
        assert (run.first, run.arrived_ms) == (offset, 77)
        offset = run.end


@given(
    st.lists(st.tuples(st.sampled_from(HEADS), st.integers(1, 40)), max_size=8),
    st.integers(0, 60),
    st.integers(1, 5),
)
def test_what_is_left_of_a_chunk_is_taken_apart_the_next_time(
    parts: list[tuple[Head, int]], skip: int, count_max: int
) -> None:
    stored = [(head, bytes([n % 256]) * head.body_bytes) for head, count in parts for n in range(count)]
    data = b"".join(head.entry + body for head, body in stored)
    read, offset = [], skip
    while runs := runs_of(data, 0, offset, count_max=count_max):
        assert runs[0].first == offset
        read += [
            (head.entry, body) for run in runs for head, bodies in run.taken().by_head() for body in bodies
        ]
        offset = runs[-1].end
    assert read == [(head.entry, body) for head, body in stored[skip:]]


@given(st.lists(st.integers(0, 1), min_size=1, max_size=300), st.integers(1, 400))
def test_messages_that_are_each_a_run_are_fewer_in_one_piece(priorities: list[int], count_max: int) -> None:
    """4,096 messages of five priorities in turns took 40 to 60 ms to take apart, and as many of one priority 5."""
    head = [make_head(b"", b"q", content_header(b"\x08\0" + bytes([each]), 1)) for each in (0, 1)]
    data = b"".join(head[priority].entry + b"x" for priority in priorities)
    runs = runs_of(data, 0, 0, count_max=count_max)
    before = sum(len(run) + RUN_COSTS for run in runs[:-1])
    assert before < count_max
    read = [run.messages.priority for run in runs for _ in range(len(run))]
    assert read == priorities[: len(read)]
