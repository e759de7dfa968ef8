"""Preparation of one of Spark's Python processes, before its first task."""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_modules() -> None:
    """Take all that is loaded by now out of the garbage collector's reach.

    Spark has each process collect all of its garbage after every task, which takes longer than the task: Arrow,
    numpy and our modules are a quarter of a million objects that never go.
    """
    gc.collect()
    gc.freeze()
