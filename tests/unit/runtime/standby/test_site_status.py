"""The state of a downstream cluster is that of the nodes that follow something."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from leveret.core.schema.operating_mode import OperatingMode
from leveret.runtime.standby.site_status import SiteStatus


class Parts:
    """Answers of all nodes: node `a` follows a vhost, `b` and `c` none."""

    def __init__(self, *states: str) -> None:
        self.found = {
            node: told(state, [{"virtual_host": "v", "error": ""}] * (node == "a"))
            for node, state in zip("abc", states, strict=True)
        }

    async def of_those_that_answer(self, name: str) -> tuple[dict[str, Any], dict[str, str]]:
        return self.found, {}


def told(state: str, vhosts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"state": state, "error": "", "archive_bytes": None, "promotion": None, "vhosts": vhosts}


@pytest.mark.parametrize(
    ("states", "state", "shown"),
    [
        (("connected", "connecting", "connecting"), "connected", ["connected", "idle", "idle"]),
        (("connecting", "connecting", "connecting"), "connecting", ["connecting", "idle", "idle"]),
        (("connected", "promoting", "connecting"), "promoting", ["connected", "promoting", "idle"]),
        (("disconnected",) * 3, "disconnected", ["disconnected"] * 3),
    ],
)
async def test_a_node_without_a_vhost_does_not_make_the_site_wait(
    states: tuple[str, str, str], state: str, shown: list[str]
) -> None:
    site: Any = SimpleNamespace(owners={}, running=["a", "b", "c"], is_shared=False)
    own: Any = SimpleNamespace(
        mode=OperatingMode.DOWNSTREAM, vhosts=lambda: ["v"], status=lambda: told("connecting", [])
    )
    parts: Any = Parts(*states)
    found = await SiteStatus(site, own, parts).details()
    assert (found["state"], [each["state"] for each in found["nodes"]]) == (state, shown)
