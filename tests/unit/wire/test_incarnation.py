from __future__ import annotations

import numpy as np

from leveret.wire.incarnation import INCARNATION_BITS, epoch_of, generation_of, in_order, next_count


def test_lives_of_a_queue_are_in_the_order_of_their_epochs_and_then_of_their_policys_returns() -> None:
    incarnations = [
        1,
        1 + (1 << INCARNATION_BITS),
        1 + (2 << INCARNATION_BITS),
        2,
        7,
        7 + (1 << INCARNATION_BITS),
        (1 << 63) - 1,
    ]
    assert sorted(incarnations[::-1], key=in_order) == incarnations
    assert (
        np.array(incarnations)[::-1][np.argsort(in_order(np.array(incarnations, np.int64)[::-1]))].tolist()
        == incarnations
    )
    assert [epoch_of(incarnation) for incarnation in incarnations[:-1]] == [1, 1, 1, 2, 7, 7]


def test_lives_of_one_numbering_follow_each_other_until_offsets_are_given_again() -> None:
    counts = [0]
    for renumbers in (False, False, True, True, False):
        counts.append(next_count(counts[-1], renumbers=renumbers))
    incarnations = [7 + (count << INCARNATION_BITS) for count in counts]
    assert incarnations == sorted(incarnations, key=in_order)
    assert {epoch_of(incarnation) for incarnation in incarnations} == {7}
    first, second, third = (incarnations[index] for index in (0, 3, 4))
    assert [generation_of(incarnation) for incarnation in incarnations] == [
        first,
        first,
        first,
        second,
        third,
        third,
    ]


def test_a_numbering_ends_before_its_returns_are_counted_anew() -> None:
    assert generation_of(next_count(255, renumbers=False) << INCARNATION_BITS) != generation_of(
        255 << INCARNATION_BITS
    )
