"""Coverage-guided fuzzing of every target for a bounded time.

    python -m tests.fuzz                                      all targets, five minutes between them
    python -m tests.fuzz --seconds 60 --target chunks --seed 7

What a run learns (inputs that reach new code) goes to build/fuzz and is where the next run begins. What
fails goes, minimised, to tests/fuzz/corpus/TARGET: every `make test` runs it again. The exit status is 1
then. The seed is printed; on one machine it brings back a run, as far as its time allows.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fuzz.catalogue import TARGETS
from tests.fuzz.target import Target

CORPUS: Final = Path(__file__).parent / "corpus"
LEARNED: Final = Path("build/fuzz")
INPUT_SECONDS_MAX: Final = 5
"""An input is to take milliseconds; a busy machine stretches them."""
MEMORY_MB_MAX: Final = 1024
"""Of a whole process: Leveret, pandas, Arrow and the fuzzer are 300 of them."""
MINIMISE_SECONDS: Final = 30
GRACE_SECONDS: Final = 60
"""For starting, and for reading the corpus in."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a target; `failure` says what failed, and `story` how."""

    target: Target
    inputs: int
    covered: int
    failure: str
    story: str


def fuzz(target: Target, seconds: int, seed: int) -> Run:
    """Fuzz one target until its time is over, or something fails."""
    learned, failed = LEARNED / target.name / "learned", LEARNED / target.name / "failed"
    seeds = LEARNED / target.name / "seeds"
    corpus = CORPUS / target.name
    for folder in (learned, failed, seeds):
        folder.mkdir(parents=True, exist_ok=True)
    for leftover in failed.iterdir():
        leftover.unlink()
    for octets in target.seeds():
        (seeds / _name_of(octets)).write_bytes(octets)
    argv = [sys.executable, "-m", "tests.fuzz.guided", target.name, str(failed), f"-max_total_time={seconds}"]
    argv += [f"-seed={seed}", f"-timeout={INPUT_SECONDS_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}"]
    argv += [f"-max_len={target.bytes_max}", "-print_final_stats=1"]
    argv += map(str, [learned, seeds, *([corpus] if corpus.is_dir() else [])])
    limit = seconds + GRACE_SECONDS
    ended = subprocess.run(argv, capture_output=True, timeout=limit, env=_environment(), check=False)
    story = ended.stderr.decode(errors="replace") + ended.stdout.decode(errors="replace")
    found = min(failed.iterdir(), default=None)
    failure = str(_keep(target, found)) if found else ""
    if not found and ended.returncode:
        failure = f"the fuzzer ended with {ended.returncode}"
    inputs, covered = _number(r"number_of_executed_units: *(\d+)", story), _number(r"cov: (\d+)", story)
    return Run(target, inputs, covered, failure, story)


def _keep(target: Target, found: Path) -> Path:
    """Put what failed into the corpus, shorter if that is possible in time."""
    octets = found.read_bytes()
    argv = [sys.executable, "-m", "tests.fuzz.minimise", target.name, str(found)]
    if found.name.startswith("crash"):
        try:
            octets = subprocess.run(
                argv, stdout=subprocess.PIPE, timeout=MINIMISE_SECONDS, env=_environment(), check=True
            ).stdout
        except subprocess.SubprocessError:
            print(f"{target.name}: could not be minimised")
    kept = CORPUS / target.name / _name_of(octets)
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(octets)
    return kept.relative_to(CORPUS.parent)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TERM": "dumb"}


def _name_of(octets: bytes) -> str:
    return hashlib.sha256(octets).hexdigest()[:16]


def _number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def _report(run: Run, seconds: int) -> None:
    line = f"{run.target.name:<24} {run.inputs:>9,} inputs in {seconds} s, {run.covered:>6,} places reached"
    print(f"{line}, FAILED: {run.failure}" if run.failure else line, flush=True)
    if run.failure:
        start = run.story.find("=== Uncaught Python exception")
        print(run.story[start : start + 3000] if start >= 0 else run.story[-3000:], flush=True)


def main() -> int:
    """Fuzz what was asked for; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz every decoder.")
    parser.add_argument("--seconds", type=int, default=300, help="for all targets together (default: 300)")
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="only this one; repeatable"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="targets at a time")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("tests.fuzz: skipped: no atheris; `tools/setup fuzz` installs it, on Linux and x86-64 only")
        return 0
    targets = [TARGETS[name] for name in arguments.target or TARGETS]
    seconds = max(1, arguments.seconds * arguments.jobs // max(len(targets), arguments.jobs))
    print(f"tests.fuzz: {len(targets)} targets, {seconds} s each, --seed {arguments.seed}", flush=True)
    began = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = []
        for run in pool.map(lambda target: fuzz(target, seconds, arguments.seed), targets):
            _report(run, seconds)
            runs.append(run)
    failures = [run.failure for run in runs if run.failure]
    total = sum(run.inputs for run in runs)
    print(f"tests.fuzz: {total:,} inputs in {time.monotonic() - began:.0f} s, {len(failures)} targets failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
