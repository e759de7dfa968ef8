"""What is told of a seed in whose conversation the brokers differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from tests.conformance.conversations.generator import conversation
from tests.conformance.conversations.known import is_known
from tests.conformance.conversations.play import SHRINKING_S, Stage, played
from tests.conformance.conversations.shrinking import shortest
from tests.conformance.conversations.steps import Step

REPEATS: Final = 2
"""A difference that does not come back as often is the brokers' timing."""


def differences_of(stage: Stage, seed: int, length: int) -> Iterator[str]:
    """Yield the report of a seed if the brokers differ in its conversation each time that it is played."""
    steps = conversation(seed, length)
    first = played(stage, steps)
    if first is None or is_known(first):
        return

    def differs(numbers: Sequence[int]) -> bool:
        found = played(stage, [steps[number] for number in numbers], SHRINKING_S)
        return found is not None and not is_known(found)

    upto = range(min(first.step + 1, len(steps)))
    if not all(differs(upto) for _ in range(REPEATS)):
        print(f"seed {seed}: a difference that did not come back: {first}", file=sys.stderr)
        return
    yield _report(stage, seed, length, steps, shortest(upto, differs))


def _report(stage: Stage, seed: int, length: int, steps: Sequence[Step], numbers: Sequence[int]) -> str:
    """What is played, what differs, and the command that plays it again."""
    difference = played(stage, [steps[number] for number in numbers])
    told = "\n".join(f"  {place}: {steps[number]}" for place, number in enumerate(numbers))
    chosen = ",".join(map(str, numbers))
    command = f"python -m tests.conformance.conversations --seed {seed} --length {length} --steps {chosen}"
    return f"\n{command}\n{told}\n{difference}"
