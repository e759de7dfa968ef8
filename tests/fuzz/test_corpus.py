"""Every input that a target once failed with, and every seed: taken, or refused as declared, in bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.catalogue import TARGETS

# pamqp warns of methods that AMQP 0-9-1 has given up; peers may send them all the same.
pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")

CORPUS: Final = Path(__file__).parent / "corpus"
FOUND: Final = sorted(path for path in CORPUS.rglob("*") if path.is_file())
MEMORY_BYTES_MAX: Final = 32 * 1024 * 1024


@pytest.mark.timeout(20)
@pytest.mark.parametrize("path", FOUND, ids=[str(path.relative_to(CORPUS)) for path in FOUND])
def test_what_was_found_is_mended(path: Path) -> None:
    octets = path.read_bytes()
    target = TARGETS[path.parent.name]
    tracemalloc.start()
    try:
        target.run(octets)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX


@pytest.mark.parametrize("name", TARGETS)
def test_lawful_inputs_are_taken(name: str) -> None:
    seeds = list(TARGETS[name].seeds())
    assert seeds
    for octets in seeds:
        TARGETS[name].run(octets)
