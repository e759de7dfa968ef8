"""The lives of a queue, as an outgoing log and what is transferred of it number them.

A name may come again with another epoch, and what is of one epoch is settled whole each time its policy is taken
away. So a **life** is the epoch, and above LIFE_BITS how often that was.

An offset is the same message in each of them, and who has recovered it need not do so again. Only where a queue lost
its end, as with the power, it hands those offsets out again; the lives from there on are another **numbering**:

    bit 63  62 .. 48           47 .. 40                          39 .. 0
        0   | numbering        | returns of the policy in it     | epoch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LIFE_BITS: Final = 40
"""Above so many bits of a queue's epoch is its life."""
_RETURN_BITS: Final = 8
"""After 256 returns another numbering begins, too: what it has in common with the one before is not known then."""
_EPOCHS: Final = (1 << LIFE_BITS) - 1
_COUNT_BITS: Final = 63 - LIFE_BITS
Lives = TypeVar("Lives", int, "npt.NDArray[np.int64]")


def epoch_of(life: int) -> int:
    """The epoch of the queue that has this life."""
    return life & _EPOCHS


def in_order(lives: Lives) -> Lives:
    """Numbers, or one, in the order in which the lives of a queue follow each other: by epoch, and then by returns."""
    return (lives & _EPOCHS) << _COUNT_BITS | lives >> LIFE_BITS


def numbering_of(life: int) -> int:
    """A life of the same queue that gave its offsets to the same messages: for all of those it is this one."""
    return life & ~(((1 << _RETURN_BITS) - 1) << LIFE_BITS)


def next_count(count: int, *, renumbers: bool) -> int:
    """What is above LIFE_BITS in a queue's next life; if it `renumbers`, offsets may be those of other messages."""
    return ((count >> _RETURN_BITS) + 1 << _RETURN_BITS) if renumbers else count + 1
