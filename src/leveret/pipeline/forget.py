"""Deleting what was transferred of some vhosts, while nothing is being transferred."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from leveret.pipeline.files import locked, vhost_directory
from leveret.pipeline.manifest import Manifest
from leveret.pipeline.origins import Origins
from leveret.pipeline.store import DATA, delete_orphans

_LOCK_TIMEOUT_S: Final = 30.0


def forget_vhosts(data_dir: Path, vhosts: list[str]) -> list[dict[str, Any]]:
    """Delete all data of these vhosts: the manifest first, so that no reader finds half of it.

    Returns:
        A row a vhost that had any: vhost, bytes.

    Raises:
        StorageError: a transfer goes on, or the disk declines.
    """
    if not data_dir.exists():
        return []
    with locked(data_dir / "transfer.lock", _LOCK_TIMEOUT_S, "transferring"):
        manifest = Manifest(data_dir)
        gone = manifest.forget(vhosts)
        delete_orphans(manifest)
        Origins(data_dir).forget(vhosts)
    sizes: dict[str, int] = {}
    for file in gone:
        sizes[file.vhost] = sizes.get(file.vhost, 0) + file.bytes
    for vhost in sizes:
        directory = data_dir / DATA / vhost_directory(vhost)
        if directory.exists() and not any(directory.iterdir()):
            directory.rmdir()
    return [{"vhost": vhost, "bytes": sizes[vhost]} for vhost in sorted(sizes)]
