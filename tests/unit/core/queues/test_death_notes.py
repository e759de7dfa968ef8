"""core.queues.death_notes: what the log names as dead is what died and is not settled, whatever segments are gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues import death_notes
from leveret.core.queues.death_notes import REASONS, DeathNotes
from leveret.core.queues.return_counts import LOGGED_AT_ONCE

STEP = st.one_of(
    st.tuples(st.just("die"), st.integers(0, 60), st.integers(1, 6)),
    st.tuples(st.just("settle"), st.integers(0, 60), st.integers(1, 25)),
    st.tuples(st.sampled_from(["log", "segment"]), st.just(0), st.just(0)),
)


@given(st.lists(STEP, max_size=40), st.data())
def test_the_log_names_those_that_died_and_are_not_settled(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    known, by_log, model = DeathNotes(), DeathNotes(), dict[int, str]()
    for what, first, count in [*steps, ("log", 0, 0)]:
        offsets = range(first, first + count)
        if what == "die" and model.keys().isdisjoint(offsets):
            reason = data.draw(st.sampled_from(REASONS))
            known.add(first, first + count, reason)
            model |= dict.fromkeys(offsets, reason)
        elif what == "settle":
            known.forget(first, first + count)
            by_log.forget(first, first + count)
            for offset in offsets:
                model.pop(offset, None)
        elif what == "segment":
            # What was before it may go.
            known.log_again()
            by_log = DeathNotes()
        elif what == "log":
            notes = known.unlogged
            for died in notes:
                by_log.found(died)
            known.logged(notes)
            assert not known.unlogged
        assert known.count == len(model)
    for notes_of in (known, by_log):
        assert {at: died.reason for died in notes_of for at in range(died.first, died.end)} == model


def test_more_than_fit_a_chunk_are_logged_with_the_next_ones() -> None:
    notes = DeathNotes()
    for offset in range(0, 2 * LOGGED_AT_ONCE + 2, 2):
        notes.add(offset, offset + 1, "rejected")
    assert (len(notes.unlogged), notes.is_much_unlogged) == (LOGGED_AT_ONCE, True)
    notes.logged(notes.unlogged)
    assert (len(notes.unlogged), notes.is_much_unlogged) == (1, False)


def test_neighbours_of_one_reason_are_one_range() -> None:
    notes = DeathNotes()
    for offset, reason in enumerate(("rejected", "rejected", "expired", "rejected")):
        notes.add(offset, offset + 1, reason)
    assert sorted(notes.unlogged) == [
        death_notes.Died(0, 2, "rejected"),
        death_notes.Died(2, 3, "expired"),
        death_notes.Died(3, 4, "rejected"),
    ]
