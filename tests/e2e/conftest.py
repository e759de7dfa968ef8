"""What tests of whole processes share."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Draws a test's amounts and moments; the seed is printed, and LEVERET_SEED sets another one."""
    seed = os.environ.get("LEVERET_SEED", request.node.name)
    print(f"LEVERET_SEED={seed}")
    return random.Random(seed)
