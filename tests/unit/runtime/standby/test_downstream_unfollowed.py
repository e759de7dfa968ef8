"""What a standby does with records of virtual hosts that it does not follow any more: deleted, or without the tag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leveret.core.replication.standby_site import EVERYTHING
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.definitions import Put, Vhost
from leveret.runtime.standby.downstream import StandbyDownstream
from leveret.runtime.standby.pipeline_process import PipelineFailed
from leveret.runtime.standby.recovery import RecoveryTarget
from leveret.storage.state_file import StateFile
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.runtime.standby.test_downstream_giving_way import FakeNode

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

DEFINED = [Vhost(name="kept", tags=("standby_replication",)), Vhost(name="untagged")]


@pytest.fixture
def standby(tmp_path: Path) -> StandbyDownstream:
    """A standby with records of vhosts that it does not follow; of the one that it follows, everything is settled."""
    upstream = StandbyUpstream(["deleted", "kept", "untagged"])
    for vhost in ("deleted", "kept", "untagged"):
        upstream.publish(vhost, "q", [stored_message(b"x")] * 3)
    upstream.settle("kept", "q", [(0, 3)])
    transfer(upstream, tmp_path / "standby")
    node = FakeNode(tmp_path)
    for defined in DEFINED:
        node.definitions.apply(Put(defined))
    return StandbyDownstream(node, StateFile(tmp_path / "standby.json"))


async def dry_run(standby: StandbyDownstream, target: RecoveryTarget | None = None) -> dict[str, Any]:
    return await standby.recoveries.dry_run(EVERYTHING, target, lambda event: None)


async def test_a_promotion_leaves_them_out_and_says_so(
    standby: StandbyDownstream, caplog: pytest.LogCaptureFixture
) -> None:
    """One deleted vhost failed the promotion of all; one without its tag got messages that were acked long ago."""
    found = await dry_run(standby)
    assert (found["queues"], found["unfollowed"]) == ([], ["deleted", "untagged"])
    assert [row["virtual_host"] for row in await standby.promote()] == ["kept"]
    assert standby.mode is OperatingMode.UPSTREAM
    assert standby.status()["left_out"]["unfollowed"] == ["deleted", "untagged"]
    assert "standby_promotion_left_out vhost=untagged reason=not_followed" in caplog.text
    [promotion] = standby.decided.promotions
    assert promotion.transferred.keys() <= {"kept"}, "their positions are not those of its queues"


async def test_they_can_be_recovered_with_the_tag(standby: StandbyDownstream) -> None:
    await standby.promote()
    standby._node.broker.definitions.apply(Put(Vhost(name="untagged", tags=("standby_replication",))))
    found = await dry_run(standby)
    assert [row["message_count"] for row in found["queues"]] == [3]
    assert found["unfollowed"] == ["deleted"]
    with pytest.raises(PipelineFailed, match=r"127\.0\.0\.1"):
        await standby.promote()  # It has no listener, and would need one now.


async def test_a_recovery_into_another_broker_includes_them(standby: StandbyDownstream) -> None:
    with pytest.raises(PipelineFailed, match=r"127\.0\.0\.1:1"):
        await dry_run(standby, RecoveryTarget(host="127.0.0.1", port=1, username="u", password="p"))
