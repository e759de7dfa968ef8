"""What is told of a seed in whose conversation the brokers differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.conformance.conversations.generator import conversation
from tests.conformance.conversations.http_generator import requests
from tests.conformance.conversations.known import is_known
from tests.conformance.conversations.play import AGREEMENT_S, SHRINKING_S, Stage, played
from tests.conformance.conversations.shrinking import shortest
from tests.conformance.conversations.steps import Step

REPEATS: Final = 2
"""A difference that does not come back as often is the brokers' timing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which conversations are made of seeds: their number of steps, and whether they are HTTP requests only."""

    length: int = 50
    is_http: bool = False

    def steps(self, seed: int) -> list[Step]:
        """The conversation of a seed."""
        return (requests if self.is_http else conversation)(seed, self.length)

    def command(self, seed: int, numbers: Sequence[int]) -> str:
        """The command that plays some of its steps again."""
        chosen = f"--seed {seed} --length {self.length} --steps {','.join(map(str, numbers))}"
        return f"python -m tests.conformance.conversations {'--http ' if self.is_http else ''}{chosen}"


def differences_of(stage: Stage, seed: int, plan: Plan) -> Iterator[str]:
    """Yield the report of a seed if the brokers differ in its conversation each time that it is played."""
    steps = plan.steps(seed)
    first = played(stage, steps)
    if first is None or is_known(first):
        return

    def differs(numbers: Sequence[int], agreement_s: float = SHRINKING_S) -> bool:
        found = played(stage, [steps[number] for number in numbers], agreement_s)
        return found is not None and not is_known(found)

    upto = range(min(first.step + 1, len(steps)))
    if not all(differs(upto, AGREEMENT_S) for _ in range(REPEATS)):
        print(f"seed {seed}: a difference that did not come back: {first}", file=sys.stderr)
        return
    found = shortest(upto, differs)
    # A part that differs for a moment only, on a busy machine, is not what makes the difference.
    yield _report(stage, plan, seed, found if differs(found, AGREEMENT_S) else upto)


def _report(stage: Stage, plan: Plan, seed: int, numbers: Sequence[int]) -> str:
    """What is played, what differs, and the command that plays it again."""
    steps = [plan.steps(seed)[number] for number in numbers]
    difference = played(stage, steps)
    told = "\n".join(f"  {place}: {step}" for place, step in enumerate(steps))
    return f"\n{plan.command(seed, numbers)}\n{told}\n{difference}"
