from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from leveret.runtime.process.outcomes import outcome_of


async def test_work_ends_as_it_does_for_its_caller() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_result(1)
    assert await outcome_of(done) == 1
    failing: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(failing.set_exception, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await outcome_of(failing)


async def test_an_error_that_its_owner_knows_is_not_logged_for_a_caller_that_was_cancelled() -> None:
    logged: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: logged.append(context))
    work: asyncio.Future[int] = loop.create_future()
    work.add_done_callback(asyncio.Future.exception)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await outcome_of(work)
    assert not work.done()
    work.set_exception(ValueError("no"))
    await asyncio.sleep(0)
    del work
    gc.collect()
    assert not logged
