from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.runtime.process import work_slices
from leveret.runtime.process.work_slices import in_slices, in_thread_to_its_end, result_of, sorted_in_slices
from leveret.testing.network.waiting import until


async def test_others_are_served_while_long_work_goes_on() -> None:
    story: list[str] = []

    async def work() -> None:
        async for item in in_slices(range(3), slice_s=0):
            story.append(f"work {item}")

    async def other() -> None:
        while "work 2" not in story:
            story.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(work(), other())
    assert [each for each in story if each != "other"] == ["work 0", "work 1", "work 2"]
    assert "other" in story[: story.index("work 1")]
    assert "other" in story[story.index("work 1") : story.index("work 2")]


def test_short_work_is_done_at_one_go() -> None:
    async def count() -> list[int]:
        return [item async for item in in_slices(range(5), slice_s=60)]

    assert asyncio.run(count()) == list(range(5))


async def test_of_all_long_work_one_has_its_turn_in_a_pass_of_the_loop() -> None:
    """Ten long answers at once hold up nobody longer than one does."""
    story: list[str] = []

    async def work(name: str) -> None:
        async for _ in in_slices(range(4), slice_s=0):
            story.append(name)

    async def others() -> None:
        while sum(each != "|" for each in story) < 12:
            story.append("|")
            await asyncio.sleep(0)

    await asyncio.gather(others(), work("a"), work("b"), work("c"))
    # The first turns come with the request; from then on others are served in between.
    passes = "".join(story).split("|")[2:]
    assert all(len(each) <= 1 for each in passes)


def test_work_that_is_given_up_keeps_nobody_waiting() -> None:
    async def work() -> list[int]:
        return [item async for item in in_slices(range(100), slice_s=0)]

    async def main() -> list[int]:
        given_up = asyncio.create_task(work())
        going_on = asyncio.create_task(work())
        await asyncio.sleep(0)
        given_up.cancel()
        return await asyncio.wait_for(going_on, 60)

    assert asyncio.run(main()) == list(range(100))


def test_a_piece_of_work_ends_with_its_result_and_others_are_served_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_slices, "time_slice", lambda: lambda: True)
    story: list[str] = []

    def work() -> Generator[None, None, int]:
        for number in range(3):
            story.append(f"work {number}")
            yield
        return 7

    async def other() -> None:
        while "work 2" not in story:
            story.append("other")
            await asyncio.sleep(0)

    async def both() -> int:
        return (await asyncio.gather(result_of(work()), other()))[0]

    assert asyncio.run(both()) == 7
    assert "other" in story[story.index("work 0") : story.index("work 1")]


@given(st.lists(st.tuples(st.integers(0, 5), st.text(max_size=1)), max_size=40))
def test_a_list_that_is_sorted_in_parts_is_sorted_and_equals_keep_their_order(
    items: list[tuple[int, str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_slices, "SORTED_AT_ONCE", 3)
        found = asyncio.run(sorted_in_slices(items, lambda item: item[0]))
    assert found == sorted(items, key=lambda item: item[0])


async def test_a_call_ends_after_its_thread_also_if_it_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    assert await in_thread_to_its_end(divmod, 7, 2) == (3, 1)
    goes_on, has_begun, is_over = threading.Event(), threading.Event(), False

    def work() -> None:
        nonlocal is_over
        has_begun.set()
        assert goes_on.wait(60)
        is_over = True
        raise OSError("the disk is full")

    call = asyncio.create_task(in_thread_to_its_end(work))
    await until(has_begun.is_set, "the thread")
    call.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not call.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert is_over
    assert "the disk is full" in caplog.text
