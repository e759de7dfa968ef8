"""`python -m tests.simulation`: put faults into the product, one at a time, and see whether the simulator finds each.

The faults are those of `tests/mutants/mutations`. One that names a world is tried there, with as many seeds as it
says; any other one in all worlds. One that does no harm any more is named only. Exit status: 0 if the simulator found
each selected fault, else 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.mutants.mutation import ROOT, Mutation, read_mutations
from tests.simulation.mutated import install

WORLDS = ("cluster", "followers", "single")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        "python -m tests.simulation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", default="", help="faults whose text or file contains this")
    parser.add_argument("--world", default="", help="only faults that name this world")
    parser.add_argument("--orders", action="store_true", help="only faults that name a world")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--runs", type=int, help="runs of each world, at most (default: what a fault says, or 8)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="virtual time of each run (default: 20)")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    return parser.parse_args()


def found_by(mutation: Mutation, options: argparse.Namespace) -> str:
    """Return the world that finds a fault, and the reason that it gives; empty if none does."""
    runs = options.runs or mutation.seeds or 8
    for world in (mutation.world,) if mutation.world else WORLDS:
        command = [sys.executable, "-m", "tests.simulation", "--here", f"{world}:{mutation.fault}"]
        command += ["--seed", str(options.seed), "--runs", str(runs), "--seconds", str(options.seconds)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            timeout=60 + 60 * runs,
            check=False,
        )
        if done.returncode:
            return f"{world}: {(done.stdout or done.stderr).strip().splitlines()[-1][:110]}"
    return ""


def play_here(options: argparse.Namespace) -> int:
    """Run one world with one fault, in this process; print the reason of the first failure."""
    world, _, fault = options.here.partition(":")
    mutation = next(each for each in read_mutations() if each.fault == fault)
    install(mutation)
    from leveret.testing.simulation.hunt import play

    for seed in range(options.seed, options.seed + options.runs):
        failure = play(world, seed, options.seconds, often=mutation.often).failure
        if failure is not None:
            print(f"seed {seed}: {failure.fault}".splitlines()[0])
            return 1
    return 0


def main() -> int:
    """Try each selected fault; print a line for each."""
    options = parse()
    if options.here:
        return play_here(options)
    missed = 0
    for mutation in read_mutations():
        if options.only not in mutation.fault and options.only not in mutation.file:
            continue
        if (options.orders and not mutation.world) or options.world not in ("", mutation.world):
            continue
        if mutation.harmless:
            print(f"covered {mutation.file}: {mutation.fault}", flush=True)
            continue
        found = found_by(mutation, options)
        missed += not found
        print(
            f"{'found ' if found else 'MISSED'} {mutation.file}: {mutation.fault}\n       {found}", flush=True
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
