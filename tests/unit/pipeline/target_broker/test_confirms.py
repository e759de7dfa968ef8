"""What a broker has confirmed, in any order in which it may say so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.pipeline.target_broker.confirms import UnconfirmedTags

Verdict = tuple[int, bool, bool]
"""A delivery tag, whether it is all up to it, whether it is an ack."""


def unconfirmed_after(sent: int, verdicts: list[Verdict]) -> UnconfirmedTags[int]:
    """What is unconfirmed of so many messages, each of which is noted by its number, after these verdicts."""
    unconfirmed: UnconfirmedTags[int] = UnconfirmedTags()
    for number in range(1, sent + 1):
        unconfirmed.sent(number)
    for tag, multiple, taken in verdicts:
        unconfirmed.settle(tag, multiple=multiple, taken=taken)
    return unconfirmed


def expected(sent: int, verdicts: list[Verdict]) -> tuple[list[int], bool]:
    """By the protocol's words: each message is settled once, by the first verdict that names it."""
    outcome: dict[int, bool] = {}
    for tag, multiple, taken in verdicts:
        named = range(1, (tag or sent) + 1) if multiple else [tag]
        for each in named:
            if 1 <= each <= sent:
                outcome.setdefault(each, taken)
    confirmed = 0
    while outcome.get(confirmed + 1):
        confirmed += 1
    return list(range(confirmed + 1, sent + 1)), not all(outcome.values())


def left(unconfirmed: UnconfirmedTags[int]) -> list[int]:
    """The messages from the first unconfirmed on."""
    return list(range(unconfirmed.first, unconfirmed.first + len(unconfirmed))) if len(unconfirmed) else []


SENT = st.integers(min_value=0, max_value=8)


@given(
    sent=SENT,
    verdicts=st.lists(st.tuples(st.integers(min_value=0, max_value=9), st.booleans(), st.booleans())),
)
def test_every_message_is_settled_by_the_first_word_about_it(sent: int, verdicts: list[Verdict]) -> None:
    unconfirmed = unconfirmed_after(sent, verdicts)
    assert (left(unconfirmed), unconfirmed.declined) == expected(sent, verdicts)


@given(data=st.data(), sent=SENT)
def test_nothing_is_left_once_every_message_was_acked_alone_or_with_others_in_any_order(
    data: st.DataObject, sent: int
) -> None:
    ends = data.draw(st.sets(st.integers(min_value=1, max_value=max(1, sent)))) if sent else set()
    alone = [(tag, False, True) for tag in range(1, sent + 1) if tag > max(ends, default=0)]
    early = data.draw(st.lists(st.integers(min_value=1, max_value=max(1, sent)))) if sent else []
    acks = [*alone, *((tag, True, True) for tag in ends), *((tag, False, True) for tag in early)]
    assert left(unconfirmed_after(sent, data.draw(st.permutations(acks)))) == []


def test_one_that_was_acked_before_all_up_to_the_one_before_it_counts() -> None:
    assert left(unconfirmed_after(5, [(5, False, True), (4, True, True)])) == []


def test_what_is_sent_after_some_are_settled_has_the_next_tags() -> None:
    unconfirmed = unconfirmed_after(3, [(3, False, True), (2, True, True)])
    unconfirmed.sent(4)
    assert left(unconfirmed) == [4]
    unconfirmed.settle(4, multiple=False, taken=True)
    assert left(unconfirmed) == []
