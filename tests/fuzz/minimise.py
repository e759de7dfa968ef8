"""A shorter input with which a target fails in the same place; a process of its own, as failures may hang.

usage: python -m tests.fuzz.minimise TARGET FILE     the shorter input goes to standard output
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fuzz.catalogue import TARGETS
from tests.fuzz.target import Target


def failure(target: Target, octets: bytes) -> tuple[str, int] | None:
    """What the target raises and the line where, None if it takes the input."""
    try:
        target.run(octets)
    except Exception as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        return type(error).__name__, place.tb_lineno if place else 0
    return None


def minimised(target: Target, octets: bytes) -> bytes:
    """Leave out what can be left out, in halves, quarters, ... and single octets."""
    wanted = failure(target, octets)
    step = len(octets) // 2
    while wanted is not None and step:
        at = 0
        while at < len(octets):
            shorter = octets[:at] + octets[at + step :]
            if failure(target, shorter) == wanted:
                octets = shorter
            else:
                at += step
        step //= 2
    return octets


if __name__ == "__main__":
    sys.stdout.buffer.write(minimised(TARGETS[sys.argv[1]], Path(sys.argv[2]).read_bytes()))
