"""The directories of the outgoing logs, and their names."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from leveret.model.errors import StorageError
from leveret.runtime.collecting.outgoing_log import remove_log
from leveret.storage.directory import sync_directory
from leveret.storage.tree import Tree

logger = logging.getLogger(__name__)

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


class VhostDirectories:
    """The directories of a node's outgoing logs, one for each vhost that is or was tagged."""

    def __init__(self, tree: Tree) -> None:
        """The directories below `outgoing`, which need not exist."""
        self._tree = tree
        self._root = tree.root / "outgoing"

    def of(self, vhost: str) -> Path:
        """The directory of a vhost's log."""
        return self._root / directory_name(vhost)

    def beside(self, vhosts: Iterable[str]) -> list[Path]:
        """The directories that belong to none of these vhosts."""
        own = {directory_name(vhost) for vhost in vhosts}
        found = sorted(self._root.iterdir()) if self._root.exists() else []
        return [path for path in found if path.name not in own]

    def try_to_remove(self, path: Path) -> None:
        """Remove a log; a failure never fails the broker, because the next start tries again."""
        try:
            remove_log(self._tree, path)
        except (OSError, StorageError) as error:
            logger.error("outgoing_log_not_removed error=%s", error)

    def sync(self) -> None:
        """Have all removals on disk. Raises StorageError."""
        if self._root.exists():
            sync_directory(self._root)
