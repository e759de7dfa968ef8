"""The operating mode of a node or a cluster on a link to another site, for definitions and for messages alike."""

from __future__ import annotations

from enum import StrEnum

from leveret.model.errors import InvalidCommand


class OperatingMode(StrEnum):
    """As the operators of the guides name the sides; `none` is neither."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"
    NONE = "none"


def operating_mode(text: str) -> OperatingMode:
    """The mode of this name.

    Raises:
        InvalidCommand: there is none; the text names those that there are.
    """
    try:
        return OperatingMode(text)
    except ValueError:
        raise InvalidCommand(f"operating mode '{text}' is none of {', '.join(OperatingMode)}") from None
