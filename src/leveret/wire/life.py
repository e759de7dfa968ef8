"""The lives of a queue, as an outgoing log and what is transferred of it number them.

A name may come again with another epoch, and what is of one epoch is settled whole each time its policy is taken
away. So a **life** is the epoch, and above LIFE_BITS how often that was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LIFE_BITS: Final = 40
"""Above so many bits of a queue's epoch is its life."""
_EPOCHS: Final = (1 << LIFE_BITS) - 1
_COUNT_BITS: Final = 63 - LIFE_BITS
Lives = TypeVar("Lives", int, "npt.NDArray[np.int64]")


def epoch_of(life: int) -> int:
    """The epoch of the queue that has this life."""
    return life & _EPOCHS


def in_order(lives: Lives) -> Lives:
    """Numbers, or one, in the order in which the lives of a queue follow each other: by epoch, and then by returns."""
    return (lives & _EPOCHS) << _COUNT_BITS | lives >> LIFE_BITS
