"""core.queues.chunk_epochs: what is known of epochs whose chunks are gone is what was reached, no more."""

from __future__ import annotations

from leveret.core.queues.chunk_epochs import EPOCHS_MAX, ChunkEpochs


def test_what_chunks_say_and_what_is_appended_come_together() -> None:
    epochs = ChunkEpochs()
    epochs.logged(1, 10)
    epochs.logged(1, 7)
    epochs.appended(3, 12)
    epochs.appended(3, 15)
    assert epochs.ends == {1: 10, 3: 15}
    assert epochs.last == 3
    assert list(epochs.before(4)) == [(1, 10), (3, 15)]
    assert list(epochs.before(3)) == [(1, 10)], "its own chunks speak for themselves"


def test_the_newest_are_logged() -> None:
    epochs = ChunkEpochs()
    for epoch in range(1, EPOCHS_MAX + 3):
        epochs.appended(epoch, 10 * epoch)
    found = list(epochs.before(EPOCHS_MAX + 2))
    assert (len(found), found[0], found[-1]) == (
        EPOCHS_MAX,
        (2, 20),
        (EPOCHS_MAX + 1, 10 * (EPOCHS_MAX + 1)),
    )
