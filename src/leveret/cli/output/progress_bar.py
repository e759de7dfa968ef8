"""The progress of a command's work on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self


class ProgressBar:
    """A progress bar on a terminal, nothing in a pipe."""

    def __init__(self, shows: bool, description: str, columns: Callable[[], Sequence[Any]]) -> None:
        """A bar of one task; `columns` are rich's columns between the bar and the remaining time."""
        self._progress: Any = None
        if shows:
            # Imported late, because most commands show no bar, and rich starts slowly.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                *columns(),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task(description, total=None)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, **fields: Any) -> None:
        """Set `completed`, `total` or `description`."""
        if self._progress is not None:
            self._progress.update(self._task, **fields)

    def advance(self, count: int) -> None:
        """Add to the work done."""
        if self._progress is not None:
            self._progress.advance(self._task, count)

    def begin_again(self, *, total: int, description: str) -> None:
        """Begin the next step of the work."""
        if self._progress is not None:
            self._progress.reset(self._task, total=total, description=description)
