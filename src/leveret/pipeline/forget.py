"""Deleting what was transferred, or setting it aside, while nothing is being transferred."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from leveret.pipeline.files import Place, delete, locked, move, remove_if_empty, vhost_directory
from leveret.pipeline.job import EXPORTS, PLANS, SCRATCH
from leveret.pipeline.manifest import Manifest
from leveret.pipeline.origins import ORIGINS, Origins
from leveret.pipeline.store import DATA, delete_orphans

_LOCK_TIMEOUT_S: Final = 30.0
_EVERYTHING: Final = (PLANS, EXPORTS, SCRATCH, "manifest", DATA, ORIGINS)
FORMER: Final = "former"


def forget_vhosts(data_dir: Place, work: Path, vhosts: list[str]) -> list[dict[str, Any]]:
    """Delete all data of these vhosts: the manifest first, so that no reader finds half of it.

    Returns:
        A row a vhost that had any: vhost, bytes.

    Raises:
        StorageError: a transfer goes on, or the disk declines.
    """
    if not data_dir.exists():
        return []
    with locked(work / "transfer.lock", _LOCK_TIMEOUT_S, "transferring"):
        manifest = Manifest(data_dir)
        gone = manifest.forget(vhosts)
        for name in (name for file in gone for name in file.names):
            (data_dir / name).unlink(missing_ok=True)
        delete_orphans(manifest)
        Origins(data_dir).forget(vhosts)
    sizes: dict[str, int] = {}
    for file in gone:
        sizes[file.vhost] = sizes.get(file.vhost, 0) + file.bytes
    for vhost in sizes:
        remove_if_empty(data_dir / DATA / vhost_directory(vhost))
    return [{"vhost": vhost, "bytes": sizes[vhost]} for vhost in sorted(sizes)]


def delete_all(data_dir: Place, work: Path) -> None:
    """Delete everything, what was set aside excepted.

    Raises:
        StorageError: a transfer goes on, or not all of it can be deleted.
    """
    with locked(work / "transfer.lock", _LOCK_TIMEOUT_S, "transferring"):
        for name in _EVERYTHING:
            delete(data_dir / name)


def set_aside(data_dir: Place, work: Path, at_ms: int) -> None:
    """Move everything to where nobody reads it, and nobody deletes it.

    Raises:
        StorageError: a transfer goes on, or not all of it can be moved.
    """
    with locked(work / "transfer.lock", _LOCK_TIMEOUT_S, "transferring"):
        for name in _EVERYTHING:
            move(data_dir / name, data_dir / FORMER / str(at_ms) / name)
