"""The text of a story: commands, and what happened after each of them.

# Comments, and empty lines, stand where the writer has put them.
publish m1 3
    client    3 confirmed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_INDENT = "    "


class StoryLine(NamedTuple):
    """A comment or an empty line, or a command with what happened after it."""

    text: str
    happened: Sequence[str] = ()

    @property
    def is_command(self) -> bool:
        """Whether there is something to be done."""
        return bool(self.text) and not self.text.startswith("#")


def read(text: str) -> list[StoryLine]:
    """Return the lines of a story."""
    found: list[StoryLine] = []
    for line in text.splitlines():
        if line.startswith(_INDENT) and found:
            last = found[-1]
            found[-1] = StoryLine(last.text, [*last.happened, line.removeprefix(_INDENT)])
        else:
            found.append(StoryLine(line))
    return found


def written(lines: Sequence[StoryLine]) -> str:
    """Return the text of a story."""
    return "".join(
        f"{line.text}\n" + "".join(f"{_INDENT}{happened}\n" for happened in line.happened) for line in lines
    )
