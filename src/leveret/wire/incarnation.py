"""The incarnations of a queue, as an outgoing log and the archive number them.

A name may come back with another epoch, and each time a queue's policy is taken away all messages of its epoch are
settled. So an **incarnation** is the epoch and, above INCARNATION_BITS, the number of such settlements.

An offset names the same message in each incarnation, so a recovered message need not be recovered again. Only a queue
that lost its end, as with the power, gives those offsets to other messages; the incarnations from there on are
another **numbering**:

    bit 63  62 .. 48           47 .. 40                          39 .. 0
        0   | numbering        | returns of the policy in it     | epoch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INCARNATION_BITS: Final = 40
"""An incarnation is a queue's epoch in so many bits, and a count above them."""
_RETURN_BITS: Final = 8
"""After 256 returns another numbering begins, because how much it shares with the one before is unknown then."""
_EPOCHS: Final = (1 << INCARNATION_BITS) - 1
_COUNT_BITS: Final = 63 - INCARNATION_BITS
Incarnations = TypeVar("Incarnations", int, "npt.NDArray[np.int64]")


def epoch_of(incarnation: int) -> int:
    """The epoch of the queue with this incarnation."""
    return incarnation & _EPOCHS


def in_order(incarnations: Incarnations) -> Incarnations:
    """A sort key, of one incarnation or of an array: by epoch, then by returns."""
    return (incarnations & _EPOCHS) << _COUNT_BITS | incarnations >> INCARNATION_BITS


def generation_of(incarnation: int) -> int:
    """The incarnation that stands for all that gave the same offsets to the same messages of the queue."""
    return incarnation & ~(((1 << _RETURN_BITS) - 1) << INCARNATION_BITS)


def numbering_of(incarnation: int) -> int:
    """The number of the numbering: offsets of a later one may name other messages."""
    return incarnation >> INCARNATION_BITS + _RETURN_BITS


def without_messages(incarnation: Incarnations) -> Incarnations:
    """An incarnation of the same queue that never has a message: the last numbering, which none begins."""
    return incarnation & _EPOCHS | ((1 << _COUNT_BITS) - 1) << INCARNATION_BITS


def may_have_messages(incarnation: int) -> bool:
    """Whether it is an incarnation that a queue may have, and none of `without_messages`."""
    return incarnation != without_messages(incarnation)


def next_count(count: int, *, renumbers: bool) -> int:
    """The count above INCARNATION_BITS of the next incarnation; `renumbers`: offsets may name other messages."""
    return ((count >> _RETURN_BITS) + 1 << _RETURN_BITS) if renumbers else count + 1
