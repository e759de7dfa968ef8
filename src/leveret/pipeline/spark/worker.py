"""Preparation of one of Spark's Python processes, before its first task."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_modules() -> None:
    """Exclude all present objects from garbage collection.

    Spark makes each process collect all garbage after every task, which takes longer than the task: Arrow, numpy and
    our modules are a quarter of a million permanent objects.
    """
    gc.collect()
    gc.freeze()
