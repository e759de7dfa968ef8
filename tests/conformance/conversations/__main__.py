"""Random conversations with RabbitMQ and with Leveret, side by side.

    python -m tests.conformance.conversations                                 100 conversations from a new seed
    python -m tests.conformance.conversations --seed 7 --count 1000           as many from this seed on
    python -m tests.conformance.conversations --seed 7 --steps 0,3,12         these steps of one conversation

Each conversation has a virtual host of its own on both brokers. Where the brokers differ, the conversation is shortened
as long as they still do, and told with the command that plays it again; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import Final

from tests.conformance.brokers import LEVERET, RABBITMQ, running
from tests.conformance.conversations.play import Stage, played, staged
from tests.conformance.conversations.report import Plan, differences_of

LENGTH: Final = 50


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first conversation; a new one by default"
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--length", type=int, default=LENGTH, help="steps of a conversation")
    parser.add_argument("--steps", default="", help="numbers of the steps to play; all by default")
    parser.add_argument("--http", action="store_true", help="requests of the management API instead")
    parser.add_argument("--differences", type=int, default=5, help="stop after as many")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    only = [int(number) for number in options.steps.split(",") if number]
    print(f"from seed {seed}", flush=True)
    plan = Plan(options.length, is_http=options.http)
    with running(RABBITMQ) as rabbitmq, running(LEVERET) as leveret, staged(rabbitmq, leveret) as stage:
        if only:
            return play_once(stage, seed, plan, only)
        return play_many(stage, range(seed, seed + options.count), plan, options.differences)


def play_once(stage: Stage, seed: int, plan: Plan, only: Sequence[int]) -> int:
    """Play these steps of a seed; return the exit status."""
    steps = plan.steps(seed)
    difference = played(stage, [steps[number] for number in only])
    print(difference or "no difference")
    return int(difference is not None)


def play_many(stage: Stage, seeds: range, plan: Plan, most: int) -> int:
    """Play the conversations of seeds; return the exit status."""
    begin = time.monotonic()
    found = 0
    for seed in seeds:
        for report in differences_of(stage, seed, plan):
            found += 1
            print(report, flush=True)
        if found >= most:
            break
    seconds = time.monotonic() - begin
    print(f"seeds {seeds.start} to {seed}: {found} differences, {seconds:.0f} s")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
