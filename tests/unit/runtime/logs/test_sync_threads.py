"""Threads that wait for the disk in place of the event loop."""

from __future__ import annotations

import threading

import pytest

from leveret.runtime.logs.sync_threads import SyncThreads
from leveret.testing.network.waiting import until


async def test_the_loop_is_told_of_the_end_of_each_call_and_of_its_error() -> None:
    threads, loop_thread = SyncThreads(2, "test"), threading.get_ident()
    done: list[tuple[int, bool]] = []
    told: list[tuple[str, bool]] = []

    def work(number: int) -> None:
        done.append((number, threading.get_ident() == loop_thread))
        if number == 2:
            raise OSError(5, "Input/output error")

    for number in range(3):
        threads.call(
            work, number, lambda error: told.append((str(error), threading.get_ident() == loop_thread))
        )
    await until(lambda: len(told) == 3)
    assert sorted(done) == [(number, False) for number in range(3)]
    assert sorted(told) == [("None", True), ("None", True), ("[Errno 5] Input/output error", True)]
    threads.close()


async def test_a_call_has_a_thread_though_others_are_busy_up_to_a_limit() -> None:
    threads, gate = SyncThreads(2, "test"), threading.Semaphore(0)
    began: list[int] = []
    ended: list[BaseException | None] = []

    def work(number: int) -> None:
        began.append(number)
        assert gate.acquire(timeout=10)

    for number in range(2):
        # One thread is enough for calls that follow each other.
        gate.release()
        threads.call(work, number, ended.append)
        await until(lambda number=number: len(ended) == number + 1)  # type: ignore[misc]
    assert len(threads._threads) == 1
    for number in range(2, 5):
        threads.call(work, number, ended.append)
    await until(lambda: len(began) == 4)
    assert (len(threads._threads), len(ended)) == (2, 2)
    gate.release(3)
    await until(lambda: len(ended) == 5)
    assert ended == [None] * 5
    threads.close()


@pytest.mark.parametrize("error", [None, OSError(5, "Input/output error")])
async def test_what_is_cleaned_up_keeps_nobody_waiting_and_is_whatever_happened(
    error: OSError | None,
) -> None:
    threads, gate = SyncThreads(1, "test"), threading.Semaphore(0)
    steps: list[str] = []

    def work(name: str) -> None:
        steps.append(f"work {name}")
        if error is not None:
            raise error

    def cleanup(name: str) -> None:
        assert gate.acquire(timeout=10)
        steps.append(f"clean {name}")

    threads.call(work, "a", lambda told: steps.append(f"told {told}"), cleanup)
    await until(lambda: len(steps) == 2)
    gate.release()
    threads.close()
    assert steps == ["work a", f"told {error}", "clean a"]


async def test_an_end_waits_for_the_calls_and_takes_no_more() -> None:
    threads, done = SyncThreads(1, "test"), list[int]()
    for number in range(3):
        threads.call(done.append, number, lambda error: None)
    threads.close()
    assert done == [0, 1, 2]
    with pytest.raises(RuntimeError, match="the threads have ended"):
        threads.call(done.append, 3, lambda error: None)
