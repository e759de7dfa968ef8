"""`/api/nodes`: this node, with what the operating system says about it."""

from __future__ import annotations

import os
import resource as limits
import time
from pathlib import Path
from typing import Any

from starlette.responses import Response

import leveret
from leveret.management.auth import Need
from leveret.management.call import Call, resource
from leveret.management.replies import json_reply
from leveret.model.errors import NotFound

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


async def show_all(call: Call) -> Response:
    """All nodes; there is one."""
    return json_reply([node_json(call)])


async def show(call: Call) -> Response:
    """One node."""
    name = call.path("name")
    if name != call.node.config.node_name:
        raise NotFound(f"node '{name}' is not part of this cluster")
    return json_reply(node_json(call))


async def show_cluster_name(call: Call) -> Response:
    """The cluster's name."""
    return json_reply({"name": call.node.config.cluster_name})


def node_json(call: Call) -> dict[str, Any]:
    """A node as RabbitMQ shows it; only what is known is told."""
    node = call.node
    disk = os.statvfs(node.data_dir)
    return {
        "name": node.config.node_name,
        "type": "disc",
        "running": True,
        "os_pid": str(os.getpid()),
        "uptime": int(time.time() * 1000) - node.started_at_ms,
        "processors": len(os.sched_getaffinity(0)),
        "mem_used": resident_bytes(),
        "mem_alarm": False,
        "disk_free": disk.f_bavail * disk.f_frsize,
        "disk_free_alarm": False,
        "fd_used": open_files(),
        "fd_total": limits.getrlimit(limits.RLIMIT_NOFILE)[0],
        "db_dir": str(node.data_dir),
        "being_drained": False,
        "partitions": [],
        "enabled_plugins": [],
        "leveret_version": leveret.__version__,
    }


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def open_files() -> int:
    """Descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


ROUTES = [
    resource("/api/nodes", need=Need.MONITORING, GET=show_all),
    resource("/api/nodes/{name}", need=Need.MONITORING, GET=show),
    resource("/api/cluster-name", GET=show_cluster_name),
]
