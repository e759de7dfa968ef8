"""The arguments of a demo: the number of flights, the seed, and the console."""

from __future__ import annotations

import argparse
import random
import secrets
from dataclasses import dataclass
from typing import Final

from leveret.testing.demo.flights import TOTAL

_SEED_END: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Arguments:
    """The number of flights to publish, the seed of all random choices, and whether a console is opened."""

    count: int
    seed: int
    console: bool

    @property
    def chance(self) -> random.Random:
        """Return a random generator that repeats its choices for the same seed."""
        return random.Random(self.seed)

    def __str__(self) -> str:
        return f"{self.count:,} flights, seed {self.seed} (repeat this moment of disaster with --seed {self.seed})"


def arguments(name: str, purpose: str, *, share: int, console: str) -> Arguments:
    """Parse the command line. `share` is the default number of flights, `console` the help of `--console`."""
    parser = argparse.ArgumentParser(prog=name, description=purpose)
    parser.add_argument("--all", action="store_true", help=f"all {TOTAL:,} flights")
    parser.add_argument("--share", type=int, default=share, help=f"the first N flights (default {share:,})")
    parser.add_argument(
        "--seed", type=int, help="repeat a run: the moment of the disaster, the consumers' choices"
    )
    parser.add_argument("--console", action="store_true", help=console)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(_SEED_END)
    return Arguments(TOTAL if options.all else options.share, seed, options.console)
