"""How long to wait before what failed is tried again: longer each time, up to the last step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

RETRY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
QUICK_RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Of the links between two nodes of a cluster, which clients wait for."""


def delay_s(steps: Sequence[float], failures: int) -> float:
    """The wait when there were so many `failures` in a row before the last one."""
    return steps[min(failures, len(steps) - 1)]
