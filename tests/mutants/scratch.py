"""A copy of the tree into which faults are put, so that the tree itself stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.mutants.mutation import PACKAGE, ROOT, Mutation, MutationError

# Neither history nor what is made from the rest; the virtual environment is shared.
_NOT_COPIED: Final = (
    ".git",
    ".venv",
    "build",
    "dist",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
    "*.egg-info",
)


class Scratch:
    """One copy; it runs one mutation at a time."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        """Copy the tree of `root` to `folder`, which must not exist."""
        self.folder = folder
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*_NOT_COPIED), symlinks=True)
        (folder / ".venv").symlink_to(root / ".venv")
        self._versions = 0

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a run: each Python process of it imports the copy's sources.

        The virtual environment holds an editable install of the tree itself; `PYTHONPATH` comes before that.
        """
        return {**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTEST_ADDOPTS": ""}

    def verify(self) -> None:
        """Make sure that a run imports the copy.

        Raises:
            MutationError: it imports other sources, so no mutation would have an effect.
        """
        code = "import leveret; print(*leveret.__path__)"
        argv = [sys.executable, "-c", code]
        done = subprocess.run(
            argv, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=True
        )
        if not Path(done.stdout.strip()).is_relative_to(self.folder):
            raise MutationError(
                f"the copy's Python imports {done.stdout.strip()}, which is not in {self.folder}"
            )

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Put a fault into the copy, and take it out again."""
        path = self.folder / PACKAGE / mutation.file
        original = path.read_text()
        path.write_text(mutation.applied(original))
        self._renew(path)
        try:
            yield
        finally:
            path.write_text(original)
            self._renew(path)

    def _renew(self, path: Path) -> None:
        """Give a file a time of its own: compiled code is taken for current by whole seconds and the file's size."""
        self._versions += 1
        seconds = path.stat().st_mtime + 2 * self._versions
        os.utime(path, (seconds, seconds))
