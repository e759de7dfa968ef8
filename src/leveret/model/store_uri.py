"""The places of a standby's archive: a path on this machine, an object store, or HDFS."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

HDFS: Final = "hdfs"
SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss", HDFS)
"""Stores that can create an object only if it does not exist yet; the manifest depends on that."""


def local_path(place: str) -> Path | None:
    """Return the path that `place` names, as a path or as a `file:` URI; None if it names a store.

    Raises:
        ValueError: `place` is neither an absolute path nor such a URI; the text names the fault.
    """
    if "://" not in place:
        path = Path(place)
        if not path.is_absolute():
            raise ValueError(f"'{place}' is no absolute path and no URI")
        return path
    parts = urlsplit(place)
    if parts.query or parts.fragment:
        raise ValueError(f"'{place}' has a query or a fragment: a place in a store has neither")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ValueError(f"'{place}' names another machine's file: write file:///PATH")
        return Path(unquote(parts.path))
    if parts.scheme not in SCHEMES:
        raise ValueError(
            f"'{place}' is in no store that an archive can be kept in: file and {', '.join(SCHEMES)} are, since "
            "they can create an object only if there is none of its name"
        )
    if has_credentials(place):
        raise ValueError("a URI with credentials is refused, they belong in the environment")
    if parts.scheme == HDFS:
        _check_hdfs(place, parts)
    elif not parts.netloc:
        raise ValueError(f"'{place}' names no bucket or container")
    return None


def is_store(place: str) -> bool:
    """Return whether a place that an archive can be kept in is a URI of a store, and no path."""
    return "://" in place and not place.startswith("file:")


def is_hdfs(place: str) -> bool:
    """Return whether the URI names a place in HDFS."""
    return place.startswith(f"{HDFS}://")


def _check_hdfs(place: str, parts: SplitResult) -> None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or not parts.path.strip("/"):
        raise ValueError(
            f"'{place}' is no place in an HDFS: write hdfs://NAMENODE:PORT/PATH, hdfs://NAMESERVICE/PATH, or "
            "hdfs:///PATH for the default file system of HADOOP_CONF_DIR"
        )


def has_credentials(place: str) -> bool:
    """Return whether any text looks like a URI with a user or a password; Azure puts the container there."""
    before, at, _ = place.partition("@")
    scheme, colon, name = before.partition("://")
    return bool(at and colon) and (scheme not in ("abfs", "abfss") or ":" in name)
