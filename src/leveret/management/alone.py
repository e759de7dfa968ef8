"""TEMPORARY, goes when `runtime.node.Node.replication` is there: a node that nobody follows."""

from __future__ import annotations

from typing import Any


class Alone:
    """Leader of nobody."""

    role = state = "leader"
    epoch = 0

    def status(self) -> dict[str, Any]:
        """As far as the API's other resources look at it."""
        scrub = {"running": False, "last_at_ms": None, "chunks": 0, "damaged": 0, "repaired": 0, "error": ""}
        return {
            "role": "leader",
            "state": "leader",
            "epoch": 0,
            "leader": None,
            "followers": [],
            "in_sync_count": 0,
            "min_in_sync": 0,
            "scrub": scrub,
        }
