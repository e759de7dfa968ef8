"""The incarnations of a queue, as an outgoing log and what is transferred of it number them.

A name may come again with another epoch, and what is of one epoch is settled whole each time its policy is taken
away. So a **incarnation** is the epoch, and above INCARNATION_BITS how often that was.

An offset is the same message in each of them, and who has recovered it need not do so again. Only where a queue lost
its end, as with the power, it hands those offsets out again; the incarnations from there on are another **numbering**:

    bit 63  62 .. 48           47 .. 40                          39 .. 0
        0   | numbering        | returns of the policy in it     | epoch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INCARNATION_BITS: Final = 40
"""Above so many bits of a queue's epoch is its incarnation."""
_RETURN_BITS: Final = 8
"""After 256 returns another numbering begins, too: what it has in common with the one before is not known then."""
_EPOCHS: Final = (1 << INCARNATION_BITS) - 1
_COUNT_BITS: Final = 63 - INCARNATION_BITS
Incarnations = TypeVar("Incarnations", int, "npt.NDArray[np.int64]")


def epoch_of(incarnation: int) -> int:
    """The epoch of the queue that has this incarnation."""
    return incarnation & _EPOCHS


def in_order(incarnations: Incarnations) -> Incarnations:
    """A sort key, of one or of an array: incarnations of a queue follow each other by epoch, then by returns."""
    return (incarnations & _EPOCHS) << _COUNT_BITS | incarnations >> INCARNATION_BITS


def generation_of(incarnation: int) -> int:
    """An incarnation of the same queue that gave its offsets to the same messages: for all of those it is this one."""
    return incarnation & ~(((1 << _RETURN_BITS) - 1) << INCARNATION_BITS)


def next_count(count: int, *, renumbers: bool) -> int:
    """The number above INCARNATION_BITS of a queue's next incarnation; `renumbers`: offsets may name other messages."""
    return ((count >> _RETURN_BITS) + 1 << _RETURN_BITS) if renumbers else count + 1
