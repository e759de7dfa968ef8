"""core.queues.messages: columns are what a list of single messages would be."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import Messages, Run, alike, joined
from leveret.wire.record import content_header

Single = tuple[Head, bytes]
PLAIN, TRANSIENT, URGENT, MORTAL = b"\x10\x00\x02", b"\0\0", b"\x08\x00\x07", b"\x01\x00\x0210"
PROPERTIES = (PLAIN, TRANSIENT, URGENT, MORTAL)

LARGE = bytes(range(256)) * 256

singles = st.lists(
    st.tuples(
        st.sampled_from(PROPERTIES), st.sampled_from([b"a", b"bb"]), st.binary(max_size=5), st.integers(1, 12)
    ),
    max_size=6,
)


def gathered(
    parts: list[tuple[bytes, bytes, bytes, int]], *, by_columns: bool
) -> tuple[list[Messages], list[Single]]:
    """What a queue gathers, and the same one by one."""
    found: list[Messages] = []
    each: list[Single] = []
    for properties, key, body, count in parts:
        head = make_head(b"e", key, content_header(properties, len(body)))
        each += [(head, body)] * count
        if by_columns:
            found.append(
                Messages(
                    [head.route] * count,
                    [head.sized_header] * count,
                    [body] * count,
                    expiration_ms=head.expiration_ms,
                    priority=head.priority,
                )
            )
        else:
            found.append(alike(head, [body] * count))
    return found, each


def shown(parts: list[Messages]) -> list[tuple[bytes, bytes]]:
    return [(head.entry, body) for part in parts for head, bodies in part.by_head() for body in bodies]


@given(singles, st.booleans())
def test_what_is_joined_is_in_its_order_and_stands_so_in_a_log(
    parts: list[tuple[bytes, bytes, bytes, int]], by_columns: bool
) -> None:
    found, each = gathered(parts, by_columns=by_columns)
    together = joined(found)
    assert shown(together) == [(head.entry, body) for head, body in each]
    assert b"".join(part.entries() for part in together) == b"".join(head.entry + body for head, body in each)
    assert [part.entry_bytes for part in together] == [len(part.entries()) for part in together]
    at = 0
    for part in together:
        mine = each[at : at + len(part)]
        assert {(head.expiration_ms, head.priority) for head, _ in mine} == {
            (part.expiration_ms, part.priority)
        }
        assert part.is_persistent == any(head.persistent for head, _ in mine)
        assert [part.head_at(index).entry for index in range(len(part))] == [head.entry for head, _ in mine]
        at += len(part)


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("bodies", [[LARGE], [LARGE] * 3, [LARGE, b"small"], [b"small"], [LARGE, b"", LARGE]])
def test_large_bodies_stand_in_a_log_as_they_came_without_a_copy(
    bodies: list[bytes], by_columns: bool
) -> None:
    parts, _ = gathered([(PLAIN, b"key", body, 1) for body in bodies], by_columns=by_columns)
    for messages in joined(parts):
        pieces = messages.pieces()
        assert b"".join(pieces) == messages.entries()
        if messages.body_bytes >= len(LARGE) * len(messages):
            assert [piece for piece in pieces if piece is LARGE] == messages.bodies
        else:
            assert len(pieces) == 1, "small ones are joined by fewer steps"


@given(singles, st.booleans(), st.data())
def test_a_run_is_cut_anywhere(
    parts: list[tuple[bytes, bytes, bytes, int]], by_columns: bool, data: st.DataObject
) -> None:
    for part in joined(gathered(parts, by_columns=by_columns)[0]):
        run = Run(100, part, 7)
        first = data.draw(st.integers(run.first, run.end - 1))
        end = data.draw(st.integers(first + 1, run.end))
        piece = run.cut(first, end)
        assert (piece.first, piece.end, len(piece), piece.arrived_ms) == (first, end, end - first, 7)
        assert shown([piece.taken()]) == shown([part])[first - 100 : end - 100]
        assert piece.body_bytes == piece.taken().body_bytes == sum(map(len, piece.bodies))
        front = run.cut(100, end)
        behind = run.behind(front)
        assert shown([front.taken()]) + shown([behind.taken()] if len(behind) else []) == shown([part])
        assert behind.body_bytes == sum(map(len, behind.bodies))


@given(singles, st.booleans(), st.integers(0, 40), st.integers(1, 9))
def test_parts_and_what_fits_are_no_larger_than_asked_for_but_never_nothing(
    parts: list[tuple[bytes, bytes, bytes, int]], by_columns: bool, octets: int, count_max: int
) -> None:
    for part in joined(gathered(parts, by_columns=by_columns)[0]):
        pieces = list(part.parts(count_max, octets))
        assert shown(pieces) == shown([part])
        assert all(len(piece) <= count_max for piece in pieces)
        assert all(len(piece) == 1 or piece.entry_bytes <= octets for piece in pieces)
        run = Run(0, part)
        totals = list(accumulate(map(len, part.bodies)))
        fits = run.fitting(octets)
        assert fits == 1 or run.cut(0, fits).octets <= octets
        assert fits == len(part) or run.cut(0, fits + 1).octets > octets
        holds = run.holding(octets)
        assert totals[holds - 1] >= octets or holds == len(part)
        assert holds == 1 or totals[holds - 2] < octets


def test_many_that_are_alike_keep_their_head() -> None:
    head = make_head(b"", b"q", content_header(PLAIN, 1))
    other = make_head(b"", b"r", content_header(PLAIN, 1))
    parts = joined([alike(head, [b"x"] * 50), alike(head, [b"y"]), alike(other, [b"z"]), alike(head, [b"x"])])
    assert [(part.head, len(part)) for part in parts] == [(head, 51), (None, 2)]
