"""Names as parts of a URL's path. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_DOTS: Final = (".", "..")


def path_part(name: str) -> str:
    """Return a name as one part of a path, whatever its characters.

    `.` and `..` are encoded, too: HTTP clients leave them out, and the path names another object then.
    """
    return name.replace(".", "%2E") if name in _DOTS else quote(name, safe="")
