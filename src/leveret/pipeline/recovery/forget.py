"""Deletes the archive, or quarantines it, while no transfer and no recovery runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from leveret.model.errors import StorageError
from leveret.pipeline.archive.identities import IDENTITIES_BY_VHOST, UPSTREAM_IDENTITIES, UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.manifest_storage import delete_manifest
from leveret.pipeline.archive.recovery_plan import delete_plans
from leveret.pipeline.archive.store import DATA
from leveret.pipeline.archive.sweep import RECOVERY_LOCK, sweep_alone
from leveret.pipeline.files.files import Place, delete, locked, move, remove_if_empty, vhost_directory
from leveret.pipeline.jobs.job import EXPORTS, PLANS, SCRATCH

_LOCK_TIMEOUT_S: Final = 30.0
_MANIFEST: Final = "manifest"
_DELETED: Final = (PLANS, EXPORTS, SCRATCH, DATA, UPSTREAM_IDENTITIES, IDENTITIES_BY_VHOST)
_MOVED: Final = (DATA, PLANS, EXPORTS, SCRATCH, _MANIFEST, UPSTREAM_IDENTITIES, IDENTITIES_BY_VHOST)
"""In this order: a manifest without its plans would recover everything once more, and one without its files nothing.
While there is a manifest, no transfer takes the files for unused."""
FORMER: Final = "former"


def forget_vhosts(
    data_dir: Place, work: Path, vhosts: list[str], *, is_shared: bool = False
) -> list[dict[str, Any]]:
    """Delete all data of these vhosts; the manifest forgets them first, so that no reader finds a part of them.

    If other nodes write to the archive (`is_shared`), only files of these vhosts are deleted. After an interruption,
    the rest of their plans does not count, and the next transfer sweeps the files.

    Returns:
        A row a vhost with data: vhost, bytes.

    Raises:
        StorageError: a transfer or a recovery runs, or the disk refuses.
    """
    if not data_dir.exists():
        return []
    with _alone(work):
        manifest = Manifest(data_dir)
        gone = manifest.forget(vhosts)
        delete_plans(data_dir, vhosts)
        for name in (name for file in gone for name in file.names):
            (data_dir / name).unlink(missing_ok=True)
        sweep_alone(
            manifest, {vhost: manifest.terms.get(vhost, 0) for vhost in vhosts} if is_shared else None
        )
        UpstreamIdentities(data_dir).forget(vhosts)
    sizes: dict[str, int] = {}
    for file in gone:
        sizes[file.vhost] = sizes.get(file.vhost, 0) + file.bytes
    for vhost in sizes:
        remove_if_empty(data_dir / DATA / vhost_directory(vhost))
    return [{"vhost": vhost, "bytes": sizes[vhost]} for vhost in sorted(sizes)]


def delete_all(data_dir: Place, work: Path) -> None:
    """Delete everything except retired archives.

    After an interruption, the manifest is empty or unreadable: no message is recovered twice, and no later one is
    hidden by the old ones.

    Raises:
        StorageError: a transfer or a recovery runs, or not all of it can be deleted.
    """
    with _alone(work):
        # The command also has to work on a damaged manifest, and on a full disk.
        with suppress(StorageError, OSError):
            _forget_all(Manifest(data_dir))
        for name in _DELETED:
            delete(data_dir / name)
        delete_manifest(data_dir / _MANIFEST)


def retire(data_dir: Place, work: Path, at_ms: int) -> None:
    """Move everything to a directory that is neither read nor deleted.

    Raises:
        StorageError: a transfer or a recovery runs, or not all of it can be moved.
    """
    with _alone(work):
        for name in _MOVED:
            move(data_dir / name, data_dir / FORMER / str(at_ms) / name)


def _forget_all(manifest: Manifest) -> None:
    if manifest.next_by_log:
        manifest.forget(manifest.vhosts)


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Exclude transfers, and readers of the deleted files."""
    with (
        locked(work / "transfer.lock", _LOCK_TIMEOUT_S, "transferring"),
        locked(work / RECOVERY_LOCK, _LOCK_TIMEOUT_S, "recovering"),
    ):
        yield
