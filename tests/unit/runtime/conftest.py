"""What the tests of several rooms run with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.runtime.collecting import by_reference as outgoing_named
from tests.unit.memory import scratch


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where a node has its data, for one test."""
    with scratch() as place:
        yield place


@pytest.fixture(scope="module", params=["copied", "named"])
def collection(request: pytest.FixtureRequest) -> Iterator[str]:
    """Outgoing logs that hold a copy of the few octets of each test message, and such as only name them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outgoing_named, "BY_REFERENCE_BYTES_MIN", 1 if request.param == "named" else 1 << 30)
        yield request.param
