from __future__ import annotations

import numpy as np

from leveret.wire.life import LIFE_BITS, epoch_of, in_order


def test_lives_of_a_queue_are_in_the_order_of_their_epochs_and_then_of_their_policys_returns() -> None:
    lives = [1, 1 + (1 << LIFE_BITS), 1 + (2 << LIFE_BITS), 2, 7, 7 + (1 << LIFE_BITS), (1 << 63) - 1]
    assert sorted(lives[::-1], key=in_order) == lives
    assert np.array(lives)[::-1][np.argsort(in_order(np.array(lives, np.int64)[::-1]))].tolist() == lives
    assert [epoch_of(life) for life in lives[:-1]] == [1, 1, 1, 2, 7, 7]
