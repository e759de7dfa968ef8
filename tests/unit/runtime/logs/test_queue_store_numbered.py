"""Numbered messages and their numbers share a chunk: each chunk tells how many of them are there up to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues.messages import alike
from leveret.core.queues.sequences import SEQUENCES_MAX
from leveret.runtime.logs import queue_store as store_module
from leveret.wire.chunk import Attribute, decode_trailer, split_entries
from leveret.wire.record import RECOVERY_REFERENCE_PREFIX, decode_message
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import head_of
from tests.unit.runtime.logs.test_queue_store import Store

REFERENCES = [b"a", b"b", b"c"]


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([None, *REFERENCES]), st.integers(1, 12), st.integers(0, 2)), max_size=8
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 10),
)
def test_after_any_chunk_the_numbers_are_those_of_the_messages_that_are_there(
    flushes: list[list[tuple[bytes | None, int, int]]], entries_max: int
) -> None:
    with scratch() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "ENTRIES_MAX", entries_max)
        store = Store(directory)
        numbers = dict.fromkeys(REFERENCES, 0)
        heads = [head_of(6) for _ in range(3)]
        for flush in flushes:
            for reference, count, head in flush:
                if reference is None:
                    store.queue.gathered.add(alike(heads[head], [b"?    0"] * count))
                    continue
                first, numbers[reference] = numbers[reference] + 1, numbers[reference] + count
                bodies = [b"%s%5d" % (reference, number) for number in range(first, first + count)]
                store.queue.gathered.add(alike(heads[head], bodies))
                store.queue.advance_sequence(reference, numbers[reference], count)
                assert store.queue.last_sequence(reference) == numbers[reference]
            store.store.append_messages(store.queue)
        there, found = dict.fromkeys(REFERENCES, 0), dict.fromkeys(REFERENCES, 0)
        for chunk in store.store.log(store.queue).read(0, 1 << 30):
            for entry in split_entries(bytes(chunk.data)):
                body = bytes(decode_message(entry).body)
                if body[:1] in there:
                    there[body[:1]] = int(body[1:])
            attributes = decode_trailer(chunk.trailer)
            found |= {name: value for kind, name, value in attributes if kind == Attribute.SEQUENCE}
            assert found == there
        store.restart()
        assert {name: store.queue.last_sequence(name) for name in REFERENCES} == numbers
        store.store.close()
        store.commit.close()


def test_publishers_that_have_not_published_for_longest_are_forgotten() -> None:
    with scratch() as directory:
        store = Store(directory)
        for number in [*range(SEQUENCES_MAX), 0, SEQUENCES_MAX]:
            store.queue.gathered.add(alike(head_of(1), [b"x"]))
            store.queue.advance_sequence(b"%d" % number, number + 1, 1)
            store.store.append_messages(store.queue)
        for _ in range(2):
            assert len(store.queue.sequences.logged) == SEQUENCES_MAX
            assert store.queue.last_sequence(b"0") == 1
            assert store.queue.last_sequence(b"1") == 0
            store.restart()
        store.store.close()
        store.commit.close()


def test_how_far_a_recovery_came_is_never_forgotten() -> None:
    with scratch() as directory:
        store = Store(directory)
        recovery = f"{RECOVERY_REFERENCE_PREFIX}1".encode()
        for reference in [recovery, *(b"%d" % number for number in range(SEQUENCES_MAX + 5))]:
            store.queue.gathered.add(alike(head_of(1), [b"x"]))
            store.queue.advance_sequence(reference, 7, 1)
            store.store.append_messages(store.queue)
        for _ in range(2):
            assert len(store.queue.sequences.logged) == SEQUENCES_MAX
            assert store.queue.last_sequence(recovery) == 7
            assert store.queue.last_sequence(b"5") == 0
            store.restart()
        store.store.close()
        store.commit.close()
