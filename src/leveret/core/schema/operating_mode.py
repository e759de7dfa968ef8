"""The operating mode of a node or a cluster towards another site, for definitions and messages alike."""

from __future__ import annotations

from enum import StrEnum

from leveret.model.errors import InvalidCommand


class OperatingMode(StrEnum):
    """The operating modes, under the names of the guides; `none` is neither side."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"
    NONE = "none"


def operating_mode(text: str) -> OperatingMode:
    """Return the mode of this name.

    Raises:
        InvalidCommand: there is no such mode; the text names the modes.
    """
    try:
        return OperatingMode(text)
    except ValueError:
        raise InvalidCommand(f"operating mode '{text}' is none of {', '.join(OperatingMode)}") from None


def without_decisions(setting: str) -> str:
    """Return the way on without the file that has a mode set at run time, whose `setting` counts then."""
    return (
        f"otherwise set {setting} to this site's mode, which is upstream if it was promoted, and remove the file after "
        "that: without both a promoted site would follow its former upstream"
    )
