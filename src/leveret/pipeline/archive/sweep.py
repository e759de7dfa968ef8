"""Deletes files that neither the manifest nor a recovery needs.

A running recovery may need any file; an interrupted one needs the files that its plan names.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from leveret.model.errors import StorageError
from leveret.pipeline.archive.manifest import Manifest, Terms
from leveret.pipeline.archive.recovery_plan import clear_scratch, delete_forgotten, pinned
from leveret.pipeline.archive.store import delete_orphans
from leveret.pipeline.files.files import Place, locked

RECOVERY_LOCK: Final = "recovery.lock"


def sweep(manifest: Manifest, work: Path, terms: Terms | None = None) -> None:
    """Delete files that no manifest entry names and no recovery needs; only while no transfer runs.

    Args:
        manifest: the archive's.
        work: the job's working directory.
        terms: in a shared archive, the terms in which this node has claimed its vhosts, whose files alone are deleted.
    """
    with suppress(StorageError), locked(work / RECOVERY_LOCK, 0, "recovering"):
        sweep_alone(manifest, terms)


def sweep_alone(manifest: Manifest, terms: Terms | None = None) -> None:
    """As `sweep`, for a caller that holds the recovery's lock."""
    needed = _needed(manifest, terms)
    if needed is not None:
        delete_orphans(manifest, needed, terms)


def delete_unread(
    manifest: Manifest, work: Path, places: list[Place], vhosts: Collection[str] | None = None
) -> list[Place]:
    """Delete those of these places that no recovery needs and no manifest entry names; return the others."""
    with suppress(StorageError), locked(work / RECOVERY_LOCK, 0, "recovering"):
        needed = _needed(manifest, vhosts)
        if needed is not None:
            kept = {manifest.data_dir / name for name in needed}
            for place in places:
                if place not in kept:
                    place.unlink(missing_ok=True)
            return [place for place in places if place in kept]
    return places


def _needed(manifest: Manifest, vhosts: Collection[str] | None) -> set[str] | None:
    """The files that unfinished recoveries need, None if unknown; call under the recovery's lock."""
    # Left by rehearsals and dry runs that were killed: none runs now.
    clear_scratch(manifest.data_dir, vhosts)
    with suppress(StorageError):
        delete_forgotten(manifest)
    try:
        return pinned(manifest.data_dir)
    except StorageError:
        return None
