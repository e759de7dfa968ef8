"""Deleting files that the manifest does not name any more: once no recovery, under way or interrupted, needs them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from leveret.model.errors import StorageError
from leveret.pipeline.files import Place, delete_tree, locked
from leveret.pipeline.job import SCRATCH
from leveret.pipeline.manifest import Manifest
from leveret.pipeline.plan import delete_forgotten, is_pinned
from leveret.pipeline.store import delete_orphans

RECOVERY_LOCK: Final = "recovery.lock"


def sweep(manifest: Manifest, work: Path) -> None:
    """Delete files that no manifest entry names, if no recovery needs them; only while no transfer runs.

    `work` is the job's.
    """
    with suppress(StorageError), locked(work / RECOVERY_LOCK, 0, "recovering"):
        sweep_alone(manifest)


def sweep_alone(manifest: Manifest) -> None:
    """As `sweep`, for who holds the recovery's lock."""
    if not _is_needed(manifest):
        delete_orphans(manifest)


def delete_unread(manifest: Manifest, work: Path, places: Iterable[Place]) -> bool:
    """Delete these, which no manifest entry names any more, if no recovery needs them; whether that was done."""
    with suppress(StorageError), locked(work / RECOVERY_LOCK, 0, "recovering"):
        if not _is_needed(manifest):
            for place in places:
                place.unlink(missing_ok=True)
            return True
    return False


def _is_needed(manifest: Manifest) -> bool:
    """Whether a recovery goes on later with files that only its plan names; asked under the recovery's lock."""
    # Left by rehearsals and dry runs that were ended: nobody rehearses now.
    delete_tree(manifest.data_dir / SCRATCH)
    with suppress(StorageError):
        delete_forgotten(manifest)
    return is_pinned(manifest.data_dir)
