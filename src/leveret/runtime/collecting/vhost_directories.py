"""The names of the directories of outgoing logs."""

from __future__ import annotations

import hashlib
from urllib.parse import quote, unquote


def directory_name(vhost: str) -> str:
    """A vhost's name as a directory name, different from all others, also from `.` and `..`."""
    quoted = quote(vhost, safe="").replace(".", "%2E") or "%"
    if len(quoted) <= 200:
        return quoted
    return "sha256-" + hashlib.sha256(vhost.encode()).hexdigest()


def vhost_of_directory(name: str) -> str:
    """The vhost of a directory's name; a digest stays a digest."""
    return "" if name == "%" else unquote(name)
