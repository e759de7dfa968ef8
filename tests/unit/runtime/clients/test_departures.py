"""Thousands of connections whose sockets close together end a few in each pass of the event loop, in their order."""

from __future__ import annotations

import asyncio

from leveret.runtime.clients.departures import AT_ONCE, Departures


async def test_a_few_end_at_once_and_thousands_in_many_passes_of_the_loop() -> None:
    departures, ended, passes = Departures(), list[int](), list[int]()
    for number in range(AT_ONCE):
        departures.add(lambda number=number: ended.append(number))  # type: ignore[misc]
    assert ended == list(range(AT_ONCE)), "who reconnects finds nothing of before"
    for number in range(AT_ONCE, 20 * AT_ONCE):
        departures.add(lambda number=number: ended.append(number))  # type: ignore[misc]
    while len(ended) < 20 * AT_ONCE:
        before = len(ended)
        await asyncio.sleep(0)
        passes.append(len(ended) - before)
    assert max(passes) == AT_ONCE
    assert ended == list(range(20 * AT_ONCE))
    await asyncio.sleep(0)
    departures.add(lambda: ended.append(-1))
    assert ended[-1] == -1, "later ones end at once again"
