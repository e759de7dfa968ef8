"""Work that has an owner, and callers that may stop waiting for it."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def outcome_of(work: asyncio.Future[T]) -> T:
    """Wait for work that goes on if the caller is cancelled; raise what it raises.

    `asyncio.shield` does the same, but from Python 3.14 on it logs the error of work whose caller was cancelled, though
    the owner of the work retrieves it.
    """
    await asyncio.wait((work,))
    return work.result()
