from __future__ import annotations

import numpy as np

from leveret.wire.life import LIFE_BITS, epoch_of, in_order, next_count, numbering_of


def test_lives_of_a_queue_are_in_the_order_of_their_epochs_and_then_of_their_policys_returns() -> None:
    lives = [1, 1 + (1 << LIFE_BITS), 1 + (2 << LIFE_BITS), 2, 7, 7 + (1 << LIFE_BITS), (1 << 63) - 1]
    assert sorted(lives[::-1], key=in_order) == lives
    assert np.array(lives)[::-1][np.argsort(in_order(np.array(lives, np.int64)[::-1]))].tolist() == lives
    assert [epoch_of(life) for life in lives[:-1]] == [1, 1, 1, 2, 7, 7]


def test_lives_of_one_numbering_follow_each_other_until_offsets_are_given_again() -> None:
    counts = [0]
    for renumbers in (False, False, True, True, False):
        counts.append(next_count(counts[-1], renumbers=renumbers))
    lives = [7 + (count << LIFE_BITS) for count in counts]
    assert lives == sorted(lives, key=in_order)
    assert {epoch_of(life) for life in lives} == {7}
    first, second, third = (lives[index] for index in (0, 3, 4))
    assert [numbering_of(life) for life in lives] == [first, first, first, second, third, third]


def test_a_numbering_ends_before_its_returns_are_counted_anew() -> None:
    assert numbering_of(next_count(255, renumbers=False) << LIFE_BITS) != numbering_of(255 << LIFE_BITS)
