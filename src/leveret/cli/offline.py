"""What `leveretctl` does itself, as no node runs that could be asked: by a node's settings, in what nodes share.

It is imported by the command that needs it alone: the others are quick, and know nothing of what is in a node.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.config import Config, build, gather
from leveret.model.errors import ConfigError, LeveretError
from leveret.runtime.cluster import forgetting


def forget_stopped(settings: Sequence[Path], name: str, data_dir: Path | None) -> list[dict[str, Any]]:
    """Take a node out of a cluster of which no node runs; the queues it led, and who leads them when started.

    Args:
        settings: files of a node of the cluster; the environment's are added, as for the node itself.
        name: the node that is forgotten.
        data_dir: of the node whose settings these are.

    Raises:
        CtlError: the settings are of no cluster, or it cannot be done; says why.
    """
    try:
        return asyncio.run(forgetting.forget_stopped(_of_a_member(settings), name, data_dir))
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
