"""The waits between tries of a failed step: longer each time, up to the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

RETRY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
QUICK_RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""The waits for links between two nodes of a cluster, on which clients depend."""


def delay_s(steps: Sequence[float], failures: int) -> float:
    """The wait after one more failure, when there were `failures` in a row before it."""
    return steps[min(failures, len(steps) - 1)]
