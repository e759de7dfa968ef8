"""The names of the directories of outgoing logs."""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import quote, unquote

_DIGEST: Final = "sha256-"


def directory_name(vhost: str) -> str:
    """A vhost's name as a directory name, different from all others, also from `.` and `..`."""
    quoted = quote(vhost, safe="").replace(".", "%2E") or "%"
    if len(quoted) <= 200:
        # A name may look like the digest of another one.
        return quoted.replace(_DIGEST, "%73ha256-", 1) if quoted.startswith(_DIGEST) else quoted
    return _DIGEST + hashlib.sha256(vhost.encode()).hexdigest()


def vhost_of_directory(name: str) -> str:
    """The vhost of a directory's name; a digest stays a digest."""
    return "" if name == "%" else unquote(name)
