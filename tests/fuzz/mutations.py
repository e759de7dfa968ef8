"""Inputs that are nearly right: what was lawful, with a few faults in it, as chance or Hypothesis has it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

FAULTS_MAX: Final = 6
NUMBERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
"""Where lengths, counts and signs turn over."""


def mutated(random: Random, seeds: Sequence[bytes], bytes_max: int) -> bytes:
    """One of the seeds with at least one fault, at most `bytes_max` long."""
    octets = random.choice(seeds)
    for _ in range(random.randint(1, FAULTS_MAX)):
        octets = _fault(random, octets, seeds)
    return octets[:bytes_max]


def _fault(random: Random, octets: bytes, seeds: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(octets))
    end = min(len(octets), at + random.choice((1, 2, 4, 8, 64)))
    before, part, after = octets[:at], octets[at:end], octets[end:]
    match random.randint(0, 6):
        case 0:  # an octet is another one
            return before + bytes((random.randint(0, 255),)) + octets[at + 1 :]
        case 1:  # a number of some width is an unlikely one
            width = random.choice((1, 2, 4, 8))
            number = random.choice(NUMBERS) & (1 << 8 * width) - 1
            return before + number.to_bytes(width, "big") + octets[at + width :]
        case 2:  # something is missing
            return before + after
        case 3:  # something comes twice, or very often
            return before + part * random.choice((2, 3, 50)) + after
        case 4:  # something is in between
            return before + bytes(random.randint(0, 255) for _ in range(random.randint(1, 16))) + octets[at:]
        case 5:  # the rest is another input's
            other = random.choice(seeds)
            return before + other[random.randint(0, len(other)) :]
        case _:  # it ends here
            return before
