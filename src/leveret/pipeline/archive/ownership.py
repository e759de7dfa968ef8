"""An archive that the nodes of a cluster share: whose it is, and which node writes of a vhost.

`<data_dir>/archive.json` has the id of the archive and of the cluster, and is created once. So a node that reaches
another place than the others finds another id, or none, and a second cluster finds the first one's. The owner of a
vhost claims it in the manifest, in the term of its ownership, before it transfers or recovers (`Manifest.claim`).
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import Final

import msgspec

from leveret.model.errors import StorageError
from leveret.pipeline.archive.documents import line_of, read_document
from leveret.pipeline.archive.manifest import Manifest, Terms
from leveret.pipeline.archive.recovery_plan import plan_ids
from leveret.pipeline.files.files import Place, make_directory, sync_directory, sync_file, written_beside
from leveret.pipeline.files.objects import ObjectPath

MARK: Final = "archive.json"
_ID_BYTES: Final = 6


class ArchiveMark(msgspec.Struct, frozen=True):
    """The content of the file: the archive's id, and that of the cluster whose archive it is."""

    archive_id: str
    cluster_id: str


def identify(data_dir: Place, cluster_id: str, expected: str) -> str:
    """Return the archive's id; without an expected one, mark a place that has no mark yet.

    Raises:
        StorageError: the place is another cluster's, or it is not the archive with the expected id; or the mark cannot
            be read or written.
    """
    found = _read(data_dir)
    if found is None and not expected:
        _create(data_dir, ArchiveMark(secrets.token_hex(_ID_BYTES), cluster_id))
        found = _read(data_dir)
    if found is None:
        raise StorageError(
            f"{data_dir}: has no {MARK}, so it is not the archive {expected} that the other nodes of this cluster "
            "share: mount it, or correct standby.replication.downstream.data_dir of this node; if its data are gone "
            "for good, delete_all_data_on_standby_replication_cluster has the transfer begin anew"
        )
    if found.cluster_id != cluster_id:
        raise StorageError(
            f"{data_dir}: is the archive of another cluster (its id is {found.cluster_id}, and this one's is "
            f"{cluster_id}): give this site a place of its own, or remove {MARK} there if that cluster is gone for good"
        )
    if expected and found.archive_id != expected:
        raise StorageError(
            f"{data_dir}: is archive {found.archive_id}, and the other nodes of this cluster share archive {expected}: "
            "standby.replication.downstream.data_dir names different places; correct it, at this node or at the others"
        )
    return found.archive_id


def claim(manifest: Manifest, terms: Terms) -> None:
    """Claim vhosts for this node, their owner in these terms.

    Plans that were frozen before a vhost was claimed for the first time go on to count.

    Raises:
        Superseded: another node owns one of the vhosts by now.
        StorageError: the manifest cannot be written.
    """
    manifest.refresh()
    unclaimed = [vhost for vhost in terms if vhost not in manifest.terms]
    manifest.claim(terms, plan_ids(manifest.data_dir, unclaimed) if unclaimed else ())


def _read(data_dir: Place) -> ArchiveMark | None:
    path = data_dir / MARK
    try:
        return read_document(path, ArchiveMark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError(f"{path}: {error}; restore it from a copy") from error


def _create(data_dir: Place, mark: ArchiveMark) -> None:
    """Create the file unless another node has."""
    octets = line_of(mark)
    if isinstance(data_dir, ObjectPath):
        (data_dir / MARK).create(octets)
        return
    make_directory(data_dir)
    with written_beside(data_dir) as beside, suppress(FileExistsError):
        beside.write_bytes(octets)
        sync_file(beside)
        os.link(beside, data_dir / MARK)
        sync_directory(data_dir)
