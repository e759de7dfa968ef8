"""A command that returns a node as a downstream ends with the node's role, whose directory is another role's then."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from leveret.model.errors import PreconditionFailed
from leveret.runtime.standby import returning_node
from leveret.testing.network.waiting import until
from tests.unit.runtime.standby.test_rejoin import held, with_messages

pytestmark = pytest.mark.process


async def test_a_command_ends_with_the_role_of_its_node_before_anything_is_recorded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower was promoted while a thread quarantined. The command went on, and recorded a return in the directory.

    That was the new role's by then: the next leadership of this node would have emptied its queues.
    """
    site, promoted, _ = await with_messages(directory, monkeypatch)
    promoted.position = 0
    promoted.unlink()
    goes_on, has_begun = threading.Event(), threading.Event()
    add = returning_node.RejoinQuarantine.add

    def slowly(own: Any, *what: Any) -> None:
        has_begun.set()
        assert goes_on.wait(60)
        add(own, *what)

    monkeypatch.setattr(returning_node.RejoinQuarantine, "add", slowly)
    command = asyncio.create_task(site.node.rejoin.rejoin())
    await until(has_begun.is_set, "the quarantine")
    ending = asyncio.create_task(site.node.rejoin.stop())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not ending.done(), "the files are not yet another role's"
    goes_on.set()
    await ending
    with pytest.raises(PreconditionFailed, match="another one leads by now"):
        await command
    assert not (directory / "rejoin.json").exists()
    assert site.node.maintenance.is_draining, "who ends admits nobody"
    with pytest.raises(PreconditionFailed, match="another one leads by now"):
        await site.node.rejoin.rejoin()
    assert held(site) == {"q1": 5, "q2": 5}
