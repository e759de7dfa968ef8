"""An archive of Spark's classes, as the JVM lays them out in memory: it halves the time Spark takes to start.

A JVM of its own makes it once for each pair of Java and PySpark, in the user's cache directory (`XDG_CACHE_HOME`,
`~/.cache`). A JVM silently ignores a missing archive, and one that does not fit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from leveret.model.errors import StorageError
from leveret.pipeline.files.files import make_directory


def archive_path(java_home: Path, environment: Mapping[str, str]) -> Path:
    """The path of the archive for this Java and this PySpark, existing or not."""
    cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        release = (java_home / "release").read_bytes()
    except OSError:
        release = str(java_home).encode()
    places = f"{java_home}\n{pyspark.__file__}\n".encode()
    digest = hashlib.sha256(places + release).hexdigest()[:16]
    return Path(cache) / "leveret" / f"spark-{pyspark.__version__}-{digest}.jsa"


def use_archive(archive: Path) -> str:
    """The JVM options that use the archive, none if it is missing; an empty file means that it cannot be made."""
    try:
        usable = archive.stat().st_size > 0
    except OSError:
        usable = False
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off' if usable else ""


def make_archive_options(archive: Path) -> tuple[Path, str]:
    """A file beside the archive, and the JVM options that fill it when the JVM ends.

    Raises:
        StorageError: the cache directory cannot be made.
    """
    try:
        make_directory(archive.parent)
    except OSError as error:
        raise StorageError(
            f"{archive.parent}: {error}; set XDG_CACHE_HOME to where files may be kept"
        ) from error
    beside = archive.with_suffix(f".{os.getpid()}.tmp")
    return beside, f'"-XX:ArchiveClassesAtExit={beside}" -Xlog:cds=off -Xlog:cds+dynamic=off'


def delete_leftovers(archive: Path) -> None:
    """Delete the files of killed JVMs beside the archive; only while no JVM writes one."""
    for path in archive.parent.glob(f"{archive.stem}.*.tmp"):
        path.unlink(missing_ok=True)
