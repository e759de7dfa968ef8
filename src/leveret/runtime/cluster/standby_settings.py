"""The settings of a node for message replication that all nodes of its cluster need alike."""

from __future__ import annotations

from typing import Final

from leveret.config import Config

OWN: Final = "own"
"""Each node has an archive of its own."""


def archive_of(config: Config) -> str:
    """The place of the archive that all nodes share, or OWN."""
    standby = config.standby
    if standby.data_dir is None:
        return OWN
    is_store = "://" in standby.data_dir and not standby.data_dir.startswith("file:")
    return standby.data_dir if is_store else OWN
