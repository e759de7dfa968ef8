"""Operations of `leveretctl` itself without a running node: with a node's settings, on the nodes' shared data.

Only the command that needs it imports it: other commands start quickly, without a node's modules.
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
    """Remove a node from a cluster without running nodes; return its queues, and their leaders after a start.

    Args:
        settings: files of a node of the cluster; the environment's are added, as for the node itself.
        name: the forgotten node.
        data_dir: the data directory of the node with these settings.

    Raises:
        CtlError: the settings have no cluster, or the removal failed; the text has the reason.
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
