"""core.queues.confirms: every publish is confirmed once, in order, as soon as all before it are known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.confirms import Confirm, ConfirmBatch, ConfirmOutcome, Confirms


def covered(confirms: list[Confirm], after: int) -> tuple[list[tuple[int, bool]], int]:
    """The publishes that these frames confirm, as a client reads them: (number, positive)."""
    numbers: list[tuple[int, bool]] = []
    for tag, multiple, positive, *_ in confirms:
        first = after + 1 if multiple else tag
        assert first == after + 1, "a single confirm must be the next, or the client would see a hole"
        numbers += [(number, positive) for number in range(first, tag + 1)]
        after = tag
    return numbers, after


@given(
    counts=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=8),
    data=st.data(),
)
def test_batches_settled_in_any_order_confirm_each_publish_once_and_in_order(
    counts: list[list[int]], data: st.DataObject
) -> None:
    confirms = Confirms()
    batches: list[ConfirmBatch] = []
    sizes = [sum(of_flush) for of_flush in counts]
    for of_flush in counts:
        opened = [confirms.publish(count) for count in of_flush]
        (closed,) = confirms.close_batches()
        assert all(batch is closed for batch in opened)
        batches.append(closed)
    assert confirms.published == sum(sizes)
    outcomes = data.draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches)))
    done: list[tuple[int, bool]] = []
    settled: set[int] = set()
    last = 0
    for index in data.draw(st.permutations(range(len(batches)))):
        settled.add(index)
        more, last = covered(confirms.decided(batches[index], outcomes[index]), last)
        done += more
        in_order = next((i for i in range(len(batches)) if i not in settled), len(batches))
        assert len(done) == sum(sizes[:in_order])
    expected = [ok for ok, size in zip(outcomes, sizes, strict=True) for _ in range(size)]
    assert done == list(enumerate(expected, 1))


def test_one_publish_is_confirmed_as_one() -> None:
    confirms = Confirms()
    batch = confirms.publish(1)
    assert confirms.close_batches() == [batch]
    assert confirms.decided(batch, True) == [Confirm(1, False, True)]


def test_a_flush_without_publishes_has_no_batch() -> None:
    confirms = Confirms()
    assert confirms.close_batches() == []
    batch = confirms.publish(1)
    assert confirms.close_batches() == [batch]
    assert confirms.close_batches() == []


def test_a_refused_publish_is_a_batch_of_its_own_between_its_neighbours() -> None:
    confirms = Confirms()
    confirms.publish(2)
    confirms.refuse(1)
    confirms.publish(1)
    before, refused, after = confirms.close_batches()
    assert [(batch.last, batch.refused) for batch in (before, refused, after)] == [
        (2, False),
        (3, True),
        (4, False),
    ]
    assert confirms.decided(refused, False) == []
    assert confirms.decided(after, True) == []
    assert confirms.decided(before, True) == [
        Confirm(2, True, True),
        Confirm(3, False, False, is_final=True),
        Confirm(4, False, True),
    ]


def test_a_batch_waits_for_the_disk_if_any_of_its_queues_does() -> None:
    batch = ConfirmBatch()
    assert not batch.needs_sync
    batch.queues["transient"] = False
    assert not batch.needs_sync
    batch.queues["durable"] = True
    assert batch.needs_sync


def test_an_outcome_is_told_once_all_parts_are_known_and_there_are_no_more() -> None:
    """Whatever their order; one that fails spoils it."""
    for results in ([True, True], [True, False], [False, True]):
        notify: list[bool] = []
        outcome = ConfirmOutcome(notify.append)
        parts = [outcome.part() for _ in results]
        parts[0](results[0])
        outcome.seal()
        assert notify == []
        parts[1](results[1])
        assert notify == [all(results)]


def test_an_outcome_of_no_parts_is_well() -> None:
    """Nobody has to keep anything."""
    notify: list[bool] = []
    ConfirmOutcome(notify.append).seal()
    assert notify == [True]
