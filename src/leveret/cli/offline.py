"""Operations of `leveretctl` itself without a running node: with a node's settings, on the nodes' shared data.

Only the command that needs it imports it: other commands start quickly, without a node's modules.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.data_dir import claimed
from leveret.cli.output.array_file import private_file
from leveret.config import Config, build, gather
from leveret.core.replication.rebuilding import DescribedCopy, RebuiltQueue
from leveret.model.errors import ConfigError, LeveretError, StorageError
from leveret.runtime.cluster import forgetting, rebuilding
from leveret.runtime.process.clock import clock_ms


def forget_stopped(settings: Sequence[Path], name: str, data_dir: Path | None) -> list[dict[str, Any]]:
    """Remove a node from a cluster without running nodes; return its queues, and their leaders after a start.

    Args:
        settings: files of a node of the cluster; the environment's are added, as for the node itself.
        name: the forgotten node.
        data_dir: the data directory of the node with these settings.

    Raises:
        CtlError: the settings have no cluster, or the removal failed; the text has the reason.
    """
    with _failures_reported():
        return asyncio.run(forgetting.forget_stopped(_of_a_member(settings), name, data_dir))


@contextmanager
def _failures_reported() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise CtlError(exits.CONFIG, str(error)) from None
    except LeveretError as error:
        raise CtlError(exits.UNAVAILABLE, str(error)) from None


def _of_a_member(settings: Sequence[Path]) -> Config:
    config = build(gather(*settings, environ=os.environ))
    if not config.cluster.is_member:
        raise ConfigError(
            "no node runs here, and cluster_formation.peer_discovery_backend is not etcd: name this node's settings "
            "with --config or LEVERET_CONFIG_FILE, because the settings locate the cluster's state"
        )
    return config


def describe(data_dir: Path, node: str, file: Path) -> dict[str, Any]:
    """Write a description of the data of a stopped node; return what it says in short.

    Raises:
        CtlError: a node runs on the data, or they cannot be read; the text has the reason.
    """
    try:
        with _failures_reported():
            if not data_dir.is_dir():
                raise StorageError(f"{data_dir} is no directory")
            with claimed(data_dir):
                copy = rebuilding.describe(data_dir, node, clock_ms())
        # It has users with the hashes of their passwords.
        with private_file(file) as out:
            out.write(msgspec.json.encode(copy))
    except OSError as error:
        raise CtlError(exits.UNAVAILABLE, f"{file}: {error.strerror}") from None
    return {"node": node, "logs": len(copy.logs), "cluster": copy.cluster, "lacks": copy.lacks}


def rebuild(
    settings: Sequence[Path], data_dir: Path, files: Sequence[Path], *, dry_run: bool, force: bool
) -> list[dict[str, Any]]:
    """Make a new cluster of described copies; return its queues.

    Raises:
        CtlError: see runtime.cluster.rebuilding; the text has the reason.
    """
    copies = [_described(file) for file in files]
    try:
        with _failures_reported():
            config = _of_a_member(settings)
            found = asyncio.run(rebuilding.rebuild(config, data_dir, copies, dry_run=dry_run, force=force))
    except OSError as error:
        raise CtlError(exits.DATA, f"the cluster cannot be rebuilt: {error}") from None
    return [_row(queue) for queue in found.queues]


def _described(file: Path) -> DescribedCopy:
    """The description in a file of `describe_copy`.

    Raises:
        CtlError: there is none.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=DescribedCopy)
    except (OSError, msgspec.DecodeError) as error:
        raise CtlError(exits.DATA, f"{file} is no description of a copy: {error}") from None


def _row(queue: RebuiltQueue) -> dict[str, Any]:
    (vhost, name), copy = queue.key, queue.copy
    notes = [f"{node} has later messages, which it keeps as divergent" for node in queue.later]
    if copy is None:
        notes.append("no copy: it begins empty")
    elif not copy.is_complete:
        notes.append("no copy is known to be complete")
    return {
        "vhost": vhost,
        "name": name,
        "leader": queue.placement.leader,
        "copies": ", ".join(queue.copies),
        "next_offset": copy.next_offset if copy is not None else 0,
        "note": "; ".join(notes),
    }
