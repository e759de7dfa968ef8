"""Deletes files that neither the manifest nor a recovery needs.

A running recovery may need any file; an interrupted one needs the files that its plan names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from leveret.model.errors import StorageError
from leveret.pipeline.archive.manifest import Manifest, Terms
from leveret.pipeline.archive.once_named import lost_among
from leveret.pipeline.archive.recovery_plan import clear_scratch, delete_forgotten, pinned
from leveret.pipeline.archive.store import DATA
from leveret.pipeline.files.files import Place, locked, name_in, sweepable, vhost_directory

logger = logging.getLogger(__name__)

RECOVERY_LOCK: Final = "recovery.lock"
_reported: Final[set[str]] = set()
"""The errors that the log has: compactions look at the plans over and over."""


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
    manifest: Manifest, work: Path, places: list[Place], terms: Terms | None = None
) -> list[Place]:
    """Delete those of these places that no recovery needs and no manifest entry names; return those to try again.

    In a shared archive another node may own the vhosts by now, in whose logs the same names are other files: nothing is
    deleted then.
    """
    with suppress(StorageError), locked(work / RECOVERY_LOCK, 0, "recovering"):
        needed = _needed(manifest, terms)
        if needed is not None:
            kept = {manifest.data_dir / name for name in needed}
            with manifest.locked():
                manifest.check_owned(terms or (), terms)
                named = {manifest.data_dir / name for file in manifest.files() for name in file.names}
                for place in places:
                    if place not in kept and place not in named:
                        place.unlink(missing_ok=True)
            return [place for place in places if place in kept]
    return places


def _needed(manifest: Manifest, terms: Terms | None) -> set[str] | None:
    """The files that unfinished recoveries need, None if unknown; call under the recovery's lock.

    Raises:
        Superseded: another node owns one of the vhosts by now, and its rehearsals may be running.
    """
    with manifest.locked():
        manifest.check_owned(terms or (), terms)
        # Left by rehearsals and dry runs that were killed: none runs now.
        clear_scratch(manifest.data_dir, terms)
    with suppress(StorageError):
        delete_forgotten(manifest)
    try:
        return pinned(manifest.data_dir)
    except StorageError as error:
        if str(error) not in _reported:
            _reported.add(str(error))
            logger.warning("archive_not_swept error=%s", error)
        return None


def delete_orphans(manifest: Manifest, pinned: Collection[str] = (), terms: Terms | None = None) -> int:
    """Delete files that neither the manifest nor `pinned` names; return their number.

    A file with records that only a newer manifest has stays. Only while no transfer runs; with `terms`, those of this
    node in a shared archive, none of its own vhosts, whose files alone are deleted.

    Raises:
        Superseded: another node owns one of the vhosts by now, and may be about to record files.
    """
    with manifest.locked():
        manifest.check_owned(terms or (), terms)
        known = {name for file in manifest.files() for name in file.names}.union(pinned)
        present = sweepable(manifest.data_dir / DATA)
        if terms is not None:
            names = set(map(vhost_directory, terms))
            present = [place for place in present if place.parent.name in names]
        orphans = [place for place in present if name_in(manifest.data_dir, place) not in known]
        lost = lost_among(manifest, orphans)
        for place in orphans:
            if place not in lost:
                place.unlink(missing_ok=True)
    return len(orphans) - len(lost)
