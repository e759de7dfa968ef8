"""What a demo may be asked for: how many flights, and a seed for the dice."""

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
    """How many flights are published, what chance begins with, and whether a console is opened."""

    count: int
    seed: int
    console: bool

    @property
    def chance(self) -> random.Random:
        """Dice that fall as they did in every run with this seed."""
        return random.Random(self.seed)

    def __str__(self) -> str:
        return f"{self.count:,} flights, seed {self.seed} (repeat this moment of disaster with --seed {self.seed})"


def arguments(name: str, purpose: str, *, share: int, console: str) -> Arguments:
    """Those of the command line; `share` is how many flights if nobody says, `console` the help of `--console`."""
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
