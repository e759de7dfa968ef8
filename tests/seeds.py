"""Seeds as parameters: the first ones belong to `make test`, the others are stories."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(count: int, *, each_time: int) -> list[Any]:
    """Return the seeds from 0 to below `count`; those from `each_time` on are marked `story`."""
    later = [pytest.param(seed, marks=pytest.mark.story) for seed in range(each_time, count)]
    return [*range(each_time), *later]
