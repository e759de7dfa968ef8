"""`python -m leveret.testing.transcripts DIRECTORY`: play all stories below it again, and write what happens now.

Exit status: 1 if a story has changed; with --check nothing is written.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from leveret.testing.transcripts.script import read, written
from leveret.testing.transcripts.worlds import played


def replayed(path: Path) -> str:
    """Return the text of a story as it happens now; the directory's name is that of its world."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        return written(played(path.parent.name, read(path.read_text()), Path(tempfile.mkdtemp(dir=folder))))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        "leveret.testing.transcripts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="", help="stories whose path contains this")
    parser.add_argument("--check", action="store_true", help="write nothing")
    return parser.parse_args()


def main() -> int:
    """Play the stories; print what differs."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is to be the same in each run.
        return subprocess.call(
            [sys.executable, "-m", "leveret.testing.transcripts", *sys.argv[1:]],
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
    options, changed = parse(), 0
    for path in sorted(options.directory.glob("*/*.txt")):
        if options.only not in str(path):
            continue
        before, now = path.read_text(), replayed(path)
        if now != before:
            changed += 1
            sys.stdout.writelines(
                difflib.unified_diff(before.splitlines(True), now.splitlines(True), str(path), "now")
            )
            if not options.check:
                path.write_text(now)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
